"""Saved folder: written whole, or not at all; read whole, with every byte checked.

The manifest names every other file, with its size and hashes. Files of arrays have unique names and are never
overwritten: a reader during a write gets the old contents or the new, never a mixture.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, StateError
from anyaccel.saved_folder import shards
from anyaccel.saved_folder.manifest import (
    ARRAYS_FILE,
    MANIFEST,
    PREVIOUS,
    ArraysFile,
    arrays_files,
    encode,
    is_saved,
    keep_previous,
    load,
    part_of,
    parts_of,
)
from anyaccel.saved_folder.remote_storage import is_url, remote_file, remote_storage
from anyaccel.saved_folder.storage import LocalStorage, Storage

GROUP = "state"
_WRITTEN = re.compile(rf"{re.escape(MANIFEST)}|{re.escape(shards.INDEX)}|{ARRAYS_FILE.pattern}")
"""Names of the files that `write` writes."""


def write(
    folder: str | os.PathLike[str] | Storage,
    parts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    run: Mapping[str, np.ndarray] | None = None,
    *,
    largest_shard: int = shards.LARGEST_SHARD,
    pause: Callable[[], object] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write plain data and arrays into a folder, atomically: it has the new content or, after a failure, the previous
    one.

    Args:
        folder: The folder, created if it does not exist.
        parts: Plain data by name, for the manifest.
        arrays: Arrays of numbers, by name; they must not change during the call.
        run: More arrays, which only a resumed run needs, in separate files.
        largest_shard: Maximum bytes of arrays in one file, unless a single one has more.
        pause: Function called after each MB, by a writer that leaves the processors to others.
        versions: Versions of more software that created the arrays, by name, in addition to this library and NumPy.

    Raises:
        ConfigError: the folder has a manifest or an index of something else, or a part that would be lost; or `parts`
            are not plain.
        StateError: arrays that safetensors does not support.
        OSError: the folder cannot be written to.
    """
    storage = storage_of(folder)
    if storage.is_file():
        raise ConfigError(f"{storage.name!r} is a file", hint="choose a name for a new folder")
    if shards.has_foreign_index(storage):
        problem = f"{storage.name!r} has a {shards.INDEX} of another program"
        raise ConfigError(problem, hint="choose a name for a new folder")
    earlier: set[str] = set()  # the files of arrays that the folder has now
    if is_saved(storage):
        manifest = load(storage)
        lost = sorted(parts_of(manifest) - set(parts))
        if lost:
            problem = f"{storage.name!r} also holds {', '.join(lost)}, which would be lost"
            raise ConfigError(problem, hint="choose a name for a new folder, or remove this one first")
        earlier = {file.file for file in arrays_files(storage, manifest)}
    storage.create_folder()
    files: list[ArraysFile] = []
    try:
        for group, group_arrays in ((GROUP, arrays), ("run", run or {})):
            for file in shards.written(storage, group, group_arrays, largest_shard, pause):
                files.append(file)
        text = encode(storage.name, parts, files, versions or {})
        keep_previous(storage)
        storage.publish(MANIFEST, text)
    except BaseException:
        storage.release()
        with suppress(OSError, ConfigError):  # the first error is the one to tell
            _remove_unused(storage, {file.file for file in files})
        raise
    storage.release()
    storage.publish(shards.INDEX, shards.index_text([file for file in files if file.group == GROUP], arrays))
    _remove_unused(storage, {*earlier, PREVIOUS})


