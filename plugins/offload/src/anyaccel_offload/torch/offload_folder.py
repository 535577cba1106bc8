"""Offload folders: weights written to files of safetensors, to be read from there whenever they are needed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.saved_folder import tensor_file
from anyaccel_offload.torch.checkpoint_files import SAFETENSORS, SafetensorsFile
from anyaccel_offload.torch.model_blocks import Place, places, shared_tensors
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_torch.host_transfer import as_array

_INDEX = "model.safetensors.index.json"
_CPU = torch.device("cpu")


def checked_folder(where: str, given: Any) -> Path:
    """An offload folder that is empty, or is not there yet.

    Raises:
        StateError: it is none, or has files: those of another model would be taken for this one's.
    """
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise StateError(f"{where}offload_dir={shown(given)} is no path", hint="write offload_dir='FOLDER'")
    folder = Path(given).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StateError(
            f"{where}{str(folder)!r} is no empty folder",
            hint="give a new folder; weights that are in files of safetensors already are loaded from there by "
            "load_checkpoint_and_dispatch, and written nowhere",
        )
    return folder


def is_unwritten(place: Place, shared: Collection[int]) -> bool:
    """Whether a tensor is to rest in a file and does not yet: a parameter that one block uses."""
    stays = place.kind != "_parameters" or id(place.tensor) in shared
    return not stays and not isinstance(place.tensor, StoredTensor)


def write_blocks(model: nn.Module, blocks: Sequence[str], all_blocks: Collection[str], folder: Path) -> None:
    """Write the parameters of some blocks to a folder, and let them rest there; those in files already stay there.

    Raises:
        StateError: the folder cannot be written; what was begun is deleted, and the model is as it was.
    """
    by_tensor: dict[int, list[Place]] = {}
    shared = shared_tensors(model, all_blocks)
    for place in places(model):
        if is_unwritten(place, shared):
            by_tensor.setdefault(id(place.tensor), []).append(place)
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stored = [_write_block(folder, i, block, by_tensor, made) for i, block in enumerate(blocks, 1)]
        index = {name: path.name for path, names in stored for name in names}
        with (folder / _INDEX).open("x") as stream:
            made.append(folder / _INDEX)
            stream.write(json.dumps({"metadata": {}, "weight_map": index}))
        opened = {path: SafetensorsFile(path).tensors for path, names in stored if names}
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "give a folder with more space" if full else "give a folder that you may write to"
        raise StateError(f"{str(folder)!r} cannot be written: {error}", hint=hint) from error
    for path, names in stored:
        for name, where in names.items():
            _rest_in_file(opened[path][name], where)


def _write_block(
    folder: Path, number: int, block: str, by_tensor: dict[int, list[Place]], made: list[Path]
) -> tuple[Path, Mapping[str, list[Place]]]:
    """Write one file; gives its path and the places of its tensors by name."""
    prefix = f"{block}." if block else ""
    path = folder / f"model-{number:05d}{SAFETENSORS}"
    own = [key for key, where in by_tensor.items() if any(each.name.startswith(prefix) for each in where)]
    names = {by_tensor[key][0].name: by_tensor.pop(key) for key in own}
    if names:
        with path.open("xb") as stream:  # never over a file of another model that came in the meantime
            made.append(path)
            arrays = {name: as_array(where[0].tensor.detach().cpu().contiguous()) for name, where in names.items()}
            tensor_file.write(stream, arrays)
    return path, names


def _rest_in_file(saved: Any, where: Iterable[Place]) -> None:
    made = None
    for place in where:
        made = made or StoredTensor(saved, place.tensor.dtype, _CPU, place.tensor.requires_grad)
        vars(place.module)[place.kind][place.key] = made
