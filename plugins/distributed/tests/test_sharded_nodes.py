"""Sharding of single nodes: what the plan says, what is saved, and what is refused before anything moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import CapabilityError, GraphError, PhaseError
from anyaccel.numpy_backend.backend import NumpyBackend
from anyaccel_distributed import divided_parameters as sharding
from anyaccel_distributed.device_replicas import DeviceReplicas


def rows() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, "x", "y")


ROWS = rows()


def plan(first: str | None, last: str | None, phase: str | None = None, **settings: Any) -> aa.Plan:
    nodes = [
        aa.ModelNode("first", settings.pop("model", None) or aa.SequentialMLP(3), ROWS.reference(), sharding=first),
        aa.ModelNode("last", settings.pop("other", None) or aa.SequentialMLP(1), "first", sharding=last),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="last")]
    train = aa.TrainPhase("train", data=ROWS, losses=losses, batch_size=4, sharding=phase, **settings)
    return aa.Experiment(graph).plan(train)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def numpy_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that can divide parameters among processes, as far as planning goes."""
    monkeypatch.setattr(sharding, "ShardParameters", NumpyBackend)
    monkeypatch.setattr(NumpyBackend, "shards_nodes", True, raising=False)
    monkeypatch.setattr(NumpyBackend, "global_batches", False, raising=False)
    monkeypatch.setattr(NumpyBackend, "sharded_blocks", lambda self, model: (), raising=False)

    def unshardable_reason(self: Any, segment: Any, *, offload: bool, whole: tuple[str, ...] = ()) -> str:
        return f"whole are {', '.join(whole)}" if whole == ("first", "last") else ""

    monkeypatch.setattr(NumpyBackend, "unshardable_reason", unshardable_reason, raising=False)


def test_the_node_comes_before_the_phase_and_the_plan_says_who_decided() -> None:
    made = plan("none", None, "full")
    assert [(each.sharding, each.sharding_reason) for each in made.assignments] == [("none", "node"), ("full", "phase")]
    assert "none (node)" in str(made) and "full (phase)" in str(made)
    assert "replicas keep its parameters whole, because the node requests it" in made.explain("first")
    assert "replicas keep its parameters divided, because the phase requests it" in made.explain("last")
    assert aa.Plan.from_json(made.to_json()) == made
    silent = plan(None, None)
    assert "sharding" not in silent.to_dict()["assignments"][0] and "sharding" not in str(silent)


def test_an_evaluation_has_whole_parameters() -> None:
    node = aa.ModelNode("net", aa.SequentialMLP(1), ROWS.reference(), sharding="full")
    made = aa.Experiment(aa.ModelGraph([node], "adam")).plan(aa.EvalPhase("eval", data=ROWS))
    assert made["net"].sharding == "" and not made.notes


def test_the_setting_of_a_node_is_saved() -> None:
    node = aa.ModelNode("net", aa.SequentialMLP(1), ROWS.reference(), sharding="full offload")
    graph = aa.ModelGraph([node], "adam")
    again = aa.ModelGraph.from_config(graph.get_config(), feature_sets=[ROWS])
    assert again["net"].sharding == "full offload"
    bare = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), ROWS.reference())], "adam").get_config()
    assert "sharding" not in bare["nodes"][0]


def test_an_unknown_sharding_of_a_node_is_refused() -> None:
    message = (
        r"node 'net': unknown sharding='half'. Available: 'full', 'full offload', 'none'. Hint: write sharding='full'"
    )
    with pytest.raises(GraphError, match=message):
        aa.ModelNode("net", aa.SequentialMLP(1), ROWS.reference(), sharding="half")


def test_nodes_that_share_a_model_have_one_sharding() -> None:
    model = aa.SequentialMLP(3)
    message = r"nodes 'first' and 'last' share a model, but its parameters are 'full' in one and 'none' in the other"
    with pytest.raises(GraphError, match=message):
        plan("full", None, model=model, other=model)


def test_a_process_on_its_own_divides_nothing_and_says_so() -> None:
    assert plan("full", None).notes == ("sharding='full' has no effect: this process trains alone",)


@pytest.mark.usefixtures("second_of_two", "numpy_divides")
def test_the_plan_says_which_nodes_are_divided_and_which_are_whole() -> None:
    divided = "parameters and optimizer state of 'first' are sharded over 2 replicas and gathered together"
    kept = "parameters of 'last' are whole in each replica"
    assert plan("full", None).notes[:-1] == (divided, kept)
    assert plan(None, "none", "full").notes[:-1] == (divided, kept)
    assert plan("none", "none", "full").notes[0] == "sharding='full' has no effect: all nodes have sharding='none'"


@pytest.mark.usefixtures("second_of_two", "numpy_divides")
def test_parts_rest_in_one_place() -> None:
    message = r"node 'first' stores its shards on the device, but node 'last' in host memory. Hint: leave sharding out"
    with pytest.raises(PhaseError, match=message):
        plan("full", "full offload")


@pytest.mark.usefixtures("second_of_two", "numpy_divides")
def test_a_plugin_that_divides_all_or_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyBackend, "shards_nodes", False)
    message = (
        r"phase 'train': node 'first' has sharding='full', but node 'last' has sharding='none', and the plugin of "
        r"numpy can only shard all nodes or none. Hint: use the sharding of the phase"
    )
    with pytest.raises(CapabilityError, match=message):
        plan("full", None)
    assert plan("full", "full").notes and plan(None, None, "full").notes


@pytest.mark.usefixtures("second_of_two")
def test_a_framework_without_sharding_is_refused_and_the_node_is_named() -> None:
    message = r"phase 'train': node 'last' has sharding='full', but numpy cannot shard parameters over replicas"
    with pytest.raises(CapabilityError, match=message):
        plan(None, "full")
    with pytest.raises(CapabilityError, match=r"phase 'train' has sharding, but numpy cannot"):
        plan(None, "none", "full")


def test_devices_of_one_process_that_divide_nothing_are_refused() -> None:
    with aa.simulate(2):
        message = r"node 'first' has sharding='full' over sim:0, sim:1, but its plugin can shard .* only over processes"
        with pytest.raises(PhaseError, match=message):
            plan("full", None, accelerator="sim", replicas=2)
        with pytest.raises(PhaseError, match=r"node 'first' .*deterministic=True sums whole gradients"):
            plan("full", None, accelerator="sim", replicas=2, deterministic=True)


@pytest.mark.usefixtures("numpy_divides")
def test_processes_are_a_hint_where_they_can_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    with aa.simulate(2):
        with pytest.raises(PhaseError, match=r"Hint: start processes, anyaccel run --replicas 2 SCRIPT, or leave"):
            plan("full", None, accelerator="sim", replicas=2)
        monkeypatch.setattr(NumpyBackend, "unshardable_reason", lambda *_, **__: "nothing is divided")
        with pytest.raises(PhaseError, match=r"Hint: leave sharding out, so that each replica has"):
            plan("full", None, accelerator="sim", replicas=2)


def test_devices_that_divide_all_nodes_or_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceReplicas, "undividable_reason", lambda self, segment: "")
    with aa.simulate(2), pytest.raises(CapabilityError, match=r"the plugin of numpy can only shard all nodes or none"):
        plan("full", None, accelerator="sim", replicas=2)
