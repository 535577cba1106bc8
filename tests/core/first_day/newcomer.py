"""What rows of mistakes are made of: data, models, graphs and phases of a newcomer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import anyaccel as aa

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype("float32")
CLASSES, TEXT = np.arange(60) % 3, np.array(["a", "b", "c"] * 20)
NUMBERS = X[:, 0].astype("float32")
LOSS = aa.AppliedLoss("cross_entropy", on="net")
MSE = aa.AppliedLoss("mse", on="net")
BCE = aa.AppliedLoss("binary_cross_entropy", on="net")


def rows(y: Any = CLASSES, x: Any = X, label: str = "data") -> aa.FeatureSet:
    return aa.FeatureSet.from_dict(label, {"x": x, "y": y}, ["x"], ["y"])


def data(y: Any = CLASSES, x: Any = X, label: str = "data") -> aa.FeatureSet:
    features = rows(y, x, label)
    features.split_random({"train": 0.8, "val": 0.2}, seed=0)
    return features


def mlp(outputs: int = 3) -> Any:
    return aa.SequentialMLP(outputs)


def node(label: Any = "net", model: Any = None, up: Any = None) -> aa.ModelNode:
    return aa.ModelNode(label, mlp() if model is None else model, data().reference() if up is None else up)


def graph(features: Any = None, model: Any = None, optimizer: Any = "adam") -> aa.ModelGraph:
    return aa.ModelGraph([node(model=model, up=(data() if features is None else features).reference())], optimizer)


def experiment(of: Any = None) -> aa.Experiment:
    return aa.Experiment("e", graph() if of is None else of, progress="none")


def train(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("t", **{"data": "train", "losses": [LOSS], **settings})


def judge(**settings: Any) -> aa.EvalPhase:
    return aa.EvalPhase("v", **{"data": "val", **settings})


def run(phase: aa.TrainPhase | aa.EvalPhase, of: Any = None) -> Any:
    return experiment(of).run_phase(phase)


class Nothing(aa.Callback):
    """A callback that does nothing."""


def own_metric(outputs: Any, targets: Any) -> float:
    return float(np.mean(outputs.argmax(axis=1) == targets))


class Row(NamedTuple):
    """A mistake, what is said, and what its hint asks for."""

    name: str
    wrong: Callable[[], Any]
    message: str
    right: Callable[[], Any]


def both_layers(second: str) -> aa.ModelGraph:
    return aa.ModelGraph([node("a"), aa.ModelNode("b", mlp(), second)], "adam")
