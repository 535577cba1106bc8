"""Gradients that are exchanged within the backward pass: numbers of one process, in models that stay as they are."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyaccel.errors import ConfigError
from anyaccel_distributed.processes import free_port
from anyaccel_torch.gradient_buckets import agreed_bucket_bytes, bucket_bytes

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SCRIPTS = Path(__file__).with_name("overlap_scripts.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
CASES = (
    *("plain", "clipped", "accumulated", "tied", "branches", "sparse", "reentrant", "reentrant once", "recomputed"),
    *("last step", "last step accumulated", "sparse in the last step", "a source", "kept gradients"),
)
PARTS = ("untouched", "sixteen_bits", "without_rows", "bounded")
ENVIRONMENT = {**os.environ, "ANYACCEL_TORCH_BUCKET_MB": "0.005", "OMP_NUM_THREADS": "1"}
"""Buckets of a layer of the scripts each."""


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


def succeeded(names: str, folder: Path, size: int) -> Path:
    """The folder in which so many replicas told what they found."""
    launcher = ["-m", "anyaccel", "run", "--replicas", str(size)] if size > 1 else []
    command = [sys.executable, *launcher, str(SCRIPTS), names, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=ENVIRONMENT)
    assert answer.returncode == 0, answer.stderr
    assert "reducer.cpp" not in answer.stderr  # where torch warns of what DistributedDataParallel did not need
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells of the same trainings."""
    return succeeded("equal", tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell."""
    return succeeded("equal,planted,beside_ddp,overlaps,late," + ",".join(PARTS), tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four replicas tell."""
    return succeeded("equal,beside_ddp", tmp_path_factory.mktemp("four"), 4)


def is_equal(alone: Path, every: list[Any], name: str) -> None:
    (expected,) = told(alone, name, 1)
    for each in every:
        np.testing.assert_allclose(each["losses"], expected["losses"], rtol=1e-6)
        assert each["weights"] == every[0]["weights"]
        for weights, others in zip(each["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(weights, others, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_replicas_have_the_numbers_of_one_process(alone: Path, two: Path, name: str) -> None:
    is_equal(alone, told(two, name, 2), name)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")
@pytest.mark.parametrize("name", CASES)
def test_four_replicas_have_the_numbers_of_one_process(alone: Path, four: Path, name: str) -> None:
    is_equal(alone, told(four, name, 4), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "no_sync"])
def test_weights_are_those_of_distributed_data_parallel(two: Path, name: str) -> None:
    for each in told(two, name, 2):
        assert each["apart"] < 1e-6


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")
def test_weights_of_four_are_those_of_distributed_data_parallel(four: Path) -> None:
    for name in ("ddp", "no_sync"):
        for each in told(four, name, 4):
            assert each["apart"] < 1e-6


@pytest.mark.slow
def test_a_step_that_is_infinite_in_one_replica_is_skipped_by_all(two: Path) -> None:
    first, second = told(two, "planted", 2)
    assert math.isinf(first["losses"][0]) and math.isfinite(first["losses"][1])
    assert first["weights"] == second["weights"]
    assert all(math.isfinite(value) for weights in first["weights"] for value in weights)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes"), [("whole", 1), ("parts", 2)])
def test_sums_begin_before_the_backward_pass_ends(two: Path, name: str, passes: int) -> None:
    """From the second step on; with accumulated batches in the last pass of each step alone."""
    for each in told(two, f"events of {name}", 2):
        steps = by_step(each["events"], 5 * passes)
        assert len(steps) == 4 // passes
        first, *later = [[kind for kind, nbytes in step if kind == "backward" or nbytes > 8] for step in steps]
        assert first[: 5 * passes] == ["backward"] * 5 * passes
        for kinds in later:
            assert kinds[: 5 * passes - 4] == ["backward"] * (5 * passes - 4)
            assert "all-reduce" in kinds[: kinds.index("backward", 5 * passes - 1)]  # a layer is still to come


def by_step(events: list[list[Any]], n_layers: int) -> list[list[list[Any]]]:
    """Events up to the last all-reduce after so many layers."""
    steps: list[list[list[Any]]] = [[]]
    for event in events:
        if event[0] == "backward" and sum(kind == "backward" for kind, _ in steps[-1]) == n_layers:
            steps.append([])
        steps[-1].append(event)
    return steps


@pytest.mark.slow
def test_a_gradient_that_comes_twice_later_is_an_error(two: Path) -> None:
    for each in told(two, "late", 2):
        assert each["message"].startswith("phase 'train', epoch ")
        twice = (
            "the gradient of a parameter of shape [32] was computed twice in one backward pass, but not in the first "
            "step"
        )
        assert twice in each["message"]
        assert (
            "Hint: checkpoint with use_reentrant=False, or exchange all gradients after the pass: " in each["message"]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("broken", "raise"),
        pytest.param("killed", "kill", marks=pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")),
    ],
)
def test_one_that_ends_within_a_backward_pass_leaves_no_other_waiting(script: str, name: str, tmp_path: Path) -> None:
    port = str(free_port())
    shared = {**ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(SCRIPTS), script, str(tmp_path)]
    both = [subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "01"]
    assert [process.wait(120) for process in both] == [1, 1 if name == "raise" else -9]
    one = json.loads((tmp_path / f"{name}-0.json").read_text())
    assert one["message"].startswith("phase 'train', epoch 0, step ")
    assert "replica 0 of 2 could not average the gradients: replica 1 ended or did not answer" in one["message"]
    if name == "raise":
        other = json.loads((tmp_path / "raise-1.json").read_text())
        assert (other["kind"], other["message"]) == ("ValueError", "a fault within the backward pass")


@pytest.mark.slow
def test_nothing_is_left_of_a_phase_in_the_model(two: Path) -> None:
    for rank, each in enumerate(told(two, "untouched", 2)):
        assert each.pop("unused_sum") == told(two, "untouched", 2)[0]["unused_sum"]
        assert each == {
            "used": 1,
            "left": 0,
            "steps": {"backward": 4, "gradient": 4},
            "kind": "Noted",
            "same": True,
            "names": True,
            "unused": True,
            "has_gradient": rank == 0,
        }


@pytest.mark.slow
def test_gradients_in_16_bits_are_added_up_in_float32(two: Path) -> None:
    for each in told(two, "16 bits", 2):
        assert each == {"same": True, "apart": True}


@pytest.mark.slow
def test_a_replica_without_rows_takes_part(two: Path) -> None:
    for each in told(two, "without rows", 2):
        assert each == {"first": [2.0, 2.0, 2.0], "second": True}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [("float32", 1.25), ("bfloat16", 1.8)])
def test_after_the_pass_memory_grows_by_a_bucket_and_not_by_a_copy_of_all_gradients(
    two: Path, dtype: str, most: float
) -> None:
    for each in told(two, f"bounded {dtype}", 2):
        assert each["close"]
        assert each["whole"] <= each["most"] <= most * each["whole"]  # a bucket is an eighth


@pytest.mark.parametrize("text", ["0", "-1", "many", "nan"])
def test_a_size_of_buckets_that_is_none_is_named(text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^ANYACCEL_TORCH_BUCKET_MB='{text}' is not a number of megabytes above 0\. Hint"
    ):
        bucket_bytes({"ANYACCEL_TORCH_BUCKET_MB": text})


def test_buckets_of_several_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_TORCH_BUCKET_MB", "2")
    assert agreed_bucket_bytes(lambda own: [own, own]) == 2 * 2**20
    expected = (
        r"is not the same in all replicas: 2 in replica 0, but different in replica 1, 2; here it is 2.*every process"
    )
    with pytest.raises(ConfigError, match=expected):
        agreed_bucket_bytes(lambda own: [own, own + 1, 1.0])
    monkeypatch.delenv("ANYACCEL_TORCH_BUCKET_MB")
    assert bucket_bytes() == 25 * 2**20
    assert bucket_bytes({"ANYACCEL_TORCH_BUCKET_MB": "inf"}) == math.inf
