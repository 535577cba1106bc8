"""Hints of the code that plugins share, of NumPy's own models, and of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.adapter import VjpResult
from anyaccel.adapter.losses import loss_function
from anyaccel.numpy_backend import Module
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.segment import LossTerm

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def features(label: str = "data", /, **columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    return aa.FeatureSet.from_dict(label, {"x": X, **columns}, ["x"], list(columns))


DATA = features()


def node(label: str = "net", model: Any = None, upstream: Any = None, **settings: Any) -> aa.ModelNode:
    model = aa.SequentialMLP(1, hidden_dim=4) if model is None else model
    return aa.ModelNode(label, model, upstream or DATA.reference(), **settings)


def graph(*nodes: Any, optimizer: Any = "sgd") -> aa.ModelGraph:
    return aa.ModelGraph(list(nodes) or [node()], optimizer)


def trained(given: aa.ModelGraph, *losses: Any, **settings: Any) -> Any:
    settings = {"data": "all", **settings}
    return given.run(aa.TrainPhase("train", losses=list(losses) or [LOSS], **settings), progress="none")


def test_settings_of_models(hint: Any) -> None:
    with hint("write {}=16"):
        aa.SequentialMLP(1, hidden_dim=0)
    assert aa.SequentialMLP(1, hidden_dim=16)
    with hint("write activation='relu'"):
        aa.SequentialMLP(1, activation="zzzzzz")
    assert aa.SequentialMLP(1, activation="relu")


def test_images(hint: Any) -> None:
    def convolved(images: np.ndarray, model: Any = None, **settings: Any) -> Any:
        data = aa.FeatureSet.from_dict("data", {"x": images, "y": X[:4, :1]}, ["x"], ["y"])
        return trained(graph(node("net", model or aa.SequentialCNN(1, channels=(2, 2), **settings), data.reference())))

    images = np.ones((4, 8, 8), "float32")
    with hint("store images channels first; a single channel also needs an axis, [1, height, width]"):
        convolved(images)
    assert convolved(images[:, None])
    with hint("use fewer convolutions, larger images, or pool=1"):
        convolved(np.ones((4, 1, 2, 2), "float32"))
    assert convolved(np.ones((4, 1, 2, 2), "float32"), pool=1)
    assert convolved(np.ones((4, 1, 2, 2), "float32"), aa.SequentialCNN(1, channels=(2,)))
    assert convolved(np.ones((4, 1, 8, 8), "float32"))


class Squares:
    """A loss with its gradients, in NumPy."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        difference = outputs - targets
        return self.scale * (difference**2).sum(), len(outputs), (2 * self.scale * difference, None)


class Bare:
    """A class whose objects cannot be called."""


def test_losses_that_are_classes(hint: Any) -> None:
    def with_loss(loss: Any, **kwargs: Any) -> Any:
        return trained(graph(), aa.AppliedLoss(aa.Loss(loss, **kwargs), on="net"))

    with hint("correct loss_kwargs"):
        with_loss(Squares, loss_kwargs={"zzz": 2.0})
    assert with_loss(Squares, loss_kwargs={"scale": 2.0})
    with hint("pass a function, a class with __call__, or a name such as 'mse'"):
        with_loss(Bare)
    assert callable(Squares.__call__) and with_loss(Squares)
    assert with_loss(lambda outputs, targets: Squares()(outputs, targets)) and with_loss("mse")


def test_batches_of_replicas(hint: Any) -> None:
    aa.simulate(2)
    replicas = {"accelerator": "sim:0", "replicas": 2}
    with hint("draw larger batches, or drop the last one: SimpleSampler(..., drop_last=True)"):
        trained(graph(), sampler=aa.SimpleSampler(23), **replicas)
    assert trained(graph(), sampler=aa.SimpleSampler(12), **replicas)
    assert trained(graph(), sampler=aa.SimpleSampler(23, drop_last=True), **replicas)


def test_batches_of_several_data(hint: Any) -> None:
    aa.simulate(2)
    second = aa.FeatureSet.from_dict("second", {"x": X[:16], "y": X[:16, :1]}, ["x"], ["y"])
    sets = [features("first"), second]
    nodes = [node(label, upstream=data.reference()) for label, data in zip(("net", "other"), sets, strict=True)]
    losses = [LOSS, aa.AppliedLoss("mse", on="other")]
    settings = {"data": {"first": "all", "second": "all"}, "accelerator": "sim:0", "replicas": 2}
    with hint("use batch sizes that are multiples of {}, with drop_last=True"):
        samplers = {"first": aa.SimpleSampler(3), "second": aa.SimpleSampler(2)}
        trained(graph(*nodes), *losses, sampler=samplers, **settings)
    samplers = {"first": aa.SimpleSampler(6, drop_last=True), "second": aa.SimpleSampler(4, drop_last=True)}
    assert trained(graph(*nodes), *losses, sampler=samplers, **settings)


