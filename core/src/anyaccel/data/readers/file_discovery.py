"""The files that a user gives: single files, lists of files, and folders."""

from __future__ import annotations

import difflib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from anyaccel.data.roles import listed
from anyaccel.errors import DataError, MissingFileError

SUFFIXES = (".parquet", ".parq", ".pq")
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class DataFile:
    """A file, and the values of the `key=value` folders that contain it."""

    path: str
    keys: Mapping[str, str] = field(default_factory=dict)


def discover_files(label: str, path: Paths) -> list[DataFile]:
    """Return the files that a path, a folder or a list of paths names; none of them is opened.

    Raises:
        DataError: no file, or an entry that is not a regular file.
        MissingFileError: a file or folder does not exist.
    """
    if isinstance(path, (str, os.PathLike)):
        files = _files_of(label, path)
    elif not isinstance(path, Sequence) or isinstance(path, bytes):
        raise DataError(f"{label!r} cannot be read from {path!r}", hint="pass a path or a list of paths of files")
    elif not path:
        raise DataError(f"the list of files for {label!r} is empty", hint="pass at least one file")
    else:
        for part in path:
            if not isinstance(part, (str, os.PathLike)) or Path(part).is_dir():
                raise DataError(
                    f"{part!r} in the list for {label!r} is not the path of a file",
                    hint="list files, or pass one folder",
                )
        files = [DataFile(os.fspath(part)) for part in path]
    for file in files:
        # Pipes, sockets and devices: to open one may wait for ever, where not even Ctrl-C is heard.
        check_there(label, file.path)
        mode = stat.S_IFREG
        with suppress(OSError):  # opening it says what is wrong
            mode = Path(file.path).stat().st_mode
        if not stat.S_ISREG(mode):
            raise DataError(
                f"{file.path} of {label!r} is not a regular file, but "
                f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}",
                hint="pass a folder or a list of regular files; write the data of a pipe to a file first",
            )
    return files


def check_there(label: str, path: str | os.PathLike[str]) -> None:
    """Refuse the path of a file or folder that does not exist, and suggest similar names.

    Raises:
        MissingFileError: it does not exist.
    """
    wanted = Path(path)
    if wanted.exists():
        return
    problem = f"there is no file {str(path)!r} for {label!r}"
    if "://" in str(path):
        raise MissingFileError(problem, hint="download it, and pass the path of the file")
    if any(sign in str(path) for sign in "*?["):
        read = "read_parquet" if wanted.suffix == ".parquet" else "read_csv"
        hint = f"join the files of a pattern: pandas.concat(map(pandas.{read}, glob.glob({str(path)!r})))"
        raise MissingFileError(problem, hint=hint)
    if not wanted.parent.is_dir():
        problem += f", and no folder {str(wanted.parent)!r}"
        raise MissingFileError(problem, hint=f"use an absolute path; relative paths start at {str(Path.cwd())!r}")
    close: list[str] = []
    with suppress(OSError):  # a folder that may not be read
        close = difflib.get_close_matches(wanted.name, [entry.name for entry in wanted.parent.iterdir()], n=3)
    hint = f"use an absolute path; relative paths start at {str(Path.cwd())!r}"
    if close:
        hint = f"did you mean {str(wanted.with_name(close[0]))!r}?"
    raise MissingFileError(problem, available=", ".join(map(repr, close)), hint=hint)


def _files_of(label: str, path: str | os.PathLike[str]) -> list[DataFile]:
    if not os.fspath(path):  # pathlib reads it as the current folder
        raise DataError(f"the path for {label!r} is empty", hint="pass a file, a folder, or a list of files")
    folder = Path(path)
    if not folder.is_dir():
        if any(sign in str(folder) for sign in "*?[") and not folder.exists():  # a shell would have expanded it
            fixed = Path(*itertools.takewhile(lambda part: not any(sign in part for sign in "*?["), folder.parts))
            pattern = folder.relative_to(fixed).as_posix()
            raise DataError(
                f"the path for {label!r} is the pattern {str(folder)!r}, but no file has this name",
                cause="patterns are not expanded",
                hint=f"pass a list of files: sorted(pathlib.Path({fixed.as_posix()!r}).glob({pattern!r})); or a folder",
            )
        return [DataFile(os.fspath(path))]
    inside = sorted((file.relative_to(folder) for file in _walk(folder)), key=lambda file: file.parts)
    files = [file for file in inside if file.suffix.lower() in SUFFIXES]
    if not files:
        texts = next((f"*{file.suffix}" for file in inside if file.suffix.lower() in (".csv", ".tsv", ".txt")), None)
        if texts is not None:
            separator = ", sep='\\t'" if texts.lower() == "*.tsv" else ""
            raise DataError(
                f"the folder {folder} has no Parquet file, but text files",
                cause=listed(inside),
                hint=f"pass the frame of pandas.concat([pandas.read_csv(path{separator}) for path in "
                f"sorted(pathlib.Path({folder.as_posix()!r}).rglob({texts!r}))], ignore_index=True)",
            )
        raise DataError(
            f"the folder {folder} has no Parquet file",
            cause=f"{listed(inside)}; names that start with a dot or an underscore are left out",
            hint=f"pass a folder with files that end in {', '.join(SUFFIXES)}, or a list of files",
        )
    found = []
    for file in files:
        pairs = [part.partition("=") for part in file.parts[:-1]]
        keys = {unquote(key): unquote(value) for key, equals, value in pairs if key and equals}
        found.append(DataFile(str(folder / file), keys))
    return found


def _walk(folder: Path, parents: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield files below a folder, without names that start with a dot or an underscore and links back to `parents`."""
    parents |= {folder.resolve()}
    for entry in folder.iterdir():
        if entry.name.startswith((".", "_")) or entry.resolve() in parents:
            continue
        if entry.is_dir():
            yield from _walk(entry, parents)
        else:
            yield entry
