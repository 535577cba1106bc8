"""Copies of the repository in which mutants are tried."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import recorder
from line_coverage import environment_of
from mutations import Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a mutant fared.

    `outcome` is killed or timeout (`killer` is the test that failed or did not end), survived, unreached (no test runs
    the line) or undecided (the tests fail or last as long without the mutant). `left_out` counts the tests that run the
    line and were not tried.
    """

    mutant: Mutant
    outcome: str
    seconds: float
    tests: int
    left_out: int = 0
    killer: str = ""

    @property
    def noticed(self) -> bool:
        """Whether a test told the mutant from the original."""
        return self.outcome in ("killed", "timeout")


def copy_repository(root: Path, copy: Path) -> Path:
    """Copy what git tracks or would track, as it stands."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    for sources in (copy / "core/src", *copy.glob("plugins/*/src")):  # tests write none; a mutant's is not this hash
        compileall.compile_dir(sources, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return copy


class Copies:
    """Copies that are free; each serves one mutant at a time."""

    def __init__(self, copies: Sequence[Path]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            self._free.put(copy)

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], limit: float, left_out: int = 0) -> Result:
        """Run tests over the mutant until one fails or lasts longer than `limit` seconds.

        A test that does not end is run once more without the mutant: only if it ends there was the mutant noticed. What
        fails is left to `confirmed`.
        """
        copy, started = self._free.get(), time.perf_counter()
        file = copy / mutant.file
        original = file.read_text("utf-8")
        try:
            file.write_text(mutant.code, "utf-8")
            outcome, killer = _outcome(copy, tests, limit)
            file.write_text(original, "utf-8")
            if outcome == "timeout" and not _passing(copy, [killer], limit / 2):
                outcome = "undecided"
        finally:
            file.write_text(original, "utf-8")
            self._free.put(copy)
        seconds = time.perf_counter() - started
        return Result(
            mutant=mutant, outcome=outcome, seconds=seconds, tests=len(tests), left_out=left_out, killer=killer
        )

    def confirmed(self, results: Sequence[Result]) -> list[Result]:
        """The results, undecided where the test that failed over a mutant does not pass without it."""
        killers = sorted({result.killer for result in results if result.outcome == "killed"})
        copy = self._free.get()
        passing = _passing(copy, killers, 600) if killers else set()
        self._free.put(copy)
        return [
            replace(result, outcome="undecided")
            if result.outcome == "killed" and result.killer not in passing
            else result
            for result in results
        ]


def _outcome(copy: Path, tests: Sequence[str], limit: float) -> tuple[str, str]:
    """`survived`, or `killed` or `timeout` and the test that did it (the first, if none was begun)."""
    with tempfile.TemporaryDirectory(prefix="record-", dir=copy) as name:
        status = _run(copy, tests, limit, Path(name), "-x")
        if status == 0:
            return "survived", ""
        culprits = recorder.read(Path(name), "failed") or recorder.read(Path(name), "begun")[-1:] or tests
        return "timeout" if status is None else "killed", culprits[0]


def _passing(copy: Path, tests: Sequence[str], limit: float) -> set[str]:
    """Those of the tests that pass."""
    with tempfile.TemporaryDirectory(prefix="record-", dir=copy) as name:
        _run(copy, tests, limit, Path(name))
        ended = {test for test, _ in recorder.read(Path(name), "times")}
        return ended - set(recorder.read(Path(name), "failed"))


def _run(copy: Path, tests: Sequence[str], limit: float, record: Path, *options: str) -> int | None:
    """The status of pytest; None if no test begins or ends for `limit` seconds. Nothing that it started goes on."""
    (record / "tests").write_text("\n".join(tests), "utf-8")
    command = [sys.executable, "-m", "pytest", f"@{record / 'tests'}", "-q", "--tb=no", "-p", "recorder", *options]
    child = subprocess.Popen(
        [*command, "-p", "no:cacheprovider"],
        cwd=copy,
        env=environment_of(copy, record),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return _wait(child, record, limit)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait(child: subprocess.Popen[bytes], record: Path, limit: float) -> int | None:
    written, changed = 0, time.monotonic()
    while time.monotonic() - changed < limit:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(1)
        before, written = written, sum(path.stat().st_size for path in record.iterdir())
        changed = changed if written == before else time.monotonic()
    return None
