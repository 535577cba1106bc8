"""Hints of phases with several replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, SimpleSampler, TrainPhase
from anyaccel.graph.resolve import resolve
from anyaccel.numpy_backend import BatchNorm, Dense, NumpyBackend, Sequential
from anyaccel.phases.prepare import plan_request
from anyaccel_distributed import ReplicaGroup
from anyaccel_distributed import divided_parameters as sharding
from anyaccel_distributed.phase_groups import check_fixed_order, check_weights
from anyaccel_distributed.row_shares import GlobalBatches

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = AppliedLoss("mse", on="net")


@pytest.fixture(autouse=True)
def devices() -> Any:
    with aa.simulate(2):
        yield


def features(label: str = "data", rows: int = 24) -> FeatureSet:
    return FeatureSet.from_dict(label, {"x": X[:rows], "y": X[:rows, :1]}, ["x"], ["y"])


def graph(model: Any = None) -> ModelGraph:
    return ModelGraph([ModelNode("net", model or aa.SequentialMLP(1), features().reference())], "sgd")


def run(on: ModelGraph | None = None, **settings: Any) -> Any:
    settings = {
        "data": "all",
        "losses": [MSE],
        "accelerator": "sim:0",
        "replicas": 2,
        **({} if "sampler" in settings else {"batch_size": 8}),
        **settings,
    }
    return (on or graph()).run(TrainPhase("train", **settings), progress="none")


def test_numbers_of_replicas(hint: Any) -> None:
    with hint("leave replicas out, or write replicas={}"):
        run(accelerator="sim:0+1", replicas=3)
    assert run(accelerator="sim:0+1", replicas=2).loss.size and run(accelerator="sim:0+1", replicas=None).loss.size
    with hint("start as many processes, anyaccel run --replicas {} SCRIPT, or write replicas=1"):
        run(replicas=3)
    assert run(replicas=1).loss.size  # --replicas: test_two_processes
    with hint("freeze it, graph.freeze({}), use layers without it, or {}"):
        run(graph(Sequential(Dense(4), BatchNorm(), Dense(1))))
    assert run(graph(Sequential(Dense(4), Dense(1)))).loss.size
    data = features()
    norm = ModelNode("norm", Sequential(BatchNorm()), data.reference())
    net = ModelGraph([norm, ModelNode("net", aa.SequentialMLP(1), "norm")], "sgd")
    net.freeze("norm")
    loss = AppliedLoss("mse", on="net", inputs=["outputs", "data.y"])
    assert run(net, losses=[loss]).loss.size


def test_shares_of_batches(hint: Any) -> None:
    with hint("draw larger batches, or drop the last one: SimpleSampler(..., drop_last=True)"):
        run(batch_size=23)
    assert run(batch_size=12).loss.size and run(sampler=SimpleSampler(23, drop_last=True)).loss.size
    a, b = features("a"), features("b")
    losses = [AppliedLoss("mse", on="na"), AppliedLoss("mse", on="nb")]

    def apart(**sizes: int) -> Any:
        nodes = [ModelNode(f"n{rows.label}", aa.SequentialMLP(1), rows.reference()) for rows in (a, b)]
        sampler = {name: SimpleSampler(size, drop_last=True) for name, size in sizes.items()}
        return run(ModelGraph(nodes, "sgd"), losses=losses, sampler=sampler, schedule="zip_cycle")

    with hint("use batch sizes that are multiples of {}, with drop_last=True"):
        apart(a=5, b=10)
    assert apart(a=4, b=10).loss.size and SimpleSampler(4, drop_last=True)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


class Mean:
    """Learns the mean of its targets, batch by batch."""

    total, n = 0.0, 0

    def partial_fit(self, x: Any, y: Any) -> Mean:
        self.total, self.n = self.total + y.sum(), self.n + len(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), self.total / max(self.n, 1))


@pytest.mark.usefixtures("second_of_two")
def test_processes_of_a_launcher(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: dict[str, Any] = {"accelerator": None}
    with hint("set replicas=1 to train the whole model separately in each process"):
        run(replicas=None, **alone)
    assert run(replicas=1, **alone).loss.size
    data = features()
    models = {"net": aa.SequentialMLP(1), "mean": Mean()}
    learning = ModelGraph([ModelNode(name, model, data.reference()) for name, model in models.items()], "sgd")
    with hint("set replicas=1 to train the whole model separately in each process"):
        run(learning, replicas=None, **alone)
    assert run(learning, replicas=1, **alone).loss.size
    with hint("leave sharding out, so that each replica has all parameters"):
        run(replicas=None, sharding="full", **alone)
    assert run(replicas=1, **alone).loss.size  # without sharding
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with hint("start {} processes on each machine; if each sees only its own devices, name one: accelerator={}"):
        TrainPhase("train", data="all", losses=[MSE], accelerator="sim").plan(graph())
    named = TrainPhase("train", data="all", losses=[MSE], accelerator="sim:0", replicas=1)
    assert str(named.plan(graph()).device("net")) == "sim:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    started = TrainPhase("train", data="all", losses=[MSE], accelerator="sim")
    assert str(started.plan(graph()).device("net")) == "sim:1"


class Group(ReplicaGroup):
    """A replica of a framework that cannot add up in a fixed order, nor weights."""

    rank, size = 0, 2

    def average_gradients(self, programs: Any, weight: float) -> None:
        """Not used here."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def test_sums_in_a_fixed_order(hint: Any) -> None:
    phase = TrainPhase("train", data="all", losses=[MSE], deterministic=True)
    with hint("start {} processes, or leave deterministic out"):
        check_fixed_order(phase, 9, {})
    check_fixed_order(phase, 8, {})
    without = TrainPhase("train", data="all", losses=[MSE])  # deterministic
    check_fixed_order(without, 9, {})
    with hint("leave deterministic out, or update the plugin"):
        check_fixed_order(phase, 2, {"numpy": Group()})
    check_fixed_order(without, 2, {"numpy": Group()})


