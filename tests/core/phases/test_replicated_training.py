"""Phases in processes of a launcher: what cannot be shared is refused before anything is joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import CapabilityError, ConfigError, PhaseError
from anyaccel.phases.replica_checks import check_apart
from anyaccel.registry import registry
from anyaccel.replicas import ReplicaGroup


class OneOf(ReplicaGroup):
    """A replica whose peers give what they are told to give."""

    def __init__(self, *others: Any) -> None:
        self.rank, self.size, self.others = 0, 1 + len(others), others

    def average_gradients(self, programs: Any, weight: float) -> None:
        """Not used here."""

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


class Second(OneOf):
    """Another replica that draws the same rows, and asks to stop for a reason."""

    def gather(self, value: Any) -> list[Any]:
        return [value, [self.others[0], value[1]]]


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1], "w": x[:, :1] ** 2}, "x", "y", "w")


def graph_of(rows: aa.FeatureSet) -> aa.ModelGraph:
    model = aa.SequentialMLP(output_shape=(1,))
    return aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("sgd", lr=0.1))


def train(rows: aa.FeatureSet, **settings: Any) -> aa.TrainPhase:
    losses = [] if "step" in settings else [aa.AppliedLoss("mse", on="net")]
    return aa.TrainPhase("train", data=rows, losses=losses, sampler=4, **settings)


@pytest.mark.usefixtures("second_of_two")
def test_a_framework_without_replicas_is_refused() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match=r"trained by 2 replicas, and numpy has none here.*replicas=1"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows))


@pytest.mark.usefixtures("second_of_two")
def test_sharding_is_refused_by_a_framework_without_it() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match=r"numpy cannot divide parameters among replicas.*leave sharding out"):
        aa.Experiment(graph_of(rows)).plan(train(rows, sharding="full"))


@pytest.mark.usefixtures("second_of_two")
def test_with_one_replica_each_process_trains_on_its_own() -> None:
    rows = data()
    results = aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=1))
    assert results.epochs[0].steps == 4


@pytest.mark.usefixtures("second_of_two")
def test_weighted_losses_are_refused_where_their_weights_cannot_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = data()
    graph = graph_of(rows)
    monkeypatch.setattr(type(registry().find("numpy", "cpu")), "replica_group", lambda *_: OneOf({}), raising=False)
    monkeypatch.setattr("anyaccel.phases.replicated_training.Replicate", object)
    phase = aa.TrainPhase("train", data=rows, losses=[aa.AppliedLoss("mse", on="net", sample_weight="d.w")])
    with pytest.raises(CapabilityError, match=r"the loss 'net' weighs rows or positions, and replicas of numpy cannot"):
        aa.Experiment(graph).run_phase(phase)


@pytest.mark.usefixtures("second_of_two")
def test_a_number_of_replicas_that_was_not_started_is_refused() -> None:
    rows = data()
    with pytest.raises(PhaseError, match=r"has replicas=3, and this is one of 2 processes.*anyaccel run --replicas 3"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=3))


def test_more_replicas_than_devices_without_a_launcher_are_refused() -> None:
    rows = data()
    with pytest.raises(PhaseError, match=r"replicas=2, and this process has fewer devices .* cpu:0.*--replicas 2"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=2))


# -- devices of processes ----------------------------------------------------------------------------------------------


def planned(accelerator: Any, **settings: Any) -> str:
    """The device of the node in a plan of this process."""
    rows = data()
    return str(aa.Experiment(graph_of(rows)).plan(train(rows, accelerator=accelerator, **settings)).device("net"))


@pytest.mark.usefixtures("second_of_two")
def test_a_kind_is_a_device_of_its_own_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its place on its machine where the launcher says it; on the first of two machines, that is not the rank."""
    with aa.simulate(3):
        assert planned("sim") == planned(["sim:0", "sim:1"]) == "sim:1"
        assert planned("sim", replicas=1) == planned("sim:0") == "sim:0"
        assert planned("cpu") == planned(None) == "cpu:0"
        monkeypatch.setenv("ANYACCEL_DEVICE", "sim")
        assert planned(None) == "sim:1"
        monkeypatch.setenv("LOCAL_RANK", "0")
        assert planned("sim") == planned(None) == "sim:0"
        judged = aa.EvalPhase("e", data=data(), losses=[aa.AppliedLoss("mse", on="net")], accelerator="sim")
        monkeypatch.setenv("LOCAL_RANK", "2")
        assert str(aa.Experiment(graph_of(data())).plan(judged).device("net")) == "sim:2"


@pytest.mark.usefixtures("second_of_two")
def test_more_processes_on_a_machine_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    expected = r"asks for 'sim', and this is process 2 of those .*Available: sim:0, sim:1, one for each.*start 2 proc"
    with aa.simulate(2), pytest.raises(PhaseError, match=expected):
        planned("sim")


@pytest.mark.usefixtures("second_of_two")
def test_all_devices_of_a_machine_are_for_the_processes_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four processes on two machines with two devices each."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with aa.simulate(2):
        assert planned("sim:*") == "sim:1"
    with aa.simulate(3), pytest.raises(ConfigError, match=r"'sim:\*' is for 3 devices, one for each replica; .* of 2 "):
        planned("sim:*")


def apart(nodes: Mapping[str, str | None], other: Any, **settings: Any) -> None:
    """Check the devices of these nodes beside those of another replica."""
    rows = data()
    models = [aa.ModelNode(n, aa.SequentialMLP((1,)), rows.reference(), accelerator=on) for n, on in nodes.items()]
    losses = [aa.AppliedLoss("mse", on=name) for name in nodes]
    graph = aa.ModelGraph(models, aa.Optimizer("sgd", lr=0.1))
    with aa.simulate(2):
        plan = aa.Experiment(graph).plan(aa.TrainPhase("train", data=rows, losses=losses, **settings))
    check_apart("train", plan, lambda own: [own, own if other is None else other])


def test_a_node_on_a_device_of_its_own_beside_replicas_is_refused() -> None:
    expected = (
        r"they would train on one device: node 'b' on sim:1 in replica 0, node 'b' on sim:1 in replica 1\. "
        r"Available: accelerator='sim' of the phase gives .*Hint: leave the accelerator of the node out"
    )
    with pytest.raises(PhaseError, match=expected):
        apart({"a": "cpu", "b": "sim:1"}, None)
    apart({"a": "cpu", "b": "cpu"}, None)
