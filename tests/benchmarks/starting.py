"""How long it takes until the first step: imports and the first step of a program, and what a phase adds.

Run it as `training.py`. What happens once in a process is measured in a fresh process for every turn; the interpreter
itself and NumPy, which the figures need, are there already.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Contestant, Table, contest, fresh_contest, options, report
from harness.options import Options

FRAMEWORKS = ("torch", "jax", "tensorflow", "numpy")
BASE = "by hand, torch"


def first_steps() -> Iterator[Contestant]:
    """Programs that end after one step."""
    yield Contestant(BASE, "", "loops.beginning:by_hand", {"name": "tiny"})
    for framework in FRAMEWORKS:
        settings = {"name": "tiny", "framework": framework, "compile": "off"}
        yield Contestant(f"anyaccel, {framework}, off", "", "loops.beginning:ours", settings)
    yield Contestant("import anyaccel", "", "loops.beginning:only_import", {"modules": ["anyaccel"]})
    for framework in FRAMEWORKS:
        yield Contestant(f"import {framework}", "", "loops.beginning:only_import", {"modules": [framework]})
    yield Contestant("anyaccel devices", "", "loops.beginning:command", {"words": ["devices"]})


def overheads() -> Iterator[Contestant]:
    """Phases over ten batches, again and again in one process."""
    for framework in FRAMEWORKS:
        settings = {"name": "tiny", "frameworks": [framework], "steps": 10, "compile": "off"}
        yield Contestant(f"anyaccel, {framework}", framework, "loops.ours:before_first_step", settings)
    yield Contestant("aa.fit, torch, 10 steps", "torch", "loops.ours:whole_fit", {"name": "tiny", "steps": 10})


def tables(given: Options) -> Iterator[Table]:
    """Whole programs, then phases."""
    figures = fresh_contest(given.chosen(first_steps()), given.rounds(7), given.threads)
    yield Table("From the start of a program to the end of its first step", figures, "s", 1.0, BASE)
    figures = contest(given.chosen(overheads()), given.rounds(24), given.threads)
    yield Table(
        "From the call of a phase over 10 batches to its first step; a whole aa.fit of one epoch", figures, "ms", 1e3
    )


if __name__ == "__main__":
    given = options(__doc__)
    report("starting", tables(given), given)
