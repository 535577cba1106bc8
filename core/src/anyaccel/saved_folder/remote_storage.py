"""Remote storage: a folder of any store that fsspec opens by a URL, such as a bucket."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, Any, TypeGuard, cast

from anyaccel.errors import ConfigError

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(:|//)")


def is_url(folder: object) -> TypeGuard[str]:
    """Whether a name of a folder is a URL: `s3://bucket/model`, `memory://model`, `simplecache::s3://bucket/model`."""
    return isinstance(folder, str) and _URL.match(folder) is not None


def remote_storage(url: str) -> RemoteStorage:
    """The storage that a URL names.

    Raises:
        ConfigError: fsspec is not installed, does not know the URL, or lacks what it needs for it.
    """
    try:
        fsspec = import_module("fsspec.core")
    except ImportError as error:
        problem = f"{url!r} is a URL, and fsspec, which opens URLs, is not installed"
        raise ConfigError(problem, hint="python -m pip install fsspec, or name a folder of this machine") from error
    try:
        filesystem, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:  # fsspec says in both what it lacks
        problem = f"{url!r} cannot be opened: {error}"
        hint = "install what it asks for, or name a folder of this machine"
        raise ConfigError(problem, hint=hint) from error
    return RemoteStorage(filesystem, path.rstrip("/"), url.rstrip("/"))


class RemoteStorage:
    """A folder of a store of files; a file is there when it was sent whole.

    Args:
        filesystem: of fsspec.
        path: of the folder in it.
        url: of the folder, for messages.
    """

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem, self._path, self.name = filesystem, path, url

    def subfolder(self, name: str) -> RemoteStorage:
        """A folder in this one, which need not be there."""
        return RemoteStorage(self._filesystem, f"{self._path}/{name}", f"{self.name}/{name}")

    def file_name(self, file: str) -> str:
        """The whole name of a file, as messages show it."""
        return f"{self.name}/{file}"

    def create_folder(self) -> None:
        """Make the folder, where the store knows folders."""
        self._filesystem.makedirs(self._path, exist_ok=True)

    def names(self) -> list[str] | None:
        """Of files and folders in it, as the store lists them now; None if there is no such folder."""
        self._filesystem.invalidate_cache(self._path)
        try:
            listed = self._filesystem.ls(self._path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [name for path in listed if (name := str(path).rstrip("/").rpartition("/")[2])]

    def is_file(self) -> bool:
        """Whether its name is that of a file, and no folder's."""
        return bool(self._filesystem.isfile(self._path))

    def size(self, file: str) -> int | None:
        """Bytes of a file; None if there is none, or it is a link or anything else that is no plain file."""
        self._filesystem.invalidate_cache(self._path)
        try:
            info = self._filesystem.info(f"{self._path}/{file}")
        except FileNotFoundError:
            return None
        is_plain = info.get("type") == "file" and not info.get("islink")
        return int(info["size"]) if is_plain and info.get("size") is not None else None

    def seconds_since_change(self, file: str) -> float:
        """0.0: stores tell times by their own clocks, in different ways."""
        return 0.0

    def open(self, file: str) -> IO[bytes]:
        """A plain file, for reading."""
        return cast(IO[bytes], self._filesystem.open(f"{self._path}/{file}", "rb"))

    @contextmanager
    def create(self, file: str) -> Iterator[IO[bytes]]:
        """A new file, for writing; it is removed if an error leaves the block, and stored when the block has ended."""
        path = f"{self._path}/{file}"
        try:
            with self._filesystem.open(path, "wb") as stream:
                yield stream
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                self._filesystem.rm_file(path)
            raise

    def publish(self, file: str, contents: bytes) -> None:
        """A file with these contents, sent in one piece."""
        self._filesystem.pipe_file(f"{self._path}/{file}", contents)

    def remove(self, file: str) -> None:
        """Remove a file."""
        self._filesystem.rm_file(f"{self._path}/{file}")

    def remove_folder(self) -> None:
        """Remove the folder and all in it, as far as that is possible."""
        with suppress(OSError):
            self._filesystem.rm(self._path, recursive=True)

    def lock(self, file: str) -> Callable[[], object] | None:
        """Nothing: stores have no locks."""
        return lambda: None