class Scaled(Module):
    """Multiplies its input by a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters["factor"] = np.ones(1, "float32")

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,), factor = inputs, values["factor"]

        def pullback(cotangents: Any) -> Any:
            (c,) = cotangents
            return {"factor": np.sum(c * x).reshape(1)}, (c * factor,)

        return VjpResult((x * factor,), pullback)


class Mistaken(Scaled):
    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        return super().apply(self.zzz, inputs, train=train, key=key)  # type: ignore[attr-defined]


def test_code_of_models(hint: Any) -> None:
    wide = features(y=X)
    with hint("fix the model's code; the full traceback is above"):
        trained(graph(node("net", Mistaken(), wide.reference())))
    assert trained(graph(node("net", Scaled(), wide.reference())))
    with hint("subclass anyaccel.numpy_backend.Module, and implement pullback"):
        graph(node("net", X, wide.reference())).build()
    assert isinstance(Scaled(), Module) and trained(graph(node("net", Scaled(), wide.reference())))
    with hint("pass a model of this framework, or leave framework= out"):
        graph(node("net", np.sin, wide.reference(), framework="numpy")).build()
    assert trained(graph(node("net", Scaled(), wide.reference(), framework="numpy")))
    assert trained(graph(node("net", Scaled(), wide.reference())))  # without framework=


def test_simulated_devices(hint: Any) -> None:
    with hint("write simulate(2)"):
        aa.simulate("two")  # type: ignore[arg-type]
    assert len(aa.simulate(2)) == 2


class Picky:
    """An estimator that predicts for no zeros."""

    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def predict(self, features: np.ndarray) -> np.ndarray:
        if not features.any():
            raise ValueError("no features")
        return np.full((len(features), 1), self.mean_, "float32")


def test_estimators_that_are_tried(hint: Any) -> None:
    fitted = Picky()
    fitted.fit(X, X[:, :1])
    with hint("it was tried with zeros: pass it unfitted (sklearn.base.clone), so that a FitPhase uses its rows"):
        graph(node("net", fitted)).build()
    given = graph(node("net", Picky()))  # unfitted, as sklearn.base.clone gives it
    given.run(aa.FitPhase("fit", data="all", nodes="net"), progress="none")
    assert len(given.run(aa.EvalPhase("test", data="all"), progress="none").prediction("net")) == 24


class Stuck(Picky):
    """An estimator that cannot be copied."""

    def partial_fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.fit(features, targets)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a lock")


def test_snapshots_of_estimators(hint: Any) -> None:
    def stopped(given: aa.ModelGraph, restore_best: bool) -> Any:
        validation = aa.EvalPhase("val", data="all", losses=[], metrics=["mse"], outputs=["net"])
        stop = aa.EarlyStopping("val_mse", restore_best=restore_best)
        return trained(given, aa.AppliedLoss("mse", on="other"), validation=validation, callbacks=[stop])

    def both() -> aa.ModelGraph:
        return graph(node("net", Stuck()), node("other"))

    with hint("freeze its node, or do not use snapshots (EarlyStopping(restore_best=True) does)"):
        stopped(both(), restore_best=True)
    assert stopped(both(), restore_best=False)  # no snapshots
    frozen = both()
    frozen.run(aa.FitPhase("fit", data="all", nodes="net"), progress="none")
    frozen.freeze("net")
    stop = aa.EarlyStopping("val_mse", restore_best=True)
    validation = aa.EvalPhase("val", data="all", metrics=["mse"], outputs=["other"])
    assert trained(frozen, aa.AppliedLoss("mse", on="other"), validation=validation, callbacks=[stop])


def test_losses_of_segments(hint: Any) -> None:
    def loss_of(inputs: tuple[str, ...]) -> Any:
        return loss_function(NumpyOps(), LossTerm("loss", "net", aa.Loss("mse"), inputs, aa.Device("cpu")))

    with hint("name these two in inputs=[...]"):
        loss_of(inputs=("net",))
    assert loss_of(inputs=("net", "data.y"))((X, X))[0] == 0


class Chosen(Module):
    """Two factors, one for rows with positive means, and one for others; or both for all."""

    def __init__(self, *, every: bool) -> None:
        super().__init__()
        self.every = every
        self.parameters["first"] = np.ones(1, "float32")
        self.parameters["second"] = np.ones(1, "float32")

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,) = inputs
        name = "first" if np.mean(np.asarray(x)) > 0 else "second"

        def pullback(cotangents: Any) -> Any:
            (c,) = cotangents
            names = ("first", "second") if self.every or name == "first" else ("second",)
            return {each: np.sum(c * x).reshape(1) for each in names}, (c * values[name],)

        return VjpResult((x * values[name],), pullback)


def test_gradients_of_replicas(hint: Any) -> None:
    aa.simulate(2)
    halves = np.concatenate([np.ones((12, 3)), -np.ones((12, 3))]).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": halves, "y": X}, ["x"], ["y"])
    replicas = {"accelerator": "sim:0", "replicas": 2, "sampler": aa.SimpleSampler(24, shuffle=False)}
    with hint("train in several processes, anyaccel run --replicas 2 SCRIPT, or use all parameters in each step"):
        trained(graph(node("net", Chosen(every=False), data.reference())), **replicas)
    # in frameworks whose processes find each other: anyaccel run --replicas 2 SCRIPT
    assert trained(graph(node("net", Chosen(every=True), data.reference())), **replicas)
