"""Storage: what saved folders ask of the place they are in; each place implements it once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol, runtime_checkable


@runtime_checkable
class Storage(Protocol):
    """A folder, and what can be done with the files right in it.

    Attributes:
        name: of the folder, as messages show it.
        replaces_at_once: whether `publish` always does; else a process that ends while it publishes may leave a part.
    """

    name: str
    replaces_at_once: bool

    def subfolder(self, name: str) -> Storage:
        """A folder in this one, which need not be there."""

    def file_name(self, file: str) -> str:
        """The whole name of a file, as messages show it."""

    def create_folder(self) -> None:
        """Make the folder and those above it, unless it is there."""

    def names(self) -> list[str] | None:
        """Of files and folders in it; None if there is no such folder."""

    def is_file(self) -> bool:
        """Whether its name is that of a file, and no folder's."""

    def size(self, file: str) -> int | None:
        """Bytes of a file; None if there is none, or it is a link or anything else that is no plain file."""

    def modified(self, file: str) -> datetime | None:
        """When a file was written, in local time; None where the store does not tell."""

    def seconds_since_change(self, file: str) -> float:
        """Of a file; 0.0 if that is not known."""

    def open(self, file: str) -> IO[bytes]:
        """A plain file, for reading."""

    def create(self, file: str) -> AbstractContextManager[IO[bytes]]:
        """A new file, for writing; it is removed if an error leaves the block, and stored when the block has ended."""

    def publish(self, file: str, contents: bytes) -> None:
        """A file with these contents, in place of the one of this name; readers see the old or the new one, whole."""

    def replacing(self, file: str) -> AbstractContextManager[Path]:
        """A path on this machine, which becomes the file of this name when the block has ended without an error."""

    def remove(self, file: str) -> None:
        """Remove a file."""

    def remove_folder(self) -> None:
        """Remove the folder and all in it, as far as that is possible."""

    def lock(self, file: str) -> Callable[[], object] | None:
        """Keep other processes from locking the file until what this gives is called; None if another has it locked."""
