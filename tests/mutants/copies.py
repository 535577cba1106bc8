"""Copies of the repository in which mutants are tried."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    return copy


class Copies:
    """Copies that are free; each serves one mutant at a time."""

    def __init__(self, copies: Sequence[Path]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._sound: set[str] = set()
        for copy in copies:
            self._free.put(copy)

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], limit: float, left_out: int = 0) -> Result:
        """Run tests over the mutant until one fails or `limit` seconds have passed.

        What fails or does not end is run once more without the mutant: only if it passes there was the mutant noticed.
        """
        copy, started = self._free.get(), time.perf_counter()
        file = copy / mutant.file
        original = file.read_text("utf-8")
        try:
            file.write_text(mutant.code, "utf-8")
            outcome, killer = _run(copy, tests, limit)
            file.write_text(original, "utf-8")
            if outcome != "survived" and not self._passes(copy, [killer], limit):
                outcome = "undecided"
        finally:
            file.write_text(original, "utf-8")
            self._free.put(copy)
        seconds = time.perf_counter() - started
        return Result(
            mutant=mutant, outcome=outcome, seconds=seconds, tests=len(tests), left_out=left_out, killer=killer
        )

    def _passes(self, copy: Path, tests: list[str], limit: float) -> bool:
        """Whether tests pass without a mutant, in half the time that one had; each is asked until it has passed."""
        if not self._sound.issuperset(tests):
            if _run(copy, tests, limit / 2)[0] != "survived":
                return False
            self._sound.update(tests)
        return True


def _run(copy: Path, tests: Sequence[str], limit: float) -> tuple[str, str]:
    """`survived`, or `killed` or `timeout` and the test that did it (the first, if none was begun)."""
    with tempfile.TemporaryDirectory(prefix="record-", dir=copy) as name:
        record = Path(name)
        chosen = record / "tests"
        chosen.write_text("\n".join(tests), "utf-8")
        command = [sys.executable, "-m", "pytest", f"@{chosen}", "-x", "-q", "--tb=no", "-p", "recorder"]
        child = subprocess.Popen(
            [*command, "-p", "no:cacheprovider"],
            cwd=copy,
            env=environment_of(copy, record),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            outcome = "survived" if child.wait(limit) == 0 else "killed"
        except subprocess.TimeoutExpired:
            outcome = "timeout"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        failed = recorder.read(record, "failed") or recorder.read(record, "begun")[-1:] or tests
        return outcome, "" if outcome == "survived" else failed[0]
