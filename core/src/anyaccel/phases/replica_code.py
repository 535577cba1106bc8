"""Replica code: digests of the files and settings that a phase runs, which are to be alike in all replicas."""

from __future__ import annotations
from anyaccel.phases.settings import PhaseSettings

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from anyaccel.errors import ConfigError
from anyaccel.graph import ModelGraph
from anyaccel.phases.checkpointing.run_settings import optimizers_of, settings_of


def code_digests(phase: PhaseSettings, graph: ModelGraph) -> dict[str, str]:
    """Digests by what they are of, in words: files of the script and of the models, settings of phase and optimizers.

    A file is named without its folder, which may differ between machines; what cannot be read is left out.
    """
    digests = dict(_files(graph))
    if phase.trains:
        settings = {"n_epochs": phase.n_epochs, "validate_every": phase.validate_every}
        with suppress(ConfigError):  # of a sampler of the user's own, whose rows are compared all the same
            settings |= settings_of(phase)
        digests |= {f"the setting {name!r} of the phase": _of_plain(value) for name, value in settings.items()}
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
