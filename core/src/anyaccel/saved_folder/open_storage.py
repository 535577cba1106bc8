"""Which storage a name of a folder or of a file stands for."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.saved_folder.local_storage import LocalStorage
from anyaccel.saved_folder.remote_storage import is_url, remote_file, remote_storage
from anyaccel.saved_folder.storage import Storage

_PATH_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/[^/]")
_LOCAL = re.compile(r"(file|local)://(localhost(?=/))?", re.IGNORECASE)


def storage_of(folder: Any) -> Storage:
    """The storage of a folder: itself, that of a path, or that of a URL that fsspec opens.

    Raises:
        ConfigError: it is no name of a folder; or a URL, and fsspec is not installed or does not know it.
    """
    if isinstance(folder, Storage):
        return folder
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ConfigError(f"{shown(folder)} is not a folder", hint="write save('FOLDER')")
    path = local_path(folder)
    return remote_storage(str(folder)) if path is None else LocalStorage(path)


def storage_of_file(file: str | os.PathLike[str]) -> tuple[Storage, str]:
    """The storage of the folder in which a file is, and the file's name; a symbolic link to a file counts as the file.

    Raises:
        ConfigError: it is a URL, and fsspec is not installed or does not know it.
    """
    path = local_path(file)
    if path is None:
        return remote_file(str(file))
    return LocalStorage(path.parent, follows_links=True), path.name


def local_path(name: str | os.PathLike[str]) -> Path | None:
    """The path that a name stands for, also as a `file://` URL; None for a URL of another place.

    Raises:
        ConfigError: a Path was made of a URL.
    """
    if not is_url(name):
        lost = None if isinstance(name, str) else _PATH_OF_URL.match(Path(name).as_posix())
        if lost is not None:
            hint = f"give the text {Path(name).as_posix().replace(':/', '://', 1)!r}"
            raise ConfigError(f"{str(name)!r} is a Path of a URL, which has lost a slash", hint=hint)
        return Path(name).expanduser()
    begin = _LOCAL.match(name)
    return None if begin is None else Path(url2pathname(name[begin.end() :]))
