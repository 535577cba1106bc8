"""Storage: the operations of saved folders on a place; each place implements them once."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:4]
_TOKEN = re.compile(r"(?<![0-9a-f])([0-9a-f]{4})[0-9a-f]{12}(?![0-9a-f])")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f-]+\.tmp")
_LEFT_BEHIND_SECONDS = 3600.0  # no writer takes so long


def unique_token() -> str:
    """Return 16 hexadecimal digits for the name of a new file, which begin with four of this machine."""
    return f"{_MACHINE}{secrets.token_hex(6)}"


@runtime_checkable
class Storage(Protocol):
    """A folder, and the operations on the files directly in it.

    Attributes:
        name: Name of the folder, as messages show it.
        replaces_at_once: Whether `publish` is always atomic; otherwise a process that ends while it publishes may leave
            a part.
    """

    name: str
    replaces_at_once: bool

    def subfolder(self, name: str) -> Storage:
        """Return a folder in this one, which may be missing."""

    def file_name(self, file: str) -> str:
        """Return the whole name of a file, as messages show it."""

    def create_folder(self) -> None:
        """Create the folder and its parents, unless it exists."""

    def names(self) -> list[str] | None:
        """Return the names of files and folders in it; None if the folder does not exist."""

    def is_file(self) -> bool:
        """Return whether its name belongs to a file, and not to a folder."""

    def size(self, file: str) -> int | None:
        """Return the bytes of a file; None if it does not exist, or is a link or anything else than a plain file."""

    def modified(self, file: str) -> datetime | None:
        """Return when a file was written, in local time; None if the store does not report it."""

    def seconds_since_change(self, file: str) -> float:
        """Return the age of a file in seconds; 0.0 if unknown."""

    def open(self, file: str) -> IO[bytes]:
        """Return a plain file, for reading."""

    def create(self, file: str) -> AbstractContextManager[IO[bytes]]:
        """Return a new file, for writing; it is removed if an error leaves the block, and stored when the block has
        ended.
        """

    def publish(self, file: str, contents: bytes) -> None:
        """Write or replace a file atomically; readers see the old or the new one, whole."""

    def replacing(self, file: str) -> AbstractContextManager[Path]:
        """Return a context with a path on this machine, which becomes the file when the block has ended without an
        error.
        """

    def remove(self, file: str) -> None:
        """Remove a file."""

    def remove_temporary(self, file: re.Pattern[str]) -> None:
        """Remove what killed processes left of files that they were writing, by a pattern of the files' names."""

    def abandoned(self, files: Iterable[str]) -> AbstractContextManager[list[str]]:
        """Return a context with those of the files that no process is writing or has created and not released."""

    def release(self) -> None:
        """Release the files that were created: from now on, those that no manifest names may be removed."""

    def remove_folder(self) -> None:
        """Remove the folder and all in it, if possible."""

    def lock(self, file: str) -> Callable[[], object] | None:
        """Keep other processes from locking the file until the returned function is called; None if another has it
        locked.
        """


# -- Local storage: a folder of a file system; what is stored is on the disk, and replaced by renaming -----------------


