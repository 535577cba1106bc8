"""Whether `compile="auto"` chooses well: whole phases of few to many steps, compilers included, in each mode.

Run it as `training.py`; it takes long. Every turn is a phase in a fresh process. *Cold* means that the caches of the
compilers are empty, *warm* that a phase like it has run before on this machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Contestant, Table, fresh_contest, options, report
from harness.options import Options

MODES = ("off", "steps", "auto")
PHASES = {
    "torch": ((3, 1000), (30, 1000), (400, 1000)),
    "jax": ((1, 40), (1, 400), (10, 400)),
    "tensorflow": ((1, 200), (1, 2000), (20, 1000)),
}
"""Epochs, and steps of each: far fewer than what pays for the compiler, about that or less, and far more."""


def phases(framework: str, epochs: int, steps: int, caches: Path) -> Iterator[Contestant]:
    """A phase in each mode."""
    settings: dict[str, Any] = {"name": "tiny", "frameworks": [framework], "epochs": epochs, "steps": steps}
    where = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"), "JAX_COMPILATION_CACHE_DIR": str(caches / "jax")}
    for mode in MODES:
        yield Contestant(mode, "", "loops.ours:whole_phase", {**settings, "compile": mode}, where)


def tables(given: Options) -> Iterator[Table]:
    """One for each framework, number of steps, and state of the caches."""
    for framework, lengths in PHASES.items():
        if not given.wants(framework):
            continue
        for epochs, steps in lengths[:1] if given.quick else lengths:
            for state in ("cold", "warm"):
                yield table(framework, epochs, steps, state, given)


def table(framework: str, epochs: int, steps: int, state: str, given: Options) -> Table:
    """Seconds of whole phases, beside `off`."""
    caches = Path(tempfile.mkdtemp())
    try:
        taking_part = given.chosen(phases(framework, epochs, steps, caches))
        if state == "warm":
            fresh_contest([one for one in taking_part if one.name == "steps"], 1, given.threads)
        empty = caches if state == "cold" else None
        figures = fresh_contest(taking_part, given.rounds(3), given.threads, emptied=empty)
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    return Table(f"{framework}, {epochs * steps} steps, {state} caches", figures, "s", 1.0, "off")


if __name__ == "__main__":
    given = options(__doc__)
    report("choosing", tables(given), given)
