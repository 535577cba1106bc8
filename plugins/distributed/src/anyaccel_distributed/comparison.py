"""Comparison: whether all replicas have the same files, settings, models and data, by their digests."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel.errors import ConfigError, PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.phases.checkpointing.position import optimizers_of
from anyaccel.phases.settings import PhaseSettings

Gather = Callable[[Any], list[Any]]
"""Gives the plain values that all replicas give, by rank; called by all at once."""


class ReplicaComparison:
    """Compare the state of the replicas of a phase.

    Args:
        label: Label of the phase.
        size: Number of replicas.
        gather: Function that exchanges plain values.
    """

    def __init__(self, label: str, size: int, gather: Gather) -> None:
        self._label, self._size, self._gather = label, size, gather

    def check_alike(self, graph: ModelGraph, rows_drawn: str, columns: Mapping[str, Any], *, when: str) -> None:
        """Compare models, seeds and data of all replicas.

        Args:
            graph: Graph with the nodes' values and the seed.
            rows_drawn: A digest of the rows that the samplers draw.
            columns: Host columns by value name, if they are in memory.
            when: End of the message: "before the first step".

        Raises:
            PhaseError: they differ; the message names the differences and the replicas.
        """
        texts = {"the seed": str(graph.seed), "the rows that the samplers draw": rows_drawn}
        texts |= {f"the values of {key!r}": digest(np.asarray(value)) for key, value in graph.state().items()}
        texts |= {
            f"the data of {name!r}": digest(value) for name, value in columns.items() if isinstance(value, np.ndarray)
        }
        hint = "use the same model, data and seed in every process: seed the framework before you create the model, "
        self.check_same(texts, when=when, hint=f"{hint}or load the same weights")

    def check_ended(self, graph: ModelGraph) -> dict[str, np.ndarray]:
        """Compare the results of the replicas; return the first one's values of the buffers that differ.

        Raises:
            PhaseError: parameters or states of optimizers differ.
        """
        state = {key: np.asarray(value) for key, value in graph.state().items()}
        every = self._gather({key: digest(value) for key, value in state.items()})
        apart = [key for key in _differing(every) if "/buffers/" in key]
        rest = [{f"the values of {key!r}": one[key] for key in one if key not in apart} for one in every]
        self._check(rest, when="after the last step", hint="change the same values in callbacks of every process")
        if not apart:
            return {}
        firsts = self._gather([as_plain(state[key]) for key in apart])[0]
        return {key: from_plain(plain).view(state[key].dtype) for key, plain in zip(apart, firsts, strict=True)}

    def check_same(self, texts: Mapping[str, str], *, when: str, hint: str) -> None:
        """Compare texts by name with those of all replicas.

        Args:
            texts: Texts of this replica; names are human-readable.
            when: "before the first step".
            hint: How to make them equal.

        Raises:
            PhaseError: they differ; the message names the differences and the replicas.
        """
        self._check(self._gather(dict(texts)), when=when, hint=hint)

    def _check(self, every: Sequence[Mapping[str, str]], *, when: str, hint: str) -> None:
        differing = _differing(every)
        if differing:
            first = differing[0]
            others = [str(rank) for rank, one in enumerate(every) if one.get(first) != every[0].get(first)]
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise PhaseError(
                f"phase {self._label!r}: the replicas disagree {when}: {first}{more} differ in replica "
                f"{', '.join(others)} (counted from 0)",
                cause=f"{self._size} replicas",
                hint=hint,
            )


def as_plain(array: np.ndarray) -> list[Any]:
    """Return an array as a plain value."""
    return [array.dtype.str, list(array.shape), array.tobytes()]


def from_plain(plain: Any) -> np.ndarray:
    """Return the array of a plain value."""
    dtype, shape, values = plain
    return np.frombuffer(values, dtype).reshape(shape).copy()


def digest(array: np.ndarray) -> str:
    """Return shape, dtype and a hash of the values."""
    contiguous = np.ascontiguousarray(array)
    values = contiguous.view(np.uint8).reshape(-1).data if math.prod(array.shape) else b""
    return f"{array.dtype}{list(array.shape)} {hashlib.blake2b(values, digest_size=16).hexdigest()}"


def _differing(every: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names, in order, whose texts differ between replicas."""
    names = dict.fromkeys(name for one in every for name in one)
    return [name for name in names if len({one.get(name) for one in every}) > 1]


def code_digests(phase: PhaseSettings, graph: ModelGraph) -> dict[str, str]:
    """Return digests by name: files of the script and of the models, settings of phase and optimizers.

    A file is named without its folder, which may differ between machines; unreadable files are left out.
    """
    digests = dict(_files(graph))
    if phase.trains:
        for name, setting in phase.settings.items():
            if setting.compare is not None:
                with suppress(ConfigError):  # of a sampler of the user's own, whose rows are compared all the same
                    digests[f"the setting {name!r} of the phase"] = _of_plain(setting.compare(getattr(phase, name)))
        digests |= {f"the settings of {name!r}": _of_plain(value) for name, value in optimizers_of(graph).items()}
    return digests


def _files(graph: ModelGraph) -> Iterator[tuple[str, str]]:
    classes = {type(model) for node in graph.nodes.values() if (model := getattr(node, "model", None)) is not None}
    for module in sorted({"__main__", *(cls.__module__ for cls in classes)}):
        path = getattr(sys.modules.get(module), "__file__", None)
        try:
            content = Path(path).read_bytes() if path else b""
        except OSError:
            continue
        if content:
            yield f"the file {Path(str(path)).name!r}", hashlib.blake2b(content, digest_size=16).hexdigest()


def _of_plain(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
