"""A batch size that fits into the memory of all processes: each begins again, whichever of them ran out of memory."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
HERE = Path(__file__).parent
_models = runpy.run_path(str(HERE / "own_loop_models.py"))
CASES = ("data", "forward", "backward", "norm", "step", "end", "save", "all")


@pytest.fixture(
    scope="module",
    params=[pytest.param({}, marks=pytest.mark.whole), {"ANYACCEL_TORCH_BUCKET_MB": "0.0001"}],
    ids=["one bucket", "many"],
)
def of_processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("memory")
    command = [
        sys.executable,
        "-m",
        "anyaccel",
        "run",
        "--replicas",
        "2",
        str(HERE / "own_loop_memory.py"),
        str(folder),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ANYACCEL_REPLICA_TIMEOUT": "60", **request.param}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert answer.returncode == 0, answer.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def by_hand(case: str) -> list[Any]:
    """The training with batches of 8 rows."""
    net = _models["normalizing"]() if case == "norm" else _models["network"]()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x, y = _models["rows_of"](70)
    losses = []
    for rows, targets in zip(x.split(8), y.split(8), strict=True):
        loss = F.mse_loss(net(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *(float(tensor.double().sum()) for tensor in net.state_dict().values())]


@pytest.mark.parametrize("case", CASES)
def test_all_begin_again_with_half_the_size(of_processes: list[dict[str, Any]], case: str) -> None:
    for told in of_processes:
        tried, before, (size, losses, weights), after = told[case]
        assert (tried, before, size, after) == ([32, 16, 8], 0, 8, 9)
        assert [*losses, *weights] == pytest.approx(by_hand(case), rel=1e-6, abs=1e-9)


def test_memory_for_no_row_is_an_error_in_all(of_processes: list[dict[str, Any]]) -> None:
    (elsewhere, here) = (told["never"] for told in of_processes)
    assert elsewhere[0] == here[0] == [4, 2, 1]
    assert "process 1 is out of memory: RuntimeError" in elsewhere[1] and "allocate" in here[1]


def test_what_would_wait_is_refused(of_processes: list[dict[str, Any]]) -> None:
    for told in of_processes:
        different, sharded = told["refusals"]
        assert "begins with different sizes in the processes: 8, 9" in different
        assert "Loop(accumulate=2)" in sharded
