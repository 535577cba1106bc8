"""Kills the processes of a loop COUNT times: `python -m integration.kills LOOP COUNT SEED`."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

from anyaccel.phases.checkpointing.run_folder import LATEST, RunFolder, read

from .attempt import fork
from .loops import LOOPS, Loop

MOST_KILLS = 12
"""A run that was killed so often comes to its end."""
PATIENCE = 300.0


class Killed:
    """Runs of a loop, each killed again and again until it is complete."""

    def __init__(self, loop: Loop, seed: int, folder: Path) -> None:
        self._loop, self._draw, self._folder = loop, random.Random(seed), folder
        self._n_runs = 0
        self.stages: Counter[str] = Counter()
        self.lost: Counter[int] = Counter()
        self.expected = ""
        self._start_seconds, self._loop_seconds, self._steps_of_epoch = 0.0, 0.0, 0

    def undisturbed(self) -> Path:
        """A run to its end, which tells what all must give, and how long it takes; its folder."""
        run, began = self._new_run(), time.monotonic()
        pid = self._begin(run)
        self._await_step(run, 0)
        self._start_seconds = time.monotonic() - began
        self.expected = self._end(pid, run)
        self._loop_seconds = time.monotonic() - began - self._start_seconds
        self._steps_of_epoch = max(step for _, step in steps(run / "log"))
        return run

    def run(self, most_kills: int) -> int:
        """One run until it is complete; how often it was killed."""
        run, n_kills = self._new_run(), 0
        while True:
            before = len(lines(run / "log"))
            pid = self._begin(run)
            if n_kills == min(most_kills, MOST_KILLS) or not self._kill(pid, run, before):
                break
            n_kills += 1
            self._check(run, before)
        got = self._end(pid, run)
        (losses, _), (expected, _) = json.loads(got), json.loads(self.expected)
        is_same = got == self.expected if self._loop.exact else np.allclose(losses, expected, rtol=1e-4, atol=0.0)
        assert is_same, f"a run that was killed {n_kills} times gave {got}, not {self.expected}"
        return n_kills

    def _new_run(self) -> Path:
        self._n_runs += 1
        run = self._folder / str(self._n_runs)
        run.mkdir()
        return run

    def _begin(self, run: Path) -> int:
        return fork(self._loop, run)

    def _kill(self, pid: int, run: Path, before: int) -> bool:
        """Kill it while it starts, or at an instant of its loop; False if it has come to its end before."""
        if self._draw.random() < 0.15:
            time.sleep(self._draw.uniform(0.0, self._start_seconds))
        else:
            self._await_step(run, before)
            time.sleep(self._draw.uniform(0.0, self._loop_seconds / 3))
        if (run / "out").exists():
            return False
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) or (run / "out").exists(), "it ended by itself, and wrote nothing"
        assert os.WIFSIGNALED(status), (run / "out").read_text()
        return True

    def _await_step(self, run: Path, before: int) -> None:
        until = time.monotonic() + PATIENCE
        while len(lines(run / "log")) == before and not (run / "out").exists():
            assert time.monotonic() < until, "no step was done"
            time.sleep(0.0005)

    def _end(self, pid: int, run: Path) -> str:
        _, status = os.waitpid(pid, 0)
        text = (run / "out").read_text()
        assert status == 0, text
        return text

    def _check(self, run: Path, before: int) -> None:
        """What a process has left: a checkpoint that is valid, and not older than it must be."""
        told, path = lines(run / "log"), run / "checkpoints"
        written = [line.split()[1] for line in told if line.startswith("end ")]
        begun = [line.split()[1] for line in told if line.startswith("begin ")]
        self.stages[stage_of(told[before:])] += 1
        (run / "out").unlink(missing_ok=True)
        folder = RunFolder(path)
        newest = folder.newest()
        if newest is None:
            assert not written, f"nothing is there of {written}"
            assert not (path / LATEST).exists()
        else:
            position, _, failures = newest
            assert not failures, failures
            assert position.name >= max(written, default=""), f"{position.name} is there, and {written[-1]} was written"
            assert position.name in begun, f"{position.name} was never written"
        if (path / LATEST).exists():
            read(path / (path / LATEST).read_text().strip())
        done = max((epoch * self._steps_of_epoch + step for epoch, step in steps(run / "log")), default=0)
        at = 0 if newest is None else newest[0].epoch * self._steps_of_epoch + newest[0].step
        self.lost[max(done - at, 0)] += 1
        # While one was written the steps until the next went on, unless the loop waits.
        is_writing = len(begun) > len(written) and told[-1] != "done"
        is_ahead = not self._loop.wait and (is_writing or stage_of(told[before:]) != "steps")
        assert done - at <= self._loop.every * (2 if is_ahead else 1), told[-5:]


def lines(log: Path) -> list[str]:
    """The whole lines of a log."""
    return log.read_text().split("\n")[:-1] if log.exists() else []


def steps(log: Path) -> list[tuple[int, int]]:
    """Epoch and step of each call of steps."""
    found = re.findall(r"^step (\d+) (\d+)$", log.read_text() if log.exists() else "", re.MULTILINE)
    return [(int(epoch), int(step)) for epoch, step in found]


def stage_of(told: list[str]) -> str:
    """What a process did when it was killed, as its log tells."""
    if not told:
        return "starting"
    if told[-1] == "done":
        return "ending"
    n_begun, n_ended = (sum(line.startswith(word) for line in told) for word in ("begin ", "end "))
    return "writing" if n_begun > n_ended else "steps"


def import_all(names: list[str], loop: Loop) -> None:
    """Import what a process has imported, once for all that are forked; frameworks begin nothing by that."""
    for name in names:
        if name.partition(".")[0] in {"anyaccel", *(module.partition(".")[0] for module in loop.imports)}:
            with suppress(Exception):
                importlib.import_module(name)


def main(name: str, count: int, seed: int) -> None:
    """Kill processes of a loop `count` times."""
    loop = LOOPS[name]
    os.environ["ANYACCEL_PLUGINS"] = loop.plugin
    for module in loop.imports:
        importlib.import_module(module)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        killed = Killed(loop, seed, Path(folder))
        import_all((killed.undisturbed() / "modules").read_text().split(), loop)
        done = n_runs = 0
        while done < count:
            done += killed.run(count - done)
            n_runs += 1
            result = {"loop": name, "kills": done, "runs": n_runs, "seconds": round(time.monotonic() - began)}
            lost = dict(sorted(killed.lost.items()))
            print(json.dumps({**result, "stages": dict(killed.stages), "lost steps": lost}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
