"""One program over several virtual CPUs, in a process of its own: XLA counts its devices once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.segment import Operation, Segment
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_jax import array_trees
from anyaccel_jax.backend import JaxBackend

SCRIPT = Path(__file__).with_name("mesh_script.py")
IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
WAYS = ["all at once", "sorting", "mixing"]
if IS_FULL:
    WAYS += ["clipped and accumulated", "plain", "streamed", "not compiled", "nnx"]


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("place", ["two", "divided"] if IS_FULL else ["divided"])
@pytest.mark.parametrize("way", WAYS)
def test_losses_values_and_states_are_those_of_one_device(told: dict[str, Any], way: str, place: str) -> None:
    """Dropout included, with a ragged last batch; states of the optimizer are whole."""
    own, expected = told["ways"][way][place], told["ways"][way]["one"]
    np.testing.assert_allclose(own["epochs"], expected["epochs"], rtol=1e-6)
    assert own["values"].keys() == expected["values"].keys()
    for name, value in expected["values"].items():
        np.testing.assert_allclose(own["values"][name], value, atol=1e-5, rtol=1e-4)


def test_ragged_rows_are_divided_where_xla_can(told: dict[str, Any]) -> None:
    """1001 by two; XLA ends the process where the gradient of a sort is divided unevenly."""
    assert told["work"]["1000"]["plain"] < 0.6 and told["work"]["1000"]["sorting"] < 0.6
    assert told["work"]["1001"]["plain"] < 0.6 and told["work"]["1001"]["sorting"] > 0.9


@pytest.mark.skipif(not IS_FULL, reason="ANYACCEL_TEST_FULL is not set")
@pytest.mark.parametrize("place", ["two", "divided", "four divided"])
def test_many_steps_have_the_losses_of_one_device(told: dict[str, Any], place: str) -> None:
    """105 of Adam."""
    np.testing.assert_allclose(told["long"][place], told["long"]["one"], rtol=1e-6)


def test_each_device_keeps_its_part(told: dict[str, Any]) -> None:
    """Of parameters and two slots, counted in JAX's live arrays."""
    assert all(0.45 < part <= 0.55 for part in told["counted"]["parts"])


def test_after_a_fault_the_model_is_whole_on_the_first_device(told: dict[str, Any]) -> None:
    assert told["counted"]["finite"]
    assert told["counted"]["devices"] == ["{CpuDevice(id=0)}"]


def test_a_checkpoint_is_gone_on_from_by_one_device(told: dict[str, Any]) -> None:
    np.testing.assert_allclose(told["gone on"]["epochs"], told["ways"]["all at once"]["one"]["epochs"], rtol=1e-6)
    assert told["gone on"]["devices"] == ["{CpuDevice(id=0)}"]


def test_the_plan_says_what_is_divided(told: dict[str, Any]) -> None:
    assert told["ways"]["all at once"]["divided"]["notes"][-2:] == [
        "parameters and optimizer state of 'net' are sharded over 2 devices",
        "parameters of 'last' are whole in each replica",
    ]


@pytest.mark.skipif(not IS_FULL, reason="ANYACCEL_TEST_FULL is not set")
@pytest.mark.parametrize("way", ["first", "below", "not compiled"])
def test_one_node_is_divided_and_another_whole(told: dict[str, Any], way: str) -> None:
    """Losses and values are those of one device, over two phases; and the parts that a device has."""
    own, expected = told["nodes"][way], told["nodes"]["one"]
    np.testing.assert_allclose(own["epochs"], expected["epochs"], rtol=1e-6)
    for name, value in expected["values"].items():
        np.testing.assert_allclose(own["values"][name], value, atol=1e-5, rtol=1e-4)
    assert own["parts"] == {"first": 0.5, "last": 1.0} and expected["parts"] == {"first": 1.0, "last": 1.0}
    assert own["notes"][-2:] == [
        "parameters and optimizer state of 'first' are sharded over 2 devices",
        "parameters of 'last' are whole in each replica",
    ]


def test_layers_of_keras_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_trees, "is_keras", lambda obj: True)
    operation = Operation("net", object(), ("x",), ("y",), Device("cpu"))
    segment = Segment(label="s", operations=(operation,), inputs={}, outputs=("y",))
    replicas = JaxBackend().required(DeviceReplicas)
    assert replicas.undividable_reason(segment) == "node 'net' has Keras layers, and their variables cannot be sharded"
    assert replicas.undividable_reason(segment, whole=["net"]) == ""
