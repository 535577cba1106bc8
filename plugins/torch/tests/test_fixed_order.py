"""`deterministic=True` between processes: equal to the last bit, whatever their number, and to one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SCRIPT = Path(__file__).with_name("fixed_order_script.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
SIZES = (2, 3, 4, 8) if FULL else (2,)
N_ROWS = 105 if FULL else 101
"""The last batch has 9 rows, or 5, which two processes share unevenly."""
WAYS = ("plain", "accumulated", "scaled", "switch", "source", *(["many"] if FULL else []))


def run(ways: str, folder: Path, size: int) -> None:
    launcher = [] if size == 1 else ["-m", "anyaccel", "run", "--replicas", str(size)]
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), ways, str(N_ROWS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # libraries add by thread
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr


def told(folder: Path, way: str, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{way}-{rank}.json").read_text())
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What each number of processes tells; the last of them leaves a checkpoint, with which one process goes on."""
    every = {size: tmp_path_factory.mktemp(f"of-{size}") for size in (*SIZES, 1)}
    for size in SIZES:
        run(",".join([*WAYS, "broken"]), every[size], size)
    (every[SIZES[-1]] / "checkpoints").rename(every[1] / "checkpoints")
    run(",".join([*WAYS, "unbroken", "resumed"]), every[1], 1)
    return every


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_losses_and_values_are_equal_to_the_last_bit(folders: dict[int, Path], size: int, way: str) -> None:
    expected = told(folders[1], way)
    for rank in range(size):
        one = told(folders[size], way, rank)
        assert one["losses"] == expected["losses"]
        assert one["state"] == expected["state"]
        assert one["skipped"] == expected["skipped"] and bool(one["skipped"]) is (way == "scaled")


@pytest.mark.slow
def test_one_process_goes_on_within_an_epoch_of_several(folders: dict[int, Path]) -> None:
    resumed, whole = told(folders[1], "resumed"), told(folders[1], "unbroken")
    assert resumed["state"] == whole["state"] and resumed["losses"] == whole["losses"]
    assert len(resumed["events"]) == 1 and "resumes from" in resumed["events"][0]
