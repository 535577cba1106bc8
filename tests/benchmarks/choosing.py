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
EPOCH = 1000
EPOCHS = {"torch": (3, 30, 300), "jax": (1, 10, 100), "tensorflow": (1, 10, 100)}
"""Epochs of 1,000 steps: about a tenth of what pays for the compiler, that, and ten times as much."""


def phases(framework: str, epochs: int, caches: Path) -> Iterator[Contestant]:
    """A phase in each mode."""
    settings: dict[str, Any] = {"name": "tiny", "frameworks": [framework], "epochs": epochs, "steps": EPOCH}
    where = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"), "JAX_COMPILATION_CACHE_DIR": str(caches / "jax")}
    for mode in MODES:
        yield Contestant(mode, "", "loops.ours:whole_phase", {**settings, "compile": mode}, where)


def tables(given: Options) -> Iterator[Table]:
    """One for each framework, number of steps, and state of the caches."""
    for framework, counts in EPOCHS.items():
        if not given.wants(framework):
            continue
        for epochs in counts[:1] if given.quick else counts:
            for state in ("cold", "warm"):
                yield table(framework, epochs, state, given)


def table(framework: str, epochs: int, state: str, given: Options) -> Table:
    """Seconds of whole phases, beside `off`."""
    caches = Path(tempfile.mkdtemp())
    try:
        taking_part = given.chosen(phases(framework, epochs, caches))
        if state == "warm":
            fresh_contest([one for one in taking_part if one.name == "steps"], 1, given.threads)
        empty = caches if state == "cold" else None
        figures = fresh_contest(taking_part, given.rounds(3), given.threads, emptied=empty)
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    return Table(f"{framework}, {epochs * EPOCH} steps, {state} caches", figures, "s", 1.0, "off")


if __name__ == "__main__":
    given = options(__doc__)
    report("choosing", tables(given), given)
