"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.contest import Contestant


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line.

    Args:
        quick: a few turns, to see that everything runs; figures mean nothing.
        blocks: turns of each contestant; None leaves it to the benchmark.
        only: of the contestants, those whose name has one of these words; all of them where there are none.
        workloads: of the workloads, those of these names; all of them where there are none.
        threads: of every framework.
        json: where the figures are written.
    """

    quick: bool = False
    blocks: int | None = None
    only: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    threads: int = 1
    json: Path | None = None

    def rounds(self, usual: int) -> int:
        """How many turns each takes, if it is usually this many."""
        return self.blocks or (2 if self.quick else usual)

    def chosen(self, contestants: Iterable[Contestant]) -> list[Contestant]:
        """Those that were asked for."""
        return [one for one in contestants if not self.only or any(word in one.name for word in self.only)]

    def wants(self, workload: str) -> bool:
        """Whether this workload was asked for."""
        return not self.workloads or workload in self.workloads


def options(description: str | None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few turns, to see that everything runs")
    parser.add_argument("--blocks", type=int, help="turns of each contestant")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD", help="contestants whose name has one of these")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="NAME", help="workloads of these names")
    parser.add_argument("--threads", type=int, default=1, help="threads of every framework")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    return Options(**{**vars(given), "only": tuple(given.only), "workloads": tuple(given.workloads)})
