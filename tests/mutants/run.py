"""Mutation testing of ourselves: change one line at a time, and see whether a test notices.

    python tests/mutants/run.py [AREA ...] [--sample N] [--seed S] [--json FILE]

The tests of an area run once, measured by coverage, so that each mutant is met only by the tests that run its line,
the quickest first. Sources are changed in copies of the repository. Survivors need a reason in survivors.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import coverage
from mutations import Mutant, mutants_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WANTED = 0.95  # the share of mutants that tests must notice
MOST_SECONDS = 240.0  # of tests for one mutant, as they took without it
WORKERS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a mutant fared: `outcome` is killed, timeout, survived or unreached (no test runs the line)."""

    mutant: Mutant
    outcome: str
    seconds: float
    tests: int


class Area:
    """Sources, and the tests that are to notice changes in them."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.tests: list[str] = settings["tests"]
        self.size: int = settings["mutants"]
        without = {path for pattern in settings["without"] for path in ROOT.glob(pattern)}
        self.sources = sorted({path for pattern in settings["sources"] for path in ROOT.glob(pattern)} - without)

    def sample(self, size: int, seed: int) -> list[Mutant]:
        """Mutants of as many different lines, drawn by lot."""
        by_line: defaultdict[tuple[str, int], list[Mutant]] = defaultdict(list)
        for path in self.sources:
            file = str(path.relative_to(ROOT))
            for mutant in mutants_of(file, path.read_text("utf-8")):
                by_line[file, mutant.line].append(mutant)
        lot = random.Random(f"{self.name} {seed}")
        lines = lot.sample(sorted(by_line), min(size, len(by_line)))
        return [lot.choice(by_line[line]) for line in lines]


class Trace:
    """Which tests run a line, and how many seconds each takes."""

    def __init__(self, area: Area, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._data = coverage.CoverageData(str(folder / "coverage"))
        _measure(area, folder)
        self._data.read()
        for file in folder.glob("*.jsonl"):
            self.seconds |= dict(map(json.loads, file.read_text("utf-8").splitlines()))
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's line, the quickest first, as many as `MOST_SECONDS` allow."""
        path = str(ROOT / mutant.file)
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(path)
        reached = sorted(
            set(self._lines[path].get(mutant.line, ())) & self.seconds.keys(), key=self.seconds.__getitem__
        )
        chosen, total = [], 0.0
        for test in reached:
            total += self.seconds[test]
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


def _measure(area: Area, folder: Path) -> None:
    settings = folder / "coveragerc"
    packages = {part for path in area.sources for part in path.relative_to(ROOT).parts if part.startswith("anyaccel")}
    settings.write_text(
        f"[run]\nparallel = true\npatch = subprocess\ndata_file = {folder / 'coverage'}\n"
        f"source_pkgs = {','.join(sorted(packages))}\n",
        "utf-8",
    )
    environment = {**os.environ, "ANYACCEL_MUTANTS_TIMES": str(folder), "PYTHONPATH": _python_path(ROOT, HERE)}
    run = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *area.tests]
    run += ["-q", "-p", "recorder", "-n", str(WORKERS), "--dist", "loadfile"]
    subprocess.run(run, cwd=ROOT, env=environment, check=True)
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=ROOT, check=True)


def _python_path(root: Path, *more: Path) -> str:
    sources = sorted(root.glob("plugins/*/src"))
    return os.pathsep.join(map(str, (*more, root / "core/src", *sources)))


