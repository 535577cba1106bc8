"""Replicas on several virtual CPUs of one process, in a process of their own: XLA counts its devices once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("device_replica_script.py")
EPOCHS = 15 if os.environ.get("ANYACCEL_TEST_FULL") else 1
"""Of 7 steps each: 105 in all where everything is tested."""


@pytest.fixture(scope="module")
def told() -> dict[str, list[float]]:
    done = subprocess.run([sys.executable, SCRIPT, str(EPOCHS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    losses: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return losses


@pytest.mark.parametrize("which", ["replicas 2", "replicas 4", "fixed 1", "by hand"])
def test_losses_are_those_of_one_device_and_of_a_step_by_hand(told: dict[str, list[float]], which: str) -> None:
    assert len(told[which]) == EPOCHS
    np.testing.assert_allclose(told[which], told["replicas 1"], rtol=1e-6)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_sums_in_a_fixed_order_are_equal_to_the_last_bit(told: dict[str, list[float]], n: int) -> None:
    assert told[f"fixed {n}"] == told["fixed 1"]
