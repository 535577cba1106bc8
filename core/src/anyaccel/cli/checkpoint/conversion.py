"""`anyaccel checkpoint convert`: the weights of a checkpoint or saved graph as one file for other tools."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.cli.checkpoint.saved import Saved, find_saved
from anyaccel.cli.console import print_json, print_line
from anyaccel.errors import AnyaccelError, ConfigError, StateError
from anyaccel.graph import weight_files
from anyaccel.graph.state_dict import VALUES
from anyaccel.graph.weight_loading import plain_names
from anyaccel.registry import registry
from anyaccel.saved_folder import GROUP, shards


def run(folder: str, file: str, node: str | None, as_json: bool) -> None:
    """Write the weights of a folder into a new file.

    Raises:
        ConfigError: no such folder.
        StateError: the file exists already, the folder has no such node, or no plugin writes such files.
    """
    path = weight_files.checked_path(file)
    if weight_files.is_there(path):
        raise StateError(f"{str(path)!r} already exists", hint="choose another name, or remove it first")
    saved = find_saved(folder)
    weights = _weights(saved)
    if node is not None and node not in weights:
        there = ", ".join(weights) or "no node with weights"
        raise StateError(f"{saved.name!r} has no weights for a node {node!r}", available=there, hint="use one of these")
    if not weights:
        raise StateError(f"{saved.name!r} has no weights", hint="pass a saved graph, or a checkpoint of one")
    chosen = weights if node is None else {node: weights[node]}
    arrays = {
        f"{label}.{name}" if len(chosen) > 1 else name: values[key]
        for label, values in chosen.items()
        for name, key in plain_names(values).items()
    }
    try:
        weight_files.write(path, arrays, _format(saved, chosen))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error}", hint="choose another folder") from error
    if as_json:
        print_json({"file": str(path), "folder": saved.name, "names": list(arrays)})
    else:
        print_line(f"{path}: {len(arrays)} arrays of {', '.join(chosen)}, from {saved.name}")


def _weights(saved: Saved) -> dict[str, dict[str, np.ndarray]]:
    """Return parameters and buffers by node."""
    weights: dict[str, dict[str, np.ndarray]] = {}
    for file in saved.files:
        for name, array in shards.read(saved.storage, file).items() if file.group == GROUP else ():
            label, _, key = name.partition("/")
            if key.startswith(VALUES):
                weights.setdefault(label, {})[key] = array
    return weights


def _format(saved: Saved, labels: Mapping[str, object]) -> str:
    """Return the word for the one framework of these nodes, where it is known and has one."""
    written = saved.position.get("frameworks")
    entries = dict(written) if isinstance(written, Mapping) else {}
    for node in saved.config.get("nodes") or ():
        model = node.get("model") if isinstance(node, Mapping) else None
        if isinstance(model, Mapping):
            entries.setdefault(node.get("label"), model.get("framework"))
    frameworks = {entries.get(label) for label in labels}
    if len(frameworks) > 1:
        return ""
    try:
        files = registry().computing(str(frameworks.pop())).capability(WeightFiles)
        return "" if files is None else files.safetensors_format
    except AnyaccelError:  # its plugin is not here
        return ""
