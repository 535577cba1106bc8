"""Which storage a name of a folder stands for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.saved_folder.local_storage import LocalStorage
from anyaccel.saved_folder.remote_storage import is_url, remote_storage
from anyaccel.saved_folder.storage import Storage


def storage_of(folder: Any) -> Storage:
    """The storage of a folder: itself, that of a path, or that of a URL that fsspec opens.

    Raises:
        ConfigError: it is no name of a folder; or a URL, and fsspec is not installed or does not know it.
    """
    if isinstance(folder, Storage):
        return folder
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ConfigError(f"{shown(folder)} is not a folder", hint="write save('FOLDER')")
    return remote_storage(folder) if is_url(folder) else LocalStorage(Path(folder).expanduser())
