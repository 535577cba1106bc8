"""Replicas on several simulated devices of one process, in one of their own: torch simulates them for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import PhaseError

SCRIPT = Path(__file__).with_name("device_replica_script.py")
EPOCHS = 15 if os.environ.get("ANYACCEL_TEST_FULL") else 1
"""Of 7 steps each: 105 in all where everything is tested."""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    done = subprocess.run([sys.executable, SCRIPT, str(EPOCHS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    losses: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return losses


@pytest.mark.parametrize("which", ["replicas 2", "replicas 4", "fixed 1", "by hand"])
def test_losses_are_those_of_one_device_and_of_a_step_by_hand(told: dict[str, Any], which: str) -> None:
    assert len(told[which]) == EPOCHS
    np.testing.assert_allclose(told[which], told["replicas 1"], rtol=1e-6)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_sums_in_a_fixed_order_are_equal_to_the_last_bit(told: dict[str, Any], n: int) -> None:
    assert told[f"fixed {n}"] == told["fixed 1"]


def test_training_in_double_precision_is_that_of_one_device(told: dict[str, Any]) -> None:
    """Weights of losses are added up as precisely as the losses."""
    np.testing.assert_allclose(told["double 2"], told["double 1"], rtol=1e-12, atol=1e-14)


def test_a_parameter_that_only_some_shares_use_has_the_gradient_of_the_whole_batch(
    told: dict[str, Any],
) -> None:
    np.testing.assert_allclose(told["switch 8"], told["switch 1"], rtol=1e-6)


def test_buffers_of_the_rows_of_each_replica_are_told_and_others_are_those_of_one_device(told: dict[str, Any]) -> None:
    (message,) = told["warned"]["centred"]
    assert (
        "the buffer 'net/buffers/mean' changes by the rows of each replica, and the values of the first replica are"
        in message
    )
    assert message.endswith("replicas=1")
    assert told["warned"]["plain"] == told["warned"]["spectral"] == []
    np.testing.assert_allclose(told["spectral 2"], told["spectral 1"], rtol=1e-6)


def test_data_parallel_is_refused_with_a_pointer_to_replicas() -> None:
    data = aa.FeatureSet.from_dict("d", {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1))}, ["x"], ["y"])
    model = torch.nn.Sequential(torch.nn.DataParallel(torch.nn.Linear(3, 1)))
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("train", data=data, losses=[aa.AppliedLoss("mse", on="net")])
    with pytest.raises(PhaseError, match=r"DataParallel splits batches itself.*accelerator='gpu:\*'"):
        aa.Experiment(graph, progress="none").plan(phase)
