"""Own loops that are killed or interrupted at random instants: `python disturbed_own_loop.py KIND SIZE COUNT SEED`.

KIND is `kill`, of one of the processes, or `interrupt`, as by Ctrl-C in the terminal of all. What a run has told before
it was disturbed, and after it went on, must be to the last digit what an undisturbed run tells. Processes are forked
from one that has imported everything, so that the instants are within the loop.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from anyaccel_distributed.processes import free_port

PATIENCE = 120.0
"""Seconds in which processes end, after one of them was disturbed, or come to the end of the loop."""
MOST = 6
"""A run that was disturbed so often comes to its end."""
N_EPOCHS = 6


def attempt(run: Path, rank: int, size: int, port: int, *, undisturbed: bool) -> None:
    """The loop in a forked process, which ends with it."""
    sys.stderr = sys.stdout = (run / f"log-{rank}").open("a", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    faulthandler.enable()
    if size > 1:
        place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "ANYACCEL_REPLICA_TIMEOUT": "60"})
        os.environ.update({name: str(value) for name, value in place.items()})
    train = runpy.run_path(str(Path(__file__).with_name("own_loop_killed.py")))["train"]
    told = (run / f"told-{rank}").open("a", buffering=1)
    folder = None if undisturbed else str(run / "checkpoints")
    train(folder, 0, 0, 7, epochs=N_EPOCHS, tell=lambda *now: told.write(f"{json.dumps(now)}\n"))


def fork(run: Path, rank: int, size: int, port: int, *, undisturbed: bool) -> int:
    """Process id of a process of the loop."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        attempt(run, rank, size, port, undisturbed=undisturbed)
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    sys.exit(status)


class Disturbed:
    """Runs of the loop, each disturbed again and again until it comes to its end."""

    def __init__(self, kind: str, size: int, seed: int, folder: Path) -> None:
        self._kind, self._size, self._draw, self._folder = kind, size, random.Random(seed), folder
        self._n_runs, self.expected = 0, dict[int, list[float]]()
        self._start_seconds = self._loop_seconds = 0.0
        self.instants = Counter[str]()

    def undisturbed(self) -> None:
        """A run to its end, which tells what all must tell."""
        run = self._new_run()
        pids = self._begin(run, undisturbed=True)
        began = time.monotonic()
        self._await_step(run, pids, 0)
        self._start_seconds, began = time.monotonic() - began, time.monotonic()
        statuses = self._ended(pids, run)
        self._loop_seconds = time.monotonic() - began
        assert set(statuses) == {0}, self._logs(run)
        for step, loss in self._told(run):
            self.expected.setdefault(step, []).append(loss)

    def run(self, most: int) -> int:
        """One run until it is complete; how often it was disturbed."""
        run, n_disturbed = self._new_run(), 0
        while True:
            pids = self._begin(run)
            hit = n_disturbed < min(most, MOST) and self._disturb(pids, run)
            statuses = self._ended(pids, run)
            self._check(run)
            if not hit:
                assert set(statuses) == {0}, self._logs(run)
                break
            n_disturbed += 1
            assert 0 not in statuses or self._is_complete(run), (statuses, self._logs(run))
        assert self._is_complete(run), self._logs(run)
        return n_disturbed

    def _new_run(self) -> Path:
        self._n_runs += 1
        run = self._folder / str(self._n_runs)
        run.mkdir()
        return run

    def _begin(self, run: Path, *, undisturbed: bool = False) -> list[int]:
        port = free_port()
        return [fork(run, rank, self._size, port, undisturbed=undisturbed) for rank in range(self._size)]

    def _disturb(self, pids: list[int], run: Path) -> bool:
        """Kill one process, or interrupt all, at an instant; False if the loop has come to its end before."""
        n_told = len(self._told(run))
        if self._draw.random() < 0.15:
            time.sleep(self._draw.uniform(0.0, self._start_seconds))
        else:
            self._await_step(run, pids, n_told)
            time.sleep(self._draw.uniform(0.0, self._loop_seconds / 2))
        if not self._are_alive(pids):
            return False
        for pid in [self._draw.choice(pids)] if self._kind == "kill" else pids:
            os.kill(pid, signal.SIGKILL if self._kind == "kill" else signal.SIGINT)
        self.instants["in the loop" if len(self._told(run)) > n_told else "before its first step"] += 1
        return True

    def _are_alive(self, pids: list[int]) -> bool:
        return all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for pid in pids)

    def _await_step(self, run: Path, pids: list[int], n_told: int) -> None:
        """Until a step is told, or there is none any more."""
        until = time.monotonic() + PATIENCE
        while len(self._told(run)) == n_told and self._are_alive(pids):
            if time.monotonic() > until:
                self._abort(pids)
                raise AssertionError(f"no step within {PATIENCE:g} seconds\n{self._logs(run)}")
            time.sleep(0.01)

    def _abort(self, pids: Iterable[int]) -> None:
        """Let processes write where they are into their logs."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        time.sleep(2.0)

    def _ended(self, pids: list[int], run: Path) -> list[int]:
        """The exit statuses, of processes that must end by themselves."""
        until, statuses = time.monotonic() + PATIENCE, dict[int, int]()
        while len(statuses) < len(pids):
            for pid in set(pids) - set(statuses):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                self._abort(set(pids) - set(statuses))
                raise AssertionError(f"processes did not end within {PATIENCE:g} seconds\n{self._logs(run)}")
            time.sleep(0.01)
        return [statuses[pid] for pid in pids]

    def _told(self, run: Path) -> list[tuple[int, float]]:
        file = run / "told-0"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def _check(self, run: Path) -> None:
        for step, loss in self._told(run):
            assert loss in self.expected[step], f"{loss!r} at step {step}, not one of {self.expected[step]}"

    def _is_complete(self, run: Path) -> bool:
        told: dict[int, set[float]] = {}
        for step, loss in self._told(run):
            told.setdefault(step, set()).add(loss)
        return told == {step: set(losses) for step, losses in self.expected.items()}

    def _logs(self, run: Path) -> str:
        return "\n".join(file.read_text()[-9000:] for file in sorted(run.glob("log-*")))


def main(kind: str, size: int, count: int, seed: int) -> None:
    """Disturb runs of the loop `count` times."""
    import torch.distributed  # noqa: F401

    import anyaccel as aa
    import anyaccel_torch.own_loop
    import anyaccel_torch.replica_group  # noqa: F401

    aa.Loop("cpu", framework="torch")
    began = time.monotonic()
    driver, folder = os.getpid(), Path(tempfile.mkdtemp())
    try:
        disturbed = Disturbed(kind, size, seed, folder)
        disturbed.undisturbed()
        done = n_runs = 0
        while done < count:
            done += disturbed.run(count - done)
            n_runs += 1
            told = {"kind": kind, "processes": size, "disturbed": done, "runs": n_runs}
            told |= {"instants": dict(disturbed.instants), "seconds": round(time.monotonic() - began)}
            print(json.dumps(told), flush=True)
    finally:
        if os.getpid() == driver:  # forked processes come here, too
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
