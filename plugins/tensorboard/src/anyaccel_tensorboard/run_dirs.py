"""A new folder for each run, with a name that is safe in any file system."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

from anyaccel.errors import ConfigError

_UNSAFE = re.compile(r"[^\w+=,-]")  # \w keeps letters of any language
_RESERVED = re.compile(r"(?i)con|prn|aux|nul|(com|lpt)[0-9¹²³]")  # reserved file names on Windows
_MAX_BYTES = 100


def as_folder(folder: Any, setting: str) -> Path:
    """Return a path to a local folder; `~` is the user's home. `setting` says in errors where it was given.

    Raises:
        ConfigError: it is not one.
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise ConfigError(f"{setting}: {folder!r} is not a folder", hint="name a local folder, such as 'runs'")
    text = os.fspath(folder)
    if not isinstance(text, str) or "://" in text or "\0" in text:
        raise ConfigError(f"{setting}: {text!r} is not a local folder", hint="name a local folder, such as 'runs'")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{setting}: {text!r} starts with an unknown home folder", hint="write the folder without '~'"
        ) from error


def safe_name(label: str) -> str:
    """Return a label as the name of a folder; unsafe characters become `_`."""
    name = _UNSAFE.sub("_", label).encode("utf-8")[:_MAX_BYTES].decode("utf-8", errors="ignore")
    return f"_{name}" if not name or _RESERVED.fullmatch(name) else name


def create_run_dir(root: Path, group: str, label: str) -> Path:
    """Make the folder `root/GROUP/LABEL-N`, with the first unused N above the existing ones.

    Safe with several processes: each gets its own folder.

    Raises:
        OSError: it cannot be made.
    """
    parent, name = root / safe_name(group), safe_name(label)
    parent.mkdir(parents=True, exist_ok=True)
    suffixes = (path.name.removeprefix(f"{name}-") for path in parent.iterdir() if path.name.startswith(f"{name}-"))
    last = max((int(suffix) for suffix in suffixes if re.fullmatch("[0-9]{1,18}", suffix)), default=0)
    for number in itertools.count(last + 1):
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:  # made meanwhile, or the file system ignores case
            continue
        return folder
    raise AssertionError("unreachable")
