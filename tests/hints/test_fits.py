"""Hints of phases that fit or train estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel import AppliedLoss, EvalPhase, FeatureSet, FitPhase, Metric, ModelGraph, ModelNode, TrainPhase

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")


def features(label: str = "data") -> FeatureSet:
    return FeatureSet.from_dict(label, {"x": X, "y": X[:, 0]}, ["x"], ["y"])


class Scaling:
    """Learns a scale, at once or batch by batch."""

    def fit(self, x: Any, y: Any = None) -> Scaling:
        self.scale_ = float(np.abs(x).max())
        return self

    partial_fit = fit

    def predict(self, x: Any) -> Any:
        return x[:, :1] / self.scale_


class Fitted(Scaling):
    """Learns at once alone."""

    partial_fit = None


def run(phase: Any, graph: ModelGraph) -> Any:
    return graph.run(phase, progress="none")


def test_what_is_fitted(hint: Any) -> None:
    data = features()
    graph = ModelGraph([ModelNode("first", Scaling(), data.reference()), ModelNode("second", Scaling(), "first")])
    with hint("name it too, nodes=[{}, {}]"):
        run(FitPhase("fit", data="all", nodes=["second"]), graph)
    run(FitPhase("fit", data="all", nodes=["first", "second"]), graph)
    with hint("set nodes=[...] to fit one again"):
        run(FitPhase("fit", data="all"), graph)
    assert run(FitPhase("fit", data="all", nodes=["second"]), graph)
    one = Scaling()
    nodes = [ModelNode("first", one, data.reference()), ModelNode("second", one, "first")]
    with hint("name the one to fit, nodes=[{}], or use a separate estimator for each"):
        run(FitPhase("fit", data="all"), ModelGraph(nodes))
    assert run(FitPhase("fit", data="all", nodes=["first"]), ModelGraph(nodes))
    nodes = [ModelNode("first", Scaling(), data.reference()), ModelNode("second", Scaling(), "first")]
    assert run(FitPhase("fit", data="all"), ModelGraph(nodes))


def test_what_learned_before(hint: Any) -> None:
    data = features()
    nodes = lambda: [ModelNode("first", Scaling(), data.reference()), ModelNode("second", Fitted(), "first")]  # noqa: E731
    for follow in ("name", "freeze"):
        graph = ModelGraph(nodes())
        run(TrainPhase("train", data="all"), graph)
        with hint("name nodes=[...], or graph.freeze({}) to keep it unchanged"):
            run(FitPhase("fit", data="all"), graph)
        if follow == "name":
            assert run(FitPhase("fit", data="all", nodes=["second"]), graph)
        else:
            graph.freeze("first")
            assert run(FitPhase("fit", data="all"), graph)


def test_targets_of_several_references(hint: Any) -> None:
    data, other = features(), features("other")
    with hint("keep the targets of one reference, and write reference(target=[]) in the others"):
        node = ModelNode("first", Fitted(), [data.reference(), other.reference()])
        run(FitPhase("fit", data="all"), ModelGraph([node]))
    node = ModelNode("first", Fitted(), [data.reference(), other.reference(target=[])])
    run(FitPhase("fit", data="all"), ModelGraph([node]))


def test_training_of_estimators(hint: Any) -> None:
    data = features()
    graph = ModelGraph([ModelNode("first", Scaling(), data.reference()), ModelNode("second", Scaling(), "first")])
    with hint("run FitPhase('fit', data=..., nodes={}) first, or {}"):
        run(TrainPhase("train", data="all"), graph)
    run(FitPhase("fit", data="all", nodes="first"), graph)
    assert run(TrainPhase("train", data="all"), graph)
    with hint("measure it in the validation: EvalPhase(..., metrics=[Metric('mse', on={})]), or freeze it"):
        run(TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="second")]), graph)
    judged = EvalPhase("val", data="all", metrics=[Metric("mse", on="second")])
    assert run(TrainPhase("train", data="all", validation=judged), graph).figure("val_mse").size


def test_sources_and_estimators(hint: Any) -> None:
    source = aa.MapSource("data", [{"x": row, "y": row[0]} for row in X], features=["x"], target=["y"])
    mlp = aa.SequentialMLP(1)
    graph = ModelGraph(
        [ModelNode(name, model, source.reference()) for name, model in {"first": Scaling(), "net": mlp}.items()], "sgd"
    )
    loss = AppliedLoss("mse", on="net")
    with hint("freeze them, or read the source into memory: FeatureSet.from_dict(...)"):
        run(TrainPhase("train", data=source, losses=[loss]), graph)
    rows = FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    assert run(TrainPhase("train", data=rows, losses=[loss]), graph).loss.size
    graph.freeze("first")
    assert run(TrainPhase("train", data=source, losses=[loss]), graph).loss.size
