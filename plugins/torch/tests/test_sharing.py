"""What replicas share beyond plain batches: weighted losses and sources, in real processes joined by gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.slow,
]

SCRIPTS = Path(__file__).with_name("sharing_scripts.py")
WEIGHTED = [f"weighted-{name}-{n}" for name in ("ignore_index", "class_weights", "two") for n in (1, 2)]
SOURCES = [f"source-{name}" for name in ("map", "generator", "loader", "workers", "parquet")]


def run(names: str, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run functions of the scripts in so many processes, or in this many without a launcher if that is one."""
    launcher = [] if size == 1 else ["-m", "anyaccel", "run", "--replicas", str(size)]
    command = [sys.executable, *launcher, str(SCRIPTS), names, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def succeeded(names: str, folder: Path, size: int) -> Path:
    """The folder in which they told what they found."""
    answer = run(names, folder, size)
    assert answer.returncode == 0, answer.stderr
    return folder


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells."""
    return succeeded("weighted,sources", tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell, whose shares of most batches differ by a row."""
    return succeeded("weighted,sources,refused", tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("name", [*WEIGHTED, *SOURCES])
def test_losses_and_weights_are_those_of_one_process(alone: Path, two: Path, name: str) -> None:
    expected = told(alone, name, 1)[0]
    for each in told(two, name, 2):
        assert each.get("steps") == expected.get("steps")
        np.testing.assert_allclose(each["epochs"], expected["epochs"], rtol=1e-6)
        for own, other in zip(each["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_shares", "epoch 0, step 0: the source 'data' gives other batches in replica 1 than in replica 0"),
        ("own_shares", "leave a DistributedSampler out"),
        ("shorter", "epoch 0, step 2: the source 'data' is at its end in replica 1 only"),
        ("small_batch", "the source 'data' gave a batch of 1 rows for 2 replicas"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_all_replicas(two: Path, name: str, message: str) -> None:
    for each in told(two, name, 2):
        assert message in each["message"]
