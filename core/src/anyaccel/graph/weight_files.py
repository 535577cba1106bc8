"""Weight files: named arrays from a file, a folder of shards, a framework's own file, or a dict; and back.

A file or a folder may also be a URL that fsspec opens.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.arguments import shown
from anyaccel.errors import NoBackendError, StateError
from anyaccel.install_hints import distribution_for, install_line
from anyaccel.registry import registry
from anyaccel.saved_folder import Storage, storage_of_file, tensor_file
from anyaccel.saved_folder.shards import INDEX_ENDING, shard_map, weight_file_in
from anyaccel.saved_folder.storage import LocalStorage

SAFETENSORS = ".safetensors"
FRAMEWORK_SUFFIXES = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch"}
"""Whose files these are, for the hint where no plugin reads them."""
SUFFIXES = (SAFETENSORS, *FRAMEWORK_SUFFIXES)
_PIECE = 2**20


def read(weights: Any) -> dict[str, np.ndarray]:
    """Return the arrays of weights by name, to copy at once: they may be on a private mapping of a file.

    Args:
        weights: A `.safetensors` file; a folder with one, or with shards and their index; such an index; a file that an
            installed plugin reads; or a mapping of names to arrays or tensors.

    Raises:
        StateError: nothing of this kind, or a damaged file.
    """
    if isinstance(weights, Mapping):
        return {str(name): _host_array(name, value) for name, value in weights.items()}
    storage, name = storage_of_file(checked_path(weights))
    if storage.size(name) is not None:
        storage.remove_temporary(re.compile(re.escape(name)))
    else:
        folder = storage.subfolder(name)
        if folder.names() is None:
            problem = f"there is no file {storage.file_name(name)!r}"
            raise StateError(problem, hint="pass a weight file, or a folder with one")
        storage, name = folder, weight_file_in(folder, SUFFIXES)
    if not name.endswith(INDEX_ENDING):
        return _read_file(storage, name)
    # All shards of an index are in its folder, and match the index.
    weight_map, whole = shard_map(storage, name, SUFFIXES), repr(storage.file_name(name))
    arrays: dict[str, np.ndarray] = {}
    for shard in dict.fromkeys(weight_map.values()):
        if storage.size(shard) is None:
            raise StateError(f"{whole} names {shard!r}, which is missing", hint="copy or download it again")
        arrays.update(_read_file(storage, shard))
    different = sorted(weight_map.keys() ^ arrays.keys())
    if different:
        problem = f"{whole} and its shards differ in {', '.join(different)}"
        raise StateError(problem, hint="copy or download them again")
    return arrays


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], file_format: str = "") -> None:
    """Write a file of weights: safetensors, or a framework's own by its ending; atomically.

    Args:
        path: Path of the file, or a URL. A missing folder is created.
        arrays: Arrays by name.
        file_format: Name of the framework that wrote the file, for readers of safetensors that ask for it.

    Raises:
        StateError: no installed plugin writes files of this ending, or not these arrays.
        ConfigError: a URL that fsspec does not open.
        OSError: it cannot be written.
    """
    storage, name = storage_of_file(path)
    writer = None if _suffix(storage, name) == SAFETENSORS else _files_for(storage, name)
    if storage.size(name) is None and storage.subfolder(name).names() is not None:
        raise StateError(f"{storage.file_name(name)!r} is a folder", hint="pass the name of a file")
    storage.create_folder()
    with storage.replacing(name) as file:
        if writer is None:
            try:
                with file.open("wb") as stream:
                    tensor_file.write(stream, arrays, file_format)
            except StateError as error:
                kinds = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
                problem = f"the weights cannot be written as safetensors: {error.problem}"
                raise StateError(problem, cause=f"they have {kinds}", hint="convert the model first") from error
        else:
            writer.write_weights(file, arrays)


def checked_path(path: Any) -> str | os.PathLike[str]:
    """Return the name of a file or a folder, or its URL, as a user gave it.

    Raises:
        StateError: it is not a path or URL.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise StateError(f"{shown(path)} is not a weight file", hint="write 'weights.safetensors'")
    return path


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or a folder of a name, or at a URL.

    Raises:
        ConfigError: a URL that fsspec does not open.
    """
    storage, name = storage_of_file(path)
    return storage.size(name) is not None or storage.subfolder(name).names() is not None


def _host_array(name: object, value: Any) -> np.ndarray:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        backend = registry().computing(registry().owner(value))
    except NoBackendError as error:
        problem = f"{name} is {shown(value)}, not an array"
        raise StateError(problem, hint="pass names and arrays, or tensors of an installed plugin") from error
    return np.asarray(backend.to_host(value))


def _suffix(storage: Storage, name: str) -> str:
    """Return the extension of a file's name, without the query of a download link."""
    is_local = isinstance(storage, LocalStorage)
    return PurePosixPath(name if is_local else name.partition("?")[0]).suffix


def _read_file(storage: Storage, name: str) -> dict[str, np.ndarray]:
    file = storage.file_name(name)
    if _suffix(storage, name) != SAFETENSORS:
        files = _files_for(storage, name)
        with _on_disk(storage, name) as path:
            try:
                return files.read_weights(path)
            except StateError as error:  # which has the name of the copy
                problem = error.problem.replace(str(path), file)
                raise StateError(problem, available=error.available, hint=error.hint) from error
    size = storage.size(name) or 0
    try:
        with storage.open(name) as stream:
            return tensor_file.read(stream, size, mapped=True)
    except StateError as error:
        problem = f"{file!r} cannot be read as safetensors: {error.problem}"
        raise StateError(problem, hint=error.hint or "copy or download it again") from error


@contextmanager
def _on_disk(storage: Storage, name: str) -> Iterator[Path]:
    """Yield the path of a file on this machine: its own, or the path of a copy, which is removed afterwards."""
    if isinstance(storage, LocalStorage):
        yield storage.path / name
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        with storage.open(name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, _PIECE)
        yield path


def _files_for(storage: Storage, name: str) -> WeightFiles:
    suffix = _suffix(storage, name)
    formats = list(filter(None, (backend.capability(WeightFiles) for backend in registry().backends)))
    for files in formats:
        if suffix in files.weight_suffixes:
            return files
    distribution = distribution_for(FRAMEWORK_SUFFIXES.get(suffix, ""))
    readable = dict.fromkeys([SAFETENSORS, *(suffix for files in formats for suffix in files.weight_suffixes)])
    raise StateError(
        f"no installed plugin reads {suffix!r} files such as {storage.file_name(name)!r}",
        available=", ".join(readable),
        hint=install_line(distribution) if distribution else f"use {SAFETENSORS}",
    )
