"""Replicas that are killed: with a launcher that restarts, the end is that of an undisturbed run; without, all end.

ANYACCEL_TEST_KILLS sets how many are killed in the first way; the session `kills` of nox kills 20.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyaccel_distributed.processes import free_port

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.slow,
]

SCRIPTS = Path(__file__).with_name("replica_scripts.py")
KILLS = min(int(os.environ.get("ANYACCEL_TEST_KILLS", "0")) or (2 if os.environ.get("ANYACCEL_TEST_FULL") else 1), 20)
WITHIN = 15 if KILLS > 2 else 60
"""Seconds until all have ended; what is promised is asserted where nothing else runs, in the session `kills`."""
STEPS = 4 * 9  # of the script: epochs, and steps of one


def torchrun(folder: Path, size: int, *, name: str = "resumed", **environment: str) -> list[Any]:
    """What each of so many replicas told in the end; torchrun starts all anew when one is killed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "--max-restarts", "1"]
    command = [sys.executable, *launcher, str(SCRIPTS), name, str(folder)]
    env = {**os.environ, **environment}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    return [json.loads((folder / f"resumed-{rank}.json").read_text()) for rank in range(size)]


def kill_in(folder: Path, rank: int, step: int, by: signal.Signals = signal.SIGKILL) -> Path:
    """A folder for the script, in which this replica sends itself a signal after so many steps of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kill.json").write_text(json.dumps([rank, step, by]))
    return folder


def assert_every_row_once(folder: Path) -> None:
    """In each epoch, of the steps that led to the end: each was trained last by the attempt that is counted."""
    lines = [json.loads(line) for path in folder.glob("rows-*.jsonl") for line in path.read_text().splitlines()]
    last: dict[tuple[int, int], int] = {}
    for attempt, epoch, step, _ in lines:
        last[epoch, step] = max(attempt, last.get((epoch, step), 0))
    assert len(last) == STEPS
    epochs: dict[int, list[float]] = {}
    for attempt, epoch, step, rows in lines:
        if attempt == last[epoch, step]:
            epochs.setdefault(epoch, []).extend(rows)
    assert [len(set(rows)) for rows in epochs.values()] == [len(rows) for rows in epochs.values()] == [808] * 4
    assert len({frozenset(rows) for rows in epochs.values()}) == 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What three replicas tell that nobody kills."""
    return torchrun(tmp_path_factory.mktemp("undisturbed"), 3)


@pytest.mark.parametrize("attempt", range(KILLS))
def test_restarted_replicas_end_like_undisturbed_ones(undisturbed: list[Any], tmp_path: Path, attempt: int) -> None:
    """To the last bit, with dropout and clipping, a ragged last batch, and the losses of all epochs."""
    draw = random.Random(attempt)
    rank, step = draw.randrange(3), draw.randrange(1, STEPS - 1)
    folder = kill_in(tmp_path, rank, step)
    every = draw.choice(["1", "4", '"epoch"', '"0.05s"'])
    replicas = torchrun(folder, 3, EVERY=every)
    assert (folder / "killed").exists(), (rank, step)
    for one in replicas:
        assert one["state"] == undisturbed[0]["state"], (rank, step, every)
        assert one["epochs"] == undisturbed[0]["epochs"]
    assert_every_row_once(folder)
    steps = {"1": 1, "4": 4}.get(every)
    if steps is not None and step >= steps:
        assert "resumes from" in replicas[0]["events"][0]


def test_replicas_of_another_number_go_on(tmp_path: Path) -> None:
    """Three are killed within an epoch and two go on, with the rows and losses of one that nobody killed."""
    alone = torchrun_alone(tmp_path / "alone")
    folder = kill_in(tmp_path / "killed", 1, 14)
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", "3", str(SCRIPTS)]
    killed = subprocess.run(
        [*command, "resumed_without_dropout", str(folder)], capture_output=True, timeout=120, check=False
    )
    assert killed.returncode != 0 and (folder / "killed").exists()
    for one in torchrun(folder, 2, name="resumed_without_dropout"):
        assert one["events"][0].endswith("epoch-000001-step-000000003")
        assert (
            "random streams start again within epoch 1: they belong to 3 replicas, but now there are 2" in one["events"]
        )
        np.testing.assert_allclose(np.array(one["epochs"]), np.array(alone["epochs"]), rtol=1e-6)
        for own, other in zip(one["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=1e-6)
    assert_every_row_once(folder)


def torchrun_alone(folder: Path) -> Any:
    """What one process tells of the run without dropout."""
    folder.mkdir()
    command = [sys.executable, str(SCRIPTS), "resumed_without_dropout", str(folder)]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    return json.loads((folder / "resumed-0.json").read_text())


def started_alone(folder: Path, **environment: str) -> list[subprocess.Popen[bytes]]:
    """Three replicas that no launcher watches."""
    port = str(free_port())
    shared = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment}
    command = [sys.executable, str(SCRIPTS), "resumed", str(folder)]
    return [subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "012"]


def lost(folder: Path, rank: int) -> str:
    """The message of the error that a replica ended with."""
    return str(json.loads((folder / f"lost-{rank}.json").read_text())["message"])


@pytest.mark.parametrize("attempt", range(KILLS))
def test_without_a_launcher_all_end_and_name_rank_and_step(tmp_path: Path, attempt: int) -> None:
    draw = random.Random(100 + attempt)
    victim, step = [(0, 14), (2, 14)][attempt] if attempt < 2 else (draw.randrange(3), draw.randrange(1, STEPS - 1))
    folder = kill_in(tmp_path, victim, step)
    processes = started_alone(folder)
    processes[victim].wait(120)
    began = time.monotonic()
    codes = [process.wait(60) for process in processes]
    assert time.monotonic() - began < WITHIN
    assert codes == [-9 if rank == victim else 1 for rank in range(3)]
    for rank in {0, 1, 2} - {victim}:
        message = lost(folder, rank)
        assert f"phase 'train', epoch {step // 9}, step " in message, (victim, step)
        assert f"replica {rank} of 3 could not " in message
        assert f"replica {victim} ended or did not answer" in message


@pytest.mark.parametrize("victim", [0, 2] if KILLS > 2 else [2])
def test_a_replica_that_hangs_is_named_when_the_time_is_over(tmp_path: Path, victim: int) -> None:
    folder = kill_in(tmp_path, victim, 14, signal.SIGSTOP)
    processes = started_alone(folder, ANYACCEL_REPLICA_TIMEOUT="10")
    others = [process for rank, process in enumerate(processes) if rank != victim]
    try:
        deadline = time.monotonic() + 120
        while not (folder / "killed").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        began = time.monotonic()
        assert [process.wait(60) for process in others] == [1, 1]
        assert time.monotonic() - began < 10 + WITHIN
    finally:
        processes[victim].kill()
        processes[victim].wait()
    for rank in {0, 1, 2} - {victim}:
        message = lost(folder, rank)
        assert f"phase 'train', epoch 1, step 6: replica {rank} of 3 could not " in message
        assert f"replica {victim} ended or did not answer" in message
