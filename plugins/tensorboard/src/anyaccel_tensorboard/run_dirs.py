"""A folder of its own for each run: names that are safe in any file system, nothing overwritten."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

from anyaccel.errors import ConfigError

_UNSAFE = re.compile(r"[^\w+=,-]")  # letters of any language stay
_RESERVED = re.compile(r"(?i)con|prn|aux|nul|(com|lpt)[0-9¹²³]")  # no names of files on Windows
_LONGEST = 100


def checked(folder: Any, asker: str) -> Path:
    """A path to a folder of this machine; `~` is the user's home.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise ConfigError(f"{asker} was given {folder!r}, which is no folder", hint="name one, such as 'runs'")
    text = os.fspath(folder)
    if not isinstance(text, str) or "://" in text or "\0" in text:
        raise ConfigError(
            f"{asker} was given {text!r}, which is no folder of this machine",
            hint="name a local folder, such as 'runs'",
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{asker} was given {text!r}, and there is no such home folder", hint="write the folder without '~'"
        ) from error


def safe(label: str) -> str:
    """A label as the name of one folder: what could be a path or a command is `_`."""
    name = _UNSAFE.sub("_", label).encode("utf-8")[:_LONGEST].decode("utf-8", errors="ignore")
    return f"_{name}" if not name or _RESERVED.fullmatch(name) else name


def claim(root: Path, group: str, label: str) -> Path:
    """Make and give the folder `root/GROUP/LABEL-N`, with the first number after those that are there.

    Whoever makes a folder has it: two processes never get the same.

    Raises:
        OSError: it cannot be made.
    """
    parent, name = root / safe(group), safe(label)
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(_last(parent, name) + 1):
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:  # somebody was faster, or the file system takes two names for one
            continue
        return folder
    raise AssertionError("unreachable")


def _last(parent: Path, name: str) -> int:
    rests = (one.name.removeprefix(f"{name}-") for one in parent.iterdir() if one.name.startswith(f"{name}-"))
    return max((int(rest) for rest in rests if re.fullmatch("[0-9]{1,18}", rest)), default=0)
