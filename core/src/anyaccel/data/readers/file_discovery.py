"""Paths: the files that a user names, one by one or by the folder that they lie in."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from anyaccel.data.roles import listed
from anyaccel.errors import DataError

SUFFIXES = (".parquet", ".parq", ".pq")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class File:
    """One file, and the `key=value` folders that it lies in."""

    path: str
    keys: Mapping[str, str] = field(default_factory=dict)


def found_files(label: str, path: Paths) -> list[File]:
    """The files that a path, a folder or a list of paths names; none of them is opened.

    Raises:
        DataError: no file in a folder or list, or what is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        return _listed_files(label, path)
    if not os.fspath(path):  # pathlib reads it as the current folder
        raise DataError(f"the path for {label!r} is empty", hint="give a file, a folder, or a list of files")
    where = Path(path)
    if not where.is_dir():
        _check_no_pattern(label, where)
        return [File(os.fspath(path))]
    inside = sorted((one.relative_to(where) for one in _below(where)), key=lambda one: one.parts)
    found = [one for one in inside if one.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(
            f"there is no Parquet file below {where}",
            available=f"{listed(inside)}; names that start with a dot or an underscore are left out",
            hint=f"give a folder with files that end in {', '.join(SUFFIXES)}, or a list of files",
        )
    return [File(str(where / one), _keys(one)) for one in found]


def _check_no_pattern(label: str, where: Path) -> None:
    """Make sure that a path that does not exist is no pattern, which only a shell would have filled in."""
    if not any(sign in str(where) for sign in "*?[") or where.exists():
        return
    plain = itertools.takewhile(lambda part: not any(sign in part for sign in "*?["), where.parts)
    folder = Path(*plain)
    pattern = where.relative_to(folder).as_posix()
    raise DataError(
        f"the path for {label!r} is the pattern {str(where)!r}, and there is no file of this name",
        available="paths are taken as they are written",
        hint=f"give a list of files: sorted(pathlib.Path({folder.as_posix()!r}).glob({pattern!r})); or a folder",
    )


def _below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files below a folder, but for names that start with a dot or an underscore, and links back to `above`."""
    above |= {folder.resolve()}
    for one in folder.iterdir():
        if one.name.startswith((".", "_")) or one.resolve() in above:
            continue
        if one.is_dir():
            yield from _below(one, above)
        else:
            yield one


def _keys(path: Path) -> dict[str, str]:
    pairs = [part.partition("=") for part in path.parts[:-1]]
    return {unquote(key): unquote(value) for key, equals, value in pairs if key and equals}


def _listed_files(label: str, paths: Any) -> list[File]:
    if not isinstance(paths, Sequence) or isinstance(paths, bytes):
        raise DataError(
            f"{label!r} cannot be read from {paths!r}", available="it takes a path or a list of paths of files"
        )
    for path in paths:
        if not isinstance(path, (str, os.PathLike)) or Path(path).is_dir():
            raise DataError(
                f"{path!r} in the list for {label!r} is not the path of a file", hint="list files, or give one folder"
            )
    if not paths:
        raise DataError(f"the list of files for {label!r} is empty", hint="give at least one file")
    return [File(os.fspath(path)) for path in paths]
