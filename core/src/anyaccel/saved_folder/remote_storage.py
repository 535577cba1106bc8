"""Remote storage: a folder of any store that fsspec opens by a URL, such as a bucket."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeGuard, cast

from anyaccel.errors import ConfigError

_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "huggingface_hub",
    "smb": "smbprotocol",
    "github": "requests",
    "webhdfs": "requests",
}
"""What fsspec needs for a URL, for the hint where it is not installed."""
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(:|//)")


def is_url(folder: object) -> TypeGuard[str]:
    """Whether a name of a folder is a URL: `s3://bucket/model`, `memory://model`, `simplecache::s3://bucket/model`."""
    return isinstance(folder, str) and _URL.match(folder) is not None


def remote_storage(url: str) -> RemoteStorage:
    """Return the storage that a URL of a folder names.

    Raises:
        ConfigError: fsspec is not installed, does not support the URL, or lacks a package for it.
    """
    filesystem, path = _opened(url)
    return RemoteStorage(filesystem, path, _shown(url))


def remote_file(url: str) -> tuple[RemoteStorage, str]:
    """Return the storage of the folder that contains the file of a URL, and the file's name.

    Raises:
        ConfigError: see `remote_storage`.
    """
    filesystem, path = _opened(url)
    folder, _, name = path.rpartition("/")
    return RemoteStorage(filesystem, folder, _shown(url.rstrip("/").removesuffix(name))), name


def _shown(url: str) -> str:
    """Return a URL of a folder without a slash at its end, unless it names a whole store."""
    stripped = url.rstrip("/")
    return f"{stripped}//" if stripped.endswith(":") else stripped


def _opened(url: str) -> tuple[Any, str]:
    try:
        fsspec = import_module("fsspec.core")
    except ImportError as error:
        problem = f"{url!r} is a URL, but fsspec, which opens URLs, is not installed"
        raise ConfigError(problem, hint="python -m pip install fsspec, or use a local path") from error
    problem = f"{url!r} cannot be opened: "
    try:
        filesystem, path = fsspec.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(url.rpartition("::")[2].partition("://")[0].lower(), "")
        act = f"python -m pip install {package}" if package else "install the missing package"
        raise ConfigError(f"{problem}{error}", hint=f"{act}, or use a local path") from error
    except ValueError as error:  # no such protocol
        raise ConfigError(f"{problem}{error}", hint="use a store that fsspec supports, or a local path") from error
    return filesystem, path.rstrip("/")


class RemoteStorage:
    """A folder of a store of files; a file exists when it was sent whole.

    Object stores show a file only when it is complete. File systems, which show a partial file, receive it under
    another name and rename it, if they can.

    Args:
        filesystem: File system of fsspec.
        path: Path of the folder in it.
        url: URL of the folder, for messages.
    """

    replaces_at_once = False  # not every store does

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem, self._path, self.name = filesystem, path, url

    def subfolder(self, name: str) -> RemoteStorage:
        """Return a folder in this one, which may be missing."""
        return RemoteStorage(self._filesystem, self._place(name), self.file_name(name))

    def file_name(self, file: str) -> str:
        """Return the whole name of a file, as messages show it."""
        return f"{self.name}{'' if self.name.endswith('/') else '/'}{file}"

    def create_folder(self) -> None:
        """Make the folder, where the store knows folders."""
        self._filesystem.makedirs(self._path, exist_ok=True)

    def names(self) -> list[str] | None:
        """Return the names of files and folders in it, as the store lists them now; None if the folder does not
        exist.
        """
        self._filesystem.invalidate_cache(self._path)
        try:
            listed = self._filesystem.ls(self._path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [name for path in listed if (name := str(path).rstrip("/").rpartition("/")[2])]

    def is_file(self) -> bool:
        """Return whether its name belongs to a file, and not to a folder."""
        return bool(self._filesystem.isfile(self._path))

    def size(self, file: str) -> int | None:
        """Return the bytes of a file; None if it does not exist, or is a link or anything else than a plain file."""
        self._filesystem.invalidate_cache(self._path)
        try:
            info = self._filesystem.info(self._place(file))
        except FileNotFoundError:
            return None
        is_plain = info.get("type") == "file" and not info.get("islink")
        return int(info["size"]) if is_plain and info.get("size") is not None else None

    def modified(self, file: str) -> datetime | None:
        """Return when a file was written by the store's clock, in local time; None if the store does not report it."""
        try:
            when: datetime = self._filesystem.modified(self._place(file))
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone()
        except (NotImplementedError, AttributeError, KeyError, TypeError):
            return None

    def seconds_since_change(self, file: str) -> float:
        """Return 0.0: stores report times by their own clocks, in different ways."""
        return 0.0

    def open(self, file: str) -> IO[bytes]:
        """Return a plain file, for reading."""
        return cast(IO[bytes], self._filesystem.open(self._place(file), "rb"))

    @contextmanager
    def create(self, file: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing; it is removed if an error leaves the block, and stored when the block has
        ended.
        """
        path = self._place(file)
        try:
            with self._filesystem.open(path, "wb") as stream:
                yield stream
        except BaseException:
            self._discard(path)
            raise

    def publish(self, file: str, contents: bytes) -> None:
        """Send a file with these contents in one request."""
        self._send(file, lambda path: self._filesystem.pipe_file(path, contents))

    @contextmanager
    def replacing(self, file: str) -> Iterator[Path]:
        """Yield a path on this machine, which is sent to the store when the block has ended without an error."""
        with TemporaryDirectory() as folder:
            source = Path(folder, file)
            yield source
            self._send(file, lambda path: self._filesystem.put_file(str(source), path))

    def remove(self, file: str) -> None:
        """Remove a file."""
        self._filesystem.rm_file(self._place(file))

    def remove_temporary(self, file: re.Pattern[str]) -> None:
        """Do nothing: stores do not tell which processes are running."""

    @contextmanager
    def abandoned(self, files: Iterable[str]) -> Iterator[list[str]]:
        yield []

    def release(self) -> None:
        """Do nothing: no process removes files of others."""

    def remove_folder(self) -> None:
        """Remove the folder and all in it, if possible."""
        with suppress(OSError):
            self._filesystem.rm(self._path, recursive=True)

    def lock(self, file: str) -> Callable[[], object] | None:
        """Do nothing: stores have no locks."""
        return lambda: None

    def _place(self, file: str) -> str:
        return f"{self._path}/{file}" if self._path else file

    def _send(self, file: str, send: Callable[[str], object]) -> None:
        """Let a function send a file, which gets its name by renaming where the store does that itself."""
        # Stores without a function that moves files copy them, and an uploaded file is always complete.
        if type(self._filesystem).mv is import_module("fsspec.spec").AbstractFileSystem.mv:
            send(self._place(file))
            return
        temporary = self._place(f".{file}.{secrets.token_hex(8)}.tmp")
        try:
            send(temporary)
        except BaseException:
            self._discard(temporary)
            raise
        try:
            self._filesystem.mv(temporary, self._place(file))
        except (OSError, NotImplementedError):  # some rename to new names alone
            self._discard(temporary)
            send(self._place(file))

    def _discard(self, path: str) -> None:
        with suppress(Exception):  # the first error is the one to tell
            self._filesystem.rm_file(path)