class Copies:
    """Copies of the repository, one for each mutant that is tried at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
        files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
        for number in range(count):
            copy = folder / f"copy{number}"
            for name in files:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
            self._free.put(copy)

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], limit: float) -> Result:
        """Run tests over the mutant, until one fails."""
        if not tests:
            return Result(mutant=mutant, outcome="unreached", seconds=0.0, tests=0)
        copy, started = self._free.get(), time.perf_counter()
        file = copy / mutant.file
        original = file.read_text("utf-8")
        try:
            file.write_text(mutant.code, "utf-8")
            outcome = _outcome(copy, tests, limit)
        finally:
            file.write_text(original, "utf-8")
            self._free.put(copy)
        return Result(mutant=mutant, outcome=outcome, seconds=time.perf_counter() - started, tests=len(tests))


def _outcome(copy: Path, tests: Sequence[str], limit: float) -> str:
    chosen = copy / ".mutant-tests"
    chosen.write_text("\n".join(tests), "utf-8")
    command = [sys.executable, "-m", "pytest", f"@{chosen}", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": _python_path(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return "survived" if child.wait(limit) == 0 else "killed"
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.wait()
        return "timeout"


def examine(area: Area, size: int, seed: int) -> list[Result]:
    """Try mutants of an area."""
    with tempfile.TemporaryDirectory(prefix="anyaccel-mutants-") as name:
        folder = Path(name)
        trace, copies = Trace(area, folder), Copies(folder, WORKERS)

        def attempt(mutant: Mutant) -> Result:
            tests = trace.tests(mutant)
            result = copies.try_mutant(mutant, tests, 60 + 4 * sum(trace.seconds[test] for test in tests))
            print(
                f"{result.outcome:9} {result.seconds:6.1f} s  {mutant.file}:{mutant.line}  {mutant.after}", flush=True
            )
            return result

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(attempt, area.sample(size, seed)))


def survivors(results: Iterable[Result]) -> list[Mutant]:
    """Mutants that no test noticed."""
    return [result.mutant for result in results if result.outcome in ("survived", "unreached")]


def report(results: dict[str, list[Result]], reasons: dict[tuple[str, str, str], str]) -> int:
    """Print the figures by module and the survivors; 1 if too many survived, or one has no reason."""
    unexplained = 0
    for area, tried in results.items():
        print(f"\n{area}")
        alive = Counter(mutant.file for mutant in survivors(tried))
        for file, count in sorted(Counter(result.mutant.file for result in tried).items()):
            print(f"  {count - alive[file]:3} of {count:3}  {file}")
        for mutant in survivors(tried):
            reason = reasons.get(mutant.key, "")
            unexplained += not reason
            print(f"  survived {mutant.file}:{mutant.line}")
            print(f"    - {mutant.before}\n    + {mutant.after}\n    {reason or 'NO REASON'}")
    everything = [result for tried in results.values() for result in tried]
    killed = len(everything) - len(survivors(everything))
    print(f"\n{killed} of {len(everything)} mutants were noticed ({killed / len(everything):.1%})")
    return int(bool(unexplained) or killed < WANTED * len(everything))


def main() -> int:
    """Try the mutants of the areas named, or of all."""
    with (HERE / "areas.toml").open("rb") as file:
        areas = {name: Area(name, settings) for name, settings in tomllib.load(file).items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(areas)}; all by default")
    parser.add_argument("--sample", type=int, help="mutants of each area, instead of the number in areas.toml")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other mutants")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    arguments = parser.parse_args()
    if unknown := set(arguments.areas) - areas.keys():
        parser.error(f"no area {', '.join(sorted(unknown))}; there are {', '.join(areas)}")
    with (HERE / "survivors.toml").open("rb") as file:
        listed = tomllib.load(file).get("survivor", [])
    reasons = {(each["file"], each["before"], each["after"]): each["reason"] for each in listed}
    chosen = arguments.areas or list(areas)
    results = {name: examine(areas[name], arguments.sample or areas[name].size, arguments.seed) for name in chosen}
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_data(results), indent=1), "utf-8")
    return report(results, reasons)


def _as_data(results: dict[str, list[Result]]) -> dict[str, list[dict[str, Any]]]:
    return {
        area: [
            {
                **{name: getattr(result.mutant, name) for name in ("file", "line", "operator", "before", "after")},
                **{name: getattr(result, name) for name in ("outcome", "seconds", "tests")},
            }
            for result in tried
        ]
        for area, tried in results.items()
    }


if __name__ == "__main__":
    sys.exit(main())