def test_weights_of_several_replicas(hint: Any) -> None:
    data = FeatureSet.from_dict("data", {"x": X, "y": X[:, :1], "w": X[:, 0] ** 2}, ["x"], ["y"], ["w"])
    net = ModelGraph([ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    weighted = [AppliedLoss("mse", on="net", sample_weight="data.w")]
    phase = TrainPhase("train", data="all", losses=weighted)
    resolution = resolve(net, plan_request(phase, net))
    with hint(
        "set deterministic=True, which needs no such sums, or replicas=1 to train the whole model separately in each "
        "process"
    ):
        check_weights(phase, resolution, {"numpy": Group()})
    assert run(net, losses=weighted, deterministic=True).loss.size and run(net, losses=weighted, replicas=1).loss.size


def test_rows_that_all_replicas_have(hint: Any) -> None:
    needed = GlobalBatches(allowed=True, needed=True)
    with hint(
        "draw batches of a multiple of {} rows from a FeatureSet, or set replicas=1 to train the whole model "
        "separately in each process"
    ):
        needed.chosen("train", 2, in_memory=False, batches=False)
    assert needed.chosen("train", 2, in_memory=True, batches=False).given and run(replicas=1, batch_size=7).loss.size
    assert isinstance(features(), FeatureSet)


def test_sharding_over_devices_of_a_process(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plugin that divides parameters among processes, as that of torch does where there are several GPUs."""
    monkeypatch.setattr(sharding, "ShardParameters", NumpyBackend)
    for name, value in {"shards_nodes": True, "global_batches": False}.items():
        monkeypatch.setattr(NumpyBackend, name, value, raising=False)
    for name, value in {"sharded_blocks": (), "unshardable_reason": ""}.items():
        monkeypatch.setattr(NumpyBackend, name, lambda *_, answer=value, **__: answer, raising=False)
    with hint("start processes, anyaccel run --replicas {} SCRIPT, or leave sharding out"):
        run(sharding="full")
    assert run().loss.size  # without sharding
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)  # as --replicas 2 does
    plan = TrainPhase("train", data="all", losses=[MSE], sharding="full").plan(graph())
    assert "sharded over 2 replicas" in str(plan)
