"""`anyaccel checkpoint verify`: every byte of checkpoints and saved graphs against their hashes."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.cli.checkpoint.saved import read_saved, run_names
from anyaccel.cli.console import format_size, print_json, print_line
from anyaccel.errors import AnyaccelError
from anyaccel.phases.checkpointing.position import PART, Position
from anyaccel.phases.checkpointing.run_folder import LATEST
from anyaccel.saved_folder import INDEX, MANIFEST, Storage, is_saved, shards, storage_of
from anyaccel.saved_folder.manifest import is_as_written


def run(folder: str, as_json: bool) -> int:
    """Print which files are intact and which are not; return 1 if something is damaged, otherwise 0."""
    storage = storage_of(folder)
    is_one = is_saved(storage)
    folders = [storage] if is_one else [storage.subfolder(name) for name in run_names(folder)]
    reports = [_verify(folder) for folder in folders]
    if not is_one and (problem := _latest_problem(storage, folders[-1])):
        reports.append({"folder": storage.name, "arrays": 0, "bytes": 0, "problems": [problem]})
    if as_json:
        print_json({"folders": reports})
    else:
        for report in reports:
            if not report["problems"]:
                print_line(
                    f"ok       {report['folder']}: {report['arrays']} arrays, {format_size(report['bytes']) or '0 B'}"
                )
            for problem in report["problems"]:
                print_line(f"damaged  {report['folder']}: {problem}", style="red")
    return int(any(report["problems"] for report in reports))


def _latest_problem(storage: Storage, newest: Storage) -> str:
    """Return why the file that names the newest checkpoint of a run does not; `""` if it does, or is not there."""
    size = storage.size(LATEST)
    if size is None:
        return ""
    with storage.open(LATEST) as stream:
        text = stream.read(size)
    names_newest = storage.file_name(text.decode(errors="replace").removesuffix("\n")) == newest.name
    return "" if names_newest and text.endswith(b"\n") else f"{storage.file_name(LATEST)!r} names another checkpoint"


def _verify(storage: Storage) -> dict[str, Any]:
    """Return size and problems of one folder; each of its files is read, even after a damaged one."""
    problems: list[str] = []
    n_arrays, size = 0, 0
    try:
        saved = read_saved(storage)
        if not is_as_written(storage):
            problems.append(f"{storage.file_name(MANIFEST)!r} differs from what was written: its blanks were changed")
        state_arrays: dict[str, np.ndarray] = {}
        run_arrays: dict[str, np.ndarray] = {}
        for file in saved.files:
            size += file.size
            try:
                arrays = shards.read(storage, file, mapped=True)
                n_arrays += len(arrays)
                (run_arrays if file.group == "run" else state_arrays).update(arrays)
            except AnyaccelError as error:
                problems.append(error.problem)
        if not problems and not shards.is_index_of(storage, saved.files, state_arrays):
            problems.append(f"{storage.file_name(INDEX)!r}, from which other tools read, differs from what was written")
        if PART in saved.manifest and not problems:
            Position.from_parts(saved.manifest[PART], run_arrays)
    except AnyaccelError as error:
        problems.append(error.problem)
    except OSError as error:
        problems.append(f"{type(error).__name__}: {error}")
    return {"folder": storage.name, "arrays": n_arrays, "bytes": size, "problems": problems}
