"""`anyaccel checkpoint list`: the checkpoints of a run."""

from __future__ import annotations

from typing import Any

from anyaccel.cli.checkpoint.saved import Saved, read_saved, run_names
from anyaccel.cli.console import format_size, print_json, print_line, print_table
from anyaccel.errors import ConfigError
from anyaccel.saved_folder import storage_of


def run(folder: str, as_json: bool) -> None:
    """Print the checkpoints in the folder of a run, oldest first, and why others cannot be read."""
    storage, names = storage_of(folder), run_names(folder)
    saved: dict[str, Saved] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            saved[name] = read_saved(storage.subfolder(name))
        except ConfigError as error:
            failures[name] = str(error)
    scores = {name: score for name, checkpoint in saved.items() if (score := _score(checkpoint)) is not None}
    best = min(scores, key=lambda name: scores[name], default=None)
    entries = [_entry(name, checkpoint, name == names[-1], name == best) for name, checkpoint in saved.items()]
    if as_json:
        print_json({"folder": storage.name, "checkpoints": entries, "unreadable": failures})
        return
    rows = [_row(entry, saved[entry["name"]]) for entry in entries]
    print_table(("checkpoint", "phase", "epochs", "steps", "score", "size", "written", ""), rows)
    for name, problem in failures.items():
        print_line(f"{name} cannot be read: {problem}", style="red")


def _score(saved: Saved) -> float | None:
    score = saved.position.get("score")
    return score if isinstance(score, (int, float)) and not isinstance(score, bool) else None


def _entry(name: str, saved: Saved, is_newest: bool, is_best: bool) -> dict[str, Any]:
    position = saved.position
    return {
        "name": name,
        "phase": position.get("phase"),
        "epochs": position.get("epoch"),
        "steps": position.get("step"),
        "score": _score(saved),
        "bytes": saved.size,
        "written": None if saved.written is None else saved.written.isoformat(timespec="seconds"),
        "newest": is_newest,
        "best": is_best,
    }


def _row(entry: dict[str, Any], saved: Saved) -> tuple[str, ...]:
    score = "" if entry["score"] is None else f"{entry['score']:.6g}"
    marks = ", ".join(mark for mark in ("newest", "best") if entry[mark])
    done = (str(entry["phase"]), str(entry["epochs"]), str(entry["steps"]))
    written = "" if saved.written is None else f"{saved.written:%Y-%m-%d %H:%M:%S}"
    return entry["name"], *done, score, format_size(saved.size), written, marks
