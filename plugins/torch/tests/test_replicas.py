"""Replicas in real processes, joined by gloo: the numbers are those of one process, and none is left waiting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SCRIPTS = Path(__file__).with_name("replica_scripts.py")


def run(names: str, folder: Path, size: int, *, by: str = "anyaccel") -> subprocess.CompletedProcess[str]:
    """Run functions of the scripts in so many processes, or in this many without a launcher if that is one."""
    launchers = {
        "anyaccel": ["-m", "anyaccel", "run", "--replicas", str(size)],
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)],
        "none": [],
    }
    command = [sys.executable, *launchers[by], str(SCRIPTS), names, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells of the same training."""
    folder = tmp_path_factory.mktemp("alone")
    answer = run("train,unused", folder, 1, by="none")
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell of everything that succeeds."""
    folder = tmp_path_factory.mktemp("two")
    answer = run("train,beside_ddp,unused,stop", folder, 2)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three replicas of torchrun tell, which cannot share batches of 50 rows evenly."""
    folder = tmp_path_factory.mktemp("three")
    answer = run("train", folder, 3, by="torchrun")
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "streamed", "accumulated"])
@pytest.mark.parametrize("size", [2, 3])
def test_losses_are_those_of_one_process(alone: Path, two: Path, three: Path, name: str, size: int) -> None:
    folder = {2: two, 3: three}[size]
    expected = told(alone, name, 1)[0]
    for one in told(folder, name, size):
        assert one["steps"] == expected["steps"]
        np.testing.assert_allclose(one["epochs"], expected["epochs"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "streamed", "accumulated", "unused"])
def test_all_replicas_have_the_same_weights_to_the_last_bit(two: Path, name: str) -> None:
    first, second = told(two, name, 2)
    assert first["weights"] == second["weights"]


@pytest.mark.slow
def test_weights_are_those_of_distributed_data_parallel(two: Path) -> None:
    for one in told(two, "ddp", 2):
        assert one["apart"] < 1e-6


@pytest.mark.slow
def test_parameters_that_only_some_replicas_use_are_trained_as_in_one_process(alone: Path, two: Path) -> None:
    expected = told(alone, "unused", 1)[0]
    for one in told(two, "unused", 2):
        assert one["same"]  # no gradient in any: no weight decay either
        assert one["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        for own, other in zip(one["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=2e-6)


@pytest.mark.slow
def test_one_that_asks_to_stop_stops_all(two: Path) -> None:
    assert [one["epochs"] for one in told(two, "stop", 2)] == [2, 2]


@pytest.mark.slow
def test_replicas_with_different_models_are_refused(tmp_path: Path) -> None:
    answer = run("disagree", tmp_path, 2)
    assert answer.returncode == 1
    assert "the replicas disagree before the first step: the values of 'net" in answer.stderr
    assert (
        "in replica 1 of those from 0 on" in answer.stderr
        and "seed the framework before the model is made" in answer.stderr
    )


@pytest.mark.slow
def test_one_that_fails_ends_all_with_its_traceback(tmp_path: Path) -> None:
    answer = run("fail", tmp_path, 2)
    assert answer.returncode == 1
    assert "ValueError: a fault of one replica" in answer.stderr
    assert "anyaccel run: replica " in answer.stderr
