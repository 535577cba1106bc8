"""Checkpoints of other libraries in several files: which file a folder has, and which shard each tensor is in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.saved_folder.manifest import is_saved
from anyaccel.saved_folder.storage import Storage

INDEX_ENDING = ".index.json"
USUAL_NAMES = ("model", "diffusion_pytorch_model", "pytorch_model", "adapter_model")
"""Names that libraries give to files of weights in a folder."""
_LARGEST_INDEX = 256 * 2**20


def weight_file_in(folder: Storage, suffixes: Sequence[str]) -> str:
    """The name of the file, or of the index of shards, that a folder has.

    Args:
        folder: of libraries' checkpoints.
        suffixes: endings of files of weights, the preferred first.

    Raises:
        StateError: it has none, or several.
    """
    if is_saved(folder):
        raise StateError(
            f"{folder.name!r} is a saved graph or a checkpoint, not a file of weights",
            hint=f"load all of it with ModelGraph.load({folder.name!r}), or what fits with strict=False",
        )
    endings = tuple(each for suffix in suffixes for each in (suffix, f"{suffix}{INDEX_ENDING}"))
    there = sorted(folder.names() or ())
    names = [name for name in there if name.endswith(endings) and folder.size(name) is not None]
    for suffix in suffixes:
        files = [name for name in names if name.endswith(suffix)]
        for name in (
            *(f"{usual}{suffix}{INDEX_ENDING}" for usual in USUAL_NAMES),
            *(f"{usual}{suffix}" for usual in USUAL_NAMES),
        ):
            if name in names:
                return name
        indexes = [name for name in names if name.endswith(f"{suffix}{INDEX_ENDING}")]
        if len(indexes or files) == 1:
            return (indexes or files)[0]
        if files:
            break
    raise StateError(
        f"{folder.name!r} has {'several files' if files else 'no file'} of weights",
        available=", ".join(there[:20]),
        hint="give the file itself",
    )


def shard_map(folder: Storage, index: str, suffixes: Sequence[str]) -> dict[str, str]:
    """The file beside an index of shards that has each tensor, by the tensor's name.

    Args:
        folder: that has it.
        index: its name.
        suffixes: endings of files of weights.

    Raises:
        StateError: it is no such index, or names files in other places.
    """
    try:
        size = folder.size(index) or 0
        if size > _LARGEST_INDEX:
            raise ValueError("it is too large")
        with folder.open(index) as stream:
            given = json.loads(stream.read(size))["weight_map"]
        if not isinstance(given, dict) or not all(_is_plain_name(name, suffixes) for name in given.values()):
            raise ValueError(f"weight_map is {shown(given)}")
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        problem = f"{folder.file_name(index)!r} is no index of shards: {type(error).__name__}: {error}"
        raise StateError(problem, hint="give an index with weight_map={'NAME': 'FILE IN ITS FOLDER'}") from error
    return given


def _is_plain_name(name: Any, suffixes: Sequence[str]) -> bool:
    """Whether a name is that of a file of weights beside the index, and in no other place."""
    return isinstance(name, str) and name.endswith(tuple(suffixes)) and not set(name) & set("/\\:\x00")