class LocalStorage:
    """A folder of this machine's file systems.

    Args:
        path: Path, which may be missing.
        follows_links: Whether a symbolic link to a file counts as the file.
    """

    replaces_at_once = True

    def __init__(self, path: Path, *, follows_links: bool = False) -> None:
        self.path, self.name, self._follows_links = path, str(path), follows_links
        self._claims: list[int] = []  # descriptors that keep the locks of created files

    def subfolder(self, name: str) -> LocalStorage:
        """Return a folder in this one, which may be missing."""
        return LocalStorage(self.path / name, follows_links=self._follows_links)

    def file_name(self, file: str) -> str:
        """Return the whole name of a file, as messages show it."""
        return str(self.path / file)

    def create_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str] | None:
        return [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else None

    def is_file(self) -> bool:
        return self.path.is_file()

    def size(self, file: str) -> int | None:
        try:
            status = (self.path / file).stat(follow_symlinks=self._follows_links)
        except (OSError, ValueError):  # not there, or removed a moment ago; ValueError of a name with a null character
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def modified(self, file: str) -> datetime | None:
        return datetime.fromtimestamp((self.path / file).stat().st_mtime).astimezone()

    def seconds_since_change(self, file: str) -> float:
        return time.time() - (self.path / file).stat().st_mtime

    def open(self, file: str) -> IO[bytes]:
        """Return a plain file, for reading."""
        return (self.path / file).open("rb", buffering=0)

    @contextmanager
    def create(self, file: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing; it is removed if an error leaves the block, and on the disk when it has
        ended.
        """
        with self._temporary(file) as stream:
            yield stream
            if os.name == "posix":
                self._claims.append(os.dup(stream.fileno()))

    def publish(self, file: str, contents: bytes) -> None:
        """Write a file atomically: it is written under another name, to the disk, and then renamed."""
        with self._temporary(file) as stream:
            stream.write(contents)

    @contextmanager
    def replacing(self, file: str) -> Iterator[Path]:
        """Yield a path in the same folder, which is renamed to the file when the block has ended without an error."""
        with self._temporary(file) as stream:
            yield Path(stream.name)

    @contextmanager
    def _temporary(self, file: str) -> Iterator[IO[bytes]]:
        """Yield a file with another name, which is renamed to the file when the block has ended without an error."""
        self.remove_temporary(re.compile(re.escape(file)))
        temporary = self.path / f".{file}.{unique_token()}.tmp"
        while True:  # it is locked until it is closed: of a file without a lock the process was killed
            stream = temporary.open("xb", buffering=0)
            if os.name == "nt" or (_lock(stream) and os.fstat(stream.fileno()).st_nlink):
                break
            stream.close()  # another process took it for that of a killed one, before it was locked
            temporary.unlink(missing_ok=True)
        try:
            with stream:
                yield stream
                os.fsync(stream.fileno())
            temporary.replace(self.path / file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if os.name == "posix":
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove_temporary(self, file: re.Pattern[str]) -> None:
        written = {name: found[1] for name in self.names() or () if (found := _TEMPORARY.fullmatch(name))}
        names = [name for name, target in written.items() if file.fullmatch(target)]
        with self.abandoned(names) as abandoned:
            for name in abandoned:
                with suppress(OSError):  # another process has removed it, or the folder is read-only
                    self.remove(name)

    @contextmanager
    def abandoned(self, files: Iterable[str]) -> Iterator[list[str]]:
        with ExitStack() as stack:
            yield [file for file in files if self._is_abandoned(file, stack)]

    def _is_abandoned(self, file: str, locks: ExitStack) -> bool:
        """Whether no process is writing a file: checked by its lock on this machine, otherwise by its age."""
        try:
            if os.name == "posix" and _TOKEN.findall(file)[-1:] == [_MACHINE]:
                stream = locks.enter_context((self.path / file).open("rb"))
                with suppress(BlockingIOError):
                    import fcntl

                    fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                return False
        except OSError:  # removed a moment ago; not readable; a file system without locks
            pass
        with suppress(OSError):
            return self.seconds_since_change(file) > _LEFT_BEHIND_SECONDS
        return False

    def release(self) -> None:
        claims, self._claims = self._claims, []
        for descriptor in claims:
            os.close(descriptor)

    def remove(self, file: str) -> None:
        """Remove a file."""
        (self.path / file).unlink()

    def remove_folder(self) -> None:
        """Remove the folder and all in it, if possible."""
        shutil.rmtree(self.path, ignore_errors=True)

    def lock(self, file: str) -> Callable[[], object] | None:
        stream = (self.path / file).open("ab")
        if _lock(stream):
            return stream.close
        stream.close()
        return None


def _lock(stream: IO[bytes]) -> bool:
    """Lock a file for this process, which the system undoes when it ends; False if another has it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:  # what Windows says
        return False
    except OSError:  # a file system without locks
        return True
    return True
