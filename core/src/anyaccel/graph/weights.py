"""Weights from one model into another, of the same framework or not, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.errors import StateError
from anyaccel.registry import registry

Change = Callable[[str, np.ndarray], np.ndarray]


def copy_weights(
    source: Any, target: Any, *, names: Mapping[str, str] | None = None, change: Change | None = None
) -> tuple[str, ...]:
    """Copy parameters and buffers from a built model into another, where it is; frameworks may differ.

    Models made from one recipe (`SequentialMLP`, `SequentialCNN`) have the same names and shapes in every framework.
    For others, `names` and `change` say what belongs together:

        copy_weights(torch_net, keras_net, names={"layers.0.kernel": "0.weight", "layers.0.bias": "0.bias"},
                     change=lambda name, array: array.T if name.endswith("kernel") else array)

    Args:
        source: the model whose values are taken.
        target: the model that receives them; floating values become its dtypes.
        names: for a name of the target, that of the source; without it, each has its own name.
        change: given the target's name and the source's array, gives what is copied.

    Returns:
        the target's names.

    Raises:
        StateError: names or shapes that do not fit; nothing has been written then.
        NoBackendError: a model of a framework that nobody serves.
    """
    taken, there = _computing(source).state(source), _computing(target).state(target)
    wanted = _sources(source, target, list(taken), list(there), names or {})
    values = {name: _fitted(_short(name), taken[wanted[name]], array, change) for name, array in there.items()}
    _computing(target).load_state(target, values)
    return tuple(map(_short, there))


def _sources(
    source: Any, target: Any, taken: Sequence[str], there: Sequence[str], names: Mapping[str, str]
) -> dict[str, str]:
    """By name of the target, that of the source; everything on both sides has to be used."""
    unknown = sorted(set(names) - set(map(_short, there)))
    if unknown:
        raise StateError(
            f"{type(target).__name__} has no {', '.join(unknown)}",
            available=f"it has {', '.join(map(_short, there))}",
            hint="map names={TARGET: SOURCE}",
        )
    wanted = {name: _source_of(name, names) for name in there}
    missing = sorted(_short(name) for name, other in wanted.items() if other not in taken)
    unused = sorted(_short(name) for name in set(taken) - set(wanted.values()))
    if missing or unused:
        raise StateError(
            f"{type(source).__name__} does not fit {type(target).__name__}: "
            + "; ".join(
                [f"it has nothing for {', '.join(missing)}"] * bool(missing)
                + [f"{', '.join(unused)} would be left over"] * bool(unused)
            ),
            available=f"it has {', '.join(map(_short, taken))}",
            hint="map names={TARGET: SOURCE}",
        )
    return wanted


def _computing(model: Any) -> ComputingBackend:
    return registry().computing(registry().owner(model))


def _source_of(name: str, names: Mapping[str, str]) -> str:
    part, short = name.split("/", 1)
    return f"{part}/{names.get(short, short)}"


def _short(name: str) -> str:
    return name.split("/", 1)[1]


def _fitted(name: str, array: np.ndarray, there: np.ndarray, change: Change | None) -> np.ndarray:
    value = array if change is None else np.asarray(change(name, array))
    floating = value.dtype.kind == there.dtype.kind == "f"
    if value.shape != there.shape or not (floating or value.dtype == there.dtype):
        raise StateError(
            f"{name} would be {value.dtype}{list(value.shape)}",
            available=f"it is {there.dtype}{list(there.shape)}",
            hint="give change=lambda name, array: ... that transposes or converts it",
        )
    return value.astype(there.dtype)
