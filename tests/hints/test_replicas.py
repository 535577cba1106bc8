"""Hints of phases with several replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, SimpleSampler, TrainPhase
from anyaccel.numpy_backend import BatchNorm, Dense, Sequential

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
    settings = {"data": "all", "losses": [MSE], "accelerator": "sim:0", "replicas": 2, "sampler": 8, **settings}
    return (on or graph()).run(TrainPhase("train", **settings), progress="none")


def test_numbers_of_replicas(hint: Any) -> None:
    with hint("leave replicas out, or write replicas={}"):
        run(accelerator="sim:0+1", replicas=3)
    assert run(accelerator="sim:0+1", replicas=2).loss.size and run(accelerator="sim:0+1", replicas=None).loss.size
    with hint("start as many processes, anyaccel run --replicas {} SCRIPT, or write replicas=1"):
        run(replicas=3)
    assert run(replicas=1).loss.size  # --replicas in test_launches
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
    with hint("draw larger batches, or leave the last one out: SimpleSampler(..., drop_last=True)"):
        run(sampler=23)
    assert run(sampler=12).loss.size and run(sampler=SimpleSampler(23, drop_last=True)).loss.size
    a, b = features("a"), features("b")
    losses = [AppliedLoss("mse", on="na"), AppliedLoss("mse", on="nb")]

    def apart(**sizes: int) -> Any:
        nodes = [ModelNode(f"n{rows.label}", aa.SequentialMLP(1), rows.reference()) for rows in (a, b)]
        sampler = {name: SimpleSampler(size, drop_last=True) for name, size in sizes.items()}
        return run(ModelGraph(nodes, "sgd"), losses=losses, sampler=sampler, schedule="zip_cycle")

    with hint("let the samplers draw multiples of {} rows, with drop_last=True"):
        apart(a=5, b=10)
    assert apart(a=4, b=10).loss.size and SimpleSampler(4, drop_last=True)
