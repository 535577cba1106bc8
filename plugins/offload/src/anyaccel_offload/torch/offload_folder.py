"""Offload folders: safetensors files with offloaded weights, which are read whenever they are needed."""

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


def checked_folder(where: str, path: Any) -> Path:
    """Return an offload folder that is empty, or does not exist yet.

    Raises:
        StateError: The path is not a folder, or it has files, which could belong to another model.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise StateError(f"{where}offload_dir={shown(path)} is not a path", hint="write offload_dir='FOLDER'")
    folder = Path(path).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StateError(
            f"{where}{str(folder)!r} is not an empty folder",
            hint="use a new folder; for weights that are already in safetensors files, use "
            "load_checkpoint_and_dispatch, which reads them without writing",
        )
    return folder


def is_unwritten(place: Place, shared: Collection[int]) -> bool:
    """Return whether a tensor must still be written to a file: a parameter that a single block uses."""
    stays = place.kind != "_parameters" or id(place.tensor) in shared
    return not stays and not isinstance(place.tensor, StoredTensor)


def write_blocks(model: nn.Module, blocks: Sequence[str], all_blocks: Collection[str], folder: Path) -> None:
    """Write the parameters of some blocks to a folder, and offload them; parameters in files stay there.

    Raises:
        StateError: The folder cannot be written. Partial files are deleted, and the model is unchanged.
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
        hint = "use a folder with more space" if full else "use a writable folder"
        raise StateError(f"{str(folder)!r} cannot be written: {error}", hint=hint) from error
    for path, names in stored:
        for name, where in names.items():
            _rest_in_file(opened[path][name], where)


def _write_block(
    folder: Path, number: int, block: str, by_tensor: dict[int, list[Place]], made: list[Path]
) -> tuple[Path, Mapping[str, list[Place]]]:
    """Write one file, and return its path and the places of its tensors by name."""
    prefix = f"{block}." if block else ""
    path = folder / f"model-{number:05d}{SAFETENSORS}"
    keys = [key for key, where in by_tensor.items() if any(place.name.startswith(prefix) for place in where)]
    names = {by_tensor[key][0].name: by_tensor.pop(key) for key in keys}
    if names:
        with path.open("xb") as stream:  # never overwrite a file of another model that was written in the meantime
            made.append(path)
            arrays = {name: as_array(where[0].tensor.detach().cpu().contiguous()) for name, where in names.items()}
            tensor_file.write(stream, arrays)
    return path, names


def _rest_in_file(saved: Any, where: Iterable[Place]) -> None:
    made = None
    for place in where:
        made = made or StoredTensor(saved, place.tensor.dtype, _CPU, place.tensor.requires_grad)
        vars(place.module)[place.kind][place.key] = made