def read(
    folder: str | os.PathLike[str] | Storage, part: str, group: str = GROUP, *, mapped: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the manifest of a folder, which must have `part`, and its arrays, after checking every byte.

    Args:
        folder: Folder that was written.
        part: A name of the manifest.
        group: `"state"`, or `"run"` for the arrays that only a run needs.
        mapped: Whether arrays may be on a private mapping of the files, for callers that copy them at once. Otherwise
            they are read-only and in separate memory: they do not change when the folder is replaced or removed.

    Raises:
        ConfigError: no such folder, not a manifest of this library, one of a newer version, or one that was changed.
        StateError: a file of arrays is missing, was changed, or is incomplete.
    """
    storage = storage_of(folder)
    storage.remove_temporary(_WRITTEN)
    while True:
        manifest = load(storage)
        part_of(storage, manifest, part)
        arrays: dict[str, np.ndarray] = {}
        try:
            for file in arrays_files(storage, manifest):
                if file.group == group:
                    more = shards.read(storage, file, mapped=mapped)
                    twice = sorted(arrays.keys() & more.keys())
                    if twice:
                        raise StateError(f"tensor {', '.join(twice)} is in two files of arrays", hint="save again")
                    arrays.update(more)
            return manifest, arrays
        except StateError:
            if load(storage) == manifest:  # else it was replaced meanwhile, and the files that it named are gone
                raise


def part(folder: str | os.PathLike[str] | Storage, name: str) -> Any:
    """Return a part of the manifest of a folder, without its arrays.

    Raises:
        ConfigError: as `read`.
    """
    storage = storage_of(folder)
    return part_of(storage, load(storage), name)


def publish(file: Path, contents: bytes) -> None:
    """Write a file atomically: it is written under another name, to the disk, and then renamed."""
    LocalStorage(file.parent).publish(file.name, contents)


def _remove_unused(storage: Storage, replaced: set[str]) -> None:
    """Remove the replaced files, and what writers that were killed have left behind."""
    storage.remove_temporary(_WRITTEN)
    names = storage.names() or ()
    with storage.abandoned([name for name in names if ARRAYS_FILE.fullmatch(name)]) as abandoned:
        # The manifest is read after the files are locked: a writer releases its files when the manifest names them.
        unused = {*names} & replaced | {*abandoned}
        if is_saved(storage):
            unused -= {file.file for file in arrays_files(storage, load(storage))}
        if storage.replaces_at_once:
            unused -= {PREVIOUS}
        for name in unused:
            with suppress(OSError):  # another process may read it, or have removed it
                storage.remove(name)


# -- which storage a name of a folder or of a file stands for ----------------------------------------------------------


_PATH_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/[^/]")
_LOCAL = re.compile(r"(file|local)://(localhost(?=/))?", re.IGNORECASE)


def storage_of(folder: Any) -> Storage:
    """Return the storage of a folder: itself, that of a path, or that of a URL that fsspec opens.

    Raises:
        ConfigError: it is not a name of a folder; or a URL, and fsspec is not installed or does not know it.
    """
    if isinstance(folder, Storage):
        return folder
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ConfigError(f"{shown(folder)} is not a folder", hint="write save('FOLDER')")
    path = local_path(folder)
    return remote_storage(str(folder)) if path is None else LocalStorage(path)


def storage_of_file(file: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Return the storage of the folder that contains a file, and the file's name; a symbolic link counts as the file.

    Raises:
        ConfigError: it is a URL, and fsspec is not installed or does not know it.
    """
    path = local_path(file)
    if path is None:
        return remote_file(str(file))
    return LocalStorage(path.parent, follows_links=True), path.name


def local_path(name: str | os.PathLike[str]) -> Path | None:
    """Return the path of a name, also of a `file://` URL; None for a URL of another place.

    Raises:
        ConfigError: a Path was created from a URL.
    """
    if not is_url(name):
        lost = None if isinstance(name, str) else _PATH_OF_URL.match(Path(name).as_posix())
        if lost is not None:
            hint = f"pass the text {Path(name).as_posix().replace(':/', '://', 1)!r}"
            raise ConfigError(f"{str(name)!r} is a Path of a URL, which has lost a slash", hint=hint)
        return Path(name).expanduser()
    begin = _LOCAL.match(name)
    return None if begin is None else Path(url2pathname(name[begin.end() :]))
