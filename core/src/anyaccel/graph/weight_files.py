"""Weight files: named arrays from a file, a folder of shards, a framework's own file, or a dict; and back."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.arguments import shown
from anyaccel.errors import NoBackendError, StateError
from anyaccel.install_hints import distribution_for, install_line
from anyaccel.registry import registry
from anyaccel.saved_folder import tensor_file
from anyaccel.saved_folder.shard_index import INDEX_ENDING, shard_map, weight_file_in

SAFETENSORS = ".safetensors"
FRAMEWORK_SUFFIXES = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch"}
"""Whose files these are, for the hint where no plugin reads them."""
SUFFIXES = (SAFETENSORS, *FRAMEWORK_SUFFIXES)


def read(given: Any) -> dict[str, np.ndarray]:
    """The arrays of weights by name.

    Args:
        given: a `.safetensors` file; a folder with one, or with shards and their index; such an index; a file that an
            installed plugin reads; or a mapping of names to arrays or tensors.

    Raises:
        StateError: nothing of this kind, or a damaged file.
    """
    if isinstance(given, Mapping):
        return {str(name): _host_array(name, value) for name, value in given.items()}
    path = checked_path(given)
    path = weight_file_in(path, SUFFIXES) if path.is_dir() else path
    if not path.is_file():
        raise StateError(f"there is no file {str(path)!r}", hint="give a file of weights, or a folder that has one")
    if path.name.endswith(INDEX_ENDING):
        return _read_shards(path)
    return _read_file(path)


def write(path: Path, arrays: Mapping[str, np.ndarray], file_format: str = "") -> None:
    """Write a file of weights: safetensors, or a framework's own by its ending; all at once.

    Args:
        path: of the file, in a folder that is made if it is not there.
        arrays: by name.
        file_format: for readers of safetensors that ask which framework wrote them.

    Raises:
        StateError: no installed plugin writes files of this ending, or not these arrays.
        OSError: it cannot be written.
    """
    writer = None if path.suffix == SAFETENSORS else _backend_for(path)
    if path.is_dir():
        raise StateError(f"{str(path)!r} is a folder", hint="give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    if writer is None:
        _publish(path, lambda file: _write_safetensors(file, arrays, file_format))
    else:
        _publish(path, lambda file: writer.write_weights(file, arrays))


def checked_path(given: Any) -> Path:
    """A path from what a user gave.

    Raises:
        StateError: it is none.
    """
    if not isinstance(given, (str, os.PathLike)) or not str(given):
        raise StateError(f"{shown(given)} is not a file of weights", hint="write 'weights.safetensors'")
    return Path(given).expanduser()


def _host_array(name: object, value: Any) -> np.ndarray:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        backend = registry().computing(registry().owner(value))
    except NoBackendError as error:
        problem = f"{name} is {shown(value)}, not an array"
        raise StateError(problem, hint="give names and arrays, or tensors of an installed plugin") from error
    return np.asarray(backend.to_host(value))


def _read_file(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != SAFETENSORS:
        return _backend_for(path).read_weights(path)
    try:
        with path.open("rb") as stream:
            return tensor_file.read(stream, path.stat().st_size)
    except StateError as error:
        problem = f"{str(path)!r} cannot be read as safetensors: {error.problem}"
        raise StateError(problem, hint=error.hint or "copy or download it again") from error


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], file_format: str) -> None:
    try:
        with path.open("wb") as stream:
            tensor_file.write(stream, arrays, file_format)
    except StateError as error:
        kinds = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
        problem = f"the weights cannot be written as safetensors: {error.problem}"
        raise StateError(problem, available=f"they have {kinds}", hint="convert the model first") from error


def _publish(path: Path, write_file: Callable[[Path], object]) -> None:
    """Let a function write a file, which has its name when it is complete and on the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_file(temporary)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _backend_for(path: Path) -> WeightFiles:
    backends = [backend for backend in registry().backends if isinstance(backend, WeightFiles)]
    for backend in backends:
        if path.suffix in backend.weight_suffixes:
            return backend
    distribution = distribution_for(FRAMEWORK_SUFFIXES.get(path.suffix, ""))
    readable = dict.fromkeys([SAFETENSORS, *(each for one in backends for each in one.weight_suffixes)])
    raise StateError(
        f"no installed plugin has files that end in {path.suffix!r}, as {str(path)!r}",
        available=", ".join(readable),
        hint=install_line(distribution) if distribution else f"use {SAFETENSORS}",
    )


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """The arrays of all shards of an index, which must be in its folder and hold what it says."""
    weight_map = shard_map(index, SUFFIXES)
    arrays: dict[str, np.ndarray] = {}
    for shard in dict.fromkeys(weight_map.values()):
        if not (index.parent / shard).is_file():
            raise StateError(f"{str(index)!r} names {shard!r}, which is not there", hint="copy or download it again")
        arrays.update(_read_file(index.parent / shard))
    different = sorted(weight_map.keys() ^ arrays.keys())
    if different:
        problem = f"{str(index)!r} and its shards differ in {', '.join(different)}"
        raise StateError(problem, hint="copy or download them again")
    return arrays
