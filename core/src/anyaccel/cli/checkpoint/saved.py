"""Saved: one saved graph or checkpoint, by its manifest and the headers of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from anyaccel.errors import ConfigError, StateError
from anyaccel.phases.checkpointing.position import PART
from anyaccel.phases.checkpointing.run_folder import RunFolder
from anyaccel.saved_folder import MANIFEST, Storage, is_saved, storage_of, tensor_file
from anyaccel.saved_folder.manifest import ArraysFile, arrays_files, load


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved folder.

    Attributes:
        name: Name of the folder, as messages show it.
        storage: The folder.
        manifest: Its manifest.
        files: Its files of arrays.
    """

    name: str
    storage: Storage
    manifest: Mapping[str, Any]
    files: tuple[ArraysFile, ...]

    @property
    def position(self) -> Mapping[str, Any]:
        """The position of its phase, as plain data; empty if it is not a checkpoint."""
        position = self.manifest.get(PART)
        return position if isinstance(position, Mapping) else {}

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of its graph; empty if it does not have a graph."""
        config = self.manifest.get("graph")
        return config if isinstance(config, Mapping) else {}

    @property
    def size(self) -> int:
        """Bytes of its files of arrays."""
        return sum(file.size for file in self.files)

    @property
    def written(self) -> datetime | None:
        """When it was written, in local time; None where its store does not tell."""
        return self.storage.modified(MANIFEST)

    def tensors(self) -> dict[str, tuple[str, tensor_file.TensorEntry]]:
        """Group and entry of each of its arrays, by name; those that only a run needs start with `run:`.

        Raises:
            StateError: a file is missing or has no such header.
        """
        entries: dict[str, tuple[str, tensor_file.TensorEntry]] = {}
        for file in self.files:
            prefix = "" if file.group == "state" else f"{file.group}:"
            for name, entry in _contents(self.storage, file).items():
                entries[f"{prefix}{name}"] = file.group, entry
        return entries


def _contents(storage: Storage, file: ArraysFile) -> dict[str, tensor_file.TensorEntry]:
    name = storage.file_name(file.file)
    if storage.size(file.file) is None:
        raise StateError(f"{name!r} is missing or not a regular file", hint="copy the whole folder")
    try:
        with storage.open(file.file) as stream:
            return tensor_file.contents(stream, file.size)
    except StateError as error:
        raise StateError(f"{name!r} cannot be read: {error.problem}", hint="copy the folder again") from error


def run_names(folder: str) -> list[str]:
    """Return the complete checkpoints in the folder of a run, oldest first.

    Raises:
        ConfigError: it has no complete checkpoint.
    """
    names = RunFolder(folder).names()
    if names:
        return names
    storage = storage_of(folder)
    there = storage.names()
    if is_saved(storage):
        hint = f"it is a single saved graph or checkpoint: use anyaccel checkpoint show {folder}"
    else:
        hint = "pass the folder of a Checkpoint(...)"
    if not there:
        cause = "the folder does not exist" if there is None else "the folder is empty"
        raise ConfigError(f"{storage.name!r} has no checkpoints", cause=cause, hint=hint)
    cause = f"it has {', '.join(sorted(there)[:10])}"
    raise ConfigError(f"{storage.name!r} has no checkpoints", cause=cause, hint=hint)


def read_saved(storage: Storage) -> Saved:
    """Return one saved graph or checkpoint.

    Raises:
        ConfigError: the folder has no manifest of this library, or a damaged one.
    """
    whole = load(storage)
    return Saved(storage.name, storage, whole, tuple(arrays_files(storage, whole)))


def find_saved(folder: str) -> Saved:
    """Return a saved graph or checkpoint; of the folder of a run, the newest checkpoint.

    Raises:
        ConfigError: it is neither.
    """
    storage = storage_of(folder)
    if not is_saved(storage):
        storage = storage.subfolder(run_names(folder)[-1])
    return read_saved(storage)
