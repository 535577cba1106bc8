"""Mutation testing of ourselves: change one line at a time, and see whether a test notices.

    python tests/mutants/run.py [AREA ...] [--sample N] [--seed S] [--tests PATH ...] [--json FILE] [--again FILE]

The tests of an area run once, measured by coverage, so that each mutant is met only by the tests that run its line,
the quickest first. All happens in copies of the repository, made at the start. Survivors need a reason in
survivors.toml. `--again` meets each mutant first with the test that noticed it in an earlier run, written by `--json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from areas import Area
from copies import Copies, Result, copy_repository
from line_coverage import Trace
from mutations import Mutant

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WANTED = 0.95  # the share of mutants that tests must notice
WORKERS = os.cpu_count() or 1
Key = tuple[str, str, str]


class Examination:
    """Tries the mutants of an area in copies, below `folder`, of the repository at `root`."""

    def __init__(
        self, root: Path, area: str, arguments: argparse.Namespace, killers: dict[Key, str], folder: Path
    ) -> None:
        self._folder = folder
        copies = [copy_repository(root, folder / f"copy{number}") for number in range(WORKERS)]
        self._copies = Copies(copies)
        self._area = areas_of(copies[0])[area]
        self._tests: list[str] = arguments.tests or self._area.tests
        self._sample = self._area.sample(arguments.sample or self._area.size, arguments.seed)
        self._killers = killers
        self._trace: Trace | None = None
        self._lock = threading.Lock()

    def results(self) -> list[Result]:
        """How each mutant fared."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return self._copies.confirmed(list(pool.map(self._attempt, self._sample)))

    def _attempt(self, mutant: Mutant) -> Result:
        result = self._once_more(mutant) or self._by_lines(mutant)
        line = f"{mutant.file}:{mutant.line}  {mutant.after}"
        print(f"{result.outcome:9} {result.seconds:6.1f} s {result.tests:4} tests  {line}", flush=True)
        return result

    def _once_more(self, mutant: Mutant) -> Result | None:
        """Meet the mutant with the test that noticed it before."""
        if killer := self._killers.get(mutant.key):
            result = self._copies.try_mutant(mutant, [killer], 240.0)
            return result if result.noticed else None
        return None

    def _by_lines(self, mutant: Mutant) -> Result:
        trace = self._traced()
        tests, left_out = trace.tests(mutant)
        if not tests:
            return Result(mutant=mutant, outcome="unreached", seconds=0.0, tests=0)
        limit = 90 + 10 * max(trace.seconds[test] for test in tests)
        return self._copies.try_mutant(mutant, tests, limit, left_out)

    def _traced(self) -> Trace:
        with self._lock:
            if self._trace is None:
                self._trace = Trace(self._area, self._tests, self._folder, WORKERS)
                for test in self._trace.failing:
                    print(f"not used, as it fails without a mutant: {test}", flush=True)
            return self._trace


def areas_of(root: Path) -> dict[str, Area]:
    """The areas of a copy of the repository, by name."""
    with (root / "tests/mutants/areas.toml").open("rb") as file:
        return {name: Area(name, settings, root) for name, settings in tomllib.load(file).items()}


def examine(area: str, arguments: argparse.Namespace, killers: dict[Key, str]) -> list[Result]:
    """Try mutants of an area."""
    with tempfile.TemporaryDirectory(prefix="anyaccel-mutants-") as name:
        return Examination(ROOT, area, arguments, killers, Path(name)).results()


def survivors(results: Iterable[Result]) -> list[Result]:
    """Mutants that no test noticed."""
    return [result for result in results if not result.noticed]


def report(results: dict[str, list[Result]], reasons: dict[Key, str]) -> int:
    """Print the figures by module and the survivors; 1 if too many survived, or one has no reason."""
    unexplained = 0
    for area, tried in results.items():
        print(f"\n{area}")
        alive = Counter(result.mutant.file for result in survivors(tried))
        for file, count in sorted(Counter(result.mutant.file for result in tried).items()):
            print(f"  {count - alive[file]:3} of {count:3}  {file}")
        for result in survivors(tried):
            mutant, reason = result.mutant, reasons.get(result.mutant.key, "")
            unexplained += not reason
            print(f"  {result.outcome} {mutant.file}:{mutant.line} ({result.tests} tests, {result.left_out} not tried)")
            print(f"    - {mutant.before}\n    + {mutant.after}\n    {reason or 'NO REASON'}")
    everything = [result for tried in results.values() for result in tried]
    killed = len(everything) - len(survivors(everything))
    print(f"\n{killed} of {len(everything)} mutants were noticed ({killed / len(everything):.1%})")
    return int(bool(unexplained) or killed < WANTED * len(everything))


def main() -> int:
    """Try the mutants of the areas named, or of all."""
    areas = areas_of(ROOT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(areas)}; all by default")
    parser.add_argument("--sample", type=int, help="mutants of each area, instead of the number in areas.toml")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other mutants")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="these tests, instead of those in areas.toml")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    parser.add_argument("--again", type=Path, metavar="FILE", help="begin with the tests that noticed before")
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - areas.keys():
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(areas)}")
    with (HERE / "survivors.toml").open("rb") as file:
        listed = tomllib.load(file).get("survivor", [])
    reasons = {(each["file"], each["before"], each["after"]): each["reason"] for each in listed}
    killers = _killers(json.loads(arguments.again.read_text("utf-8"))) if arguments.again else {}
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # tests of interrupts inherit it, even from a background job
    results = {name: examine(name, arguments, killers) for name in arguments.areas or areas}
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_data(results), indent=1), "utf-8")
    return report(results, reasons)


def _killers(data: dict[str, list[dict[str, Any]]]) -> dict[Key, str]:
    tried = [each for area in data.values() for each in area]
    return {(each["file"], each["before"], each["after"]): each["killer"] for each in tried if each["killer"]}


def _as_data(results: dict[str, list[Result]]) -> dict[str, list[dict[str, Any]]]:
    return {
        area: [
            {
                **{name: getattr(result.mutant, name) for name in ("file", "line", "operator", "before", "after")},
                **{name: getattr(result, name) for name in ("outcome", "seconds", "tests", "left_out", "killer")},
            }
            for result in tried
        ]
        for area, tried in results.items()
    }


if __name__ == "__main__":
    sys.exit(main())
