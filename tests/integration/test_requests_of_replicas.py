"""Requests for several devices, one for each replica: in plans of other machines, and in a launcher's processes."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ConfigError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry

pytestmark = pytest.mark.without_framework


@pytest.fixture(autouse=True)
def _numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])


def experiment() -> aa.Experiment:
    x = np.ones((96, 6), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    return aa.Experiment("e", aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam"))


def train() -> aa.TrainPhase:
    losses = [aa.AppliedLoss("mse", on="net")]
    return aa.TrainPhase("t", data="all", losses=losses, accelerator="sim:0+1", batch_size=16)


def test_a_plan_of_another_machine_is_that_of_one_replica() -> None:
    plan = experiment().plan(train(), "2x sim-1GB")
    assert plan.notes[-1].startswith("this is the plan of one of 2 replicas, on sim:0, sim:1")
    assert set(plan.memory[0].gaps) == {"batches", "activations"} and plan.fits is None


@pytest.mark.parametrize(("size", "rank", "device"), [(3, 0, None), (2, 0, "sim:0"), (2, 1, "sim:1")])
def test_each_process_has_one_of_the_devices(
    monkeypatch: pytest.MonkeyPatch, size: int, rank: int, device: str | None
) -> None:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    with aa.simulate(2):
        if device is not None:
            assert str(experiment().plan(train()).device("net")) == device
            return
        with pytest.raises(ConfigError, match=r"'sim:0\+1' is for 2 devices, .* this is one of 3 pro"):
            experiment().plan(train())
