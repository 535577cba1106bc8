"""Hints of the NumPy backend, of estimators, of the ledger and of the kit."""

from __future__ import annotations

from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.numpy_backend import Conv2d, Dense, NumpyBackend, Sequential
from anyaccel.plugin_testing import TinyBackend

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")


def features(**columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, 0]}
    return aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))


def test_sizes_of_layers(hint: Any) -> None:
    with hint("write kernel_size=3"):
        Conv2d(2, kernel_size=4)
    assert Conv2d(2, kernel_size=3)
    with hint("write {}=2"):
        Conv2d(channels=0)
    assert Conv2d(channels=2)
    with hint("write dtype='float32'"):
        Dense(2, dtype="int8")
    assert Dense(2, dtype="float32")
    with hint("write Sequential(Dense(16), Dense(1))"):
        Sequential([Dense(16), Dense(1)])  # type: ignore[arg-type]
    assert Sequential(Dense(16), Dense(1))


def test_simulated_devices(hint: Any) -> None:
    aa.simulate(2)
    with hint("move them to one device with anyaccel.move(x, device)"):
        _ = aa.move(X, "sim:0") + aa.move(X, "sim:1")
    assert aa.device_of(aa.move(X, "sim:0") + aa.move(X, "sim:0")) == aa.Device("sim")
    with hint("use anyaccel.place for an object with state"):
        aa.move(aa.SequentialMLP(1), "sim:0")
    assert aa.place(aa.SequentialMLP(1), "sim:0")
    with hint("create simulated devices first: anyaccel.simulate({})"):
        aa.place(aa.SequentialMLP(1), "sim:2")
    with hint("call anyaccel.simulate({}), or use one of these"):
        NumpyBackend().from_host(X, aa.Device("sim", 2))
    aa.simulate(3)
    assert aa.place(aa.SequentialMLP(1), "sim:2") and aa.move(X, "sim:1") is not None


def test_values_of_a_model_on_several_devices(hint: Any) -> None:
    aa.simulate(2)
    model = aa.SequentialMLP(1)
    aa.ModelGraph([aa.ModelNode("net", model, features().reference())], "sgd").build()
    layer = model
    name = next(iter(layer.parameters))
    layer.parameters[name] = aa.move(np.asarray(layer.parameters[name]), "sim:1")
    with hint("put them on one with anyaccel.place(module, device)"):
        aa.device_of(model)
    assert aa.device_of(aa.place(model, "sim:0")) == aa.Device("sim")


class Learner:
    """An estimator without targets."""

    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.mean_)


class Scorer:
    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def decision_function(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.mean_)


class Fixed:
    def predict(self, features: np.ndarray) -> np.ndarray:
        return features[:, 0]


def test_estimators_without_what_they_need(hint: Any) -> None:
    with hint("pass Estimator({}(...), method={})"):
        aa.ModelGraph([aa.ModelNode("net", Scorer(), features().reference())]).build()
    assert aa.ModelNode("net", aa.Estimator(Scorer(), method="decision_function"), features().reference())
    with hint("name one of these as method="):
        aa.Estimator(Learner(), method="guess")
    assert aa.Estimator(Learner(), method="predict")
    with hint("add a method fit(features, targets), which may do nothing"):
        aa.Estimator(Fixed())

    class Fitted(Fixed):
        def fit(self, features: Any, targets: Any) -> None:
            """Does nothing."""

    assert aa.Estimator(Fitted())
    with hint("write output_dtype='float32'"):
        aa.Estimator(Learner(), output_dtype="int8")
    assert aa.Estimator(Learner(), output_dtype="float32")


def test_estimators_in_phases(hint: Any) -> None:
    bare = aa.FeatureSet.from_dict("data", {"x": X}, ["x"])
    fit = aa.FitPhase("fit", data="all")
    with hint("name target in the feature set, or columns in reference(target=[...])"):
        aa.ModelGraph([aa.ModelNode("net", Learner(), bare.reference())]).run(fit, progress="none")
    with_targets = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], target=["y"])
    aa.ModelGraph([aa.ModelNode("net", Learner(), with_targets.reference(target=["y"]))]).run(fit, progress="none")

    class Large(Learner):
        def predict(self, features: np.ndarray) -> np.ndarray:
            return np.full(len(features), 1e300)

    with hint("leave output_dtype out, or scale the targets of the estimator"):
        graph = aa.ModelGraph(
            [aa.ModelNode("net", aa.Estimator(Large(), output_dtype="float32"), features().reference())]
        )
        graph.run(fit, aa.EvalPhase("test", data="all"), progress="none")
    graph = aa.ModelGraph([aa.ModelNode("net", aa.Estimator(Large()), features().reference())])  # without output_dtype
    fitted, _ = graph.run(fit, aa.EvalPhase("test", data="all"), progress="none")
    assert fitted


def test_the_ledger(hint: Any) -> None:
    with aa.ledger() as ledger:
        aa.simulate(1)
        aa.move(X, "sim:0")
    with hint("write by('line')"):
        ledger.by("colour")  # type: ignore[arg-type]
    assert ledger.by("line")
    with hint("write no_transfers(frameworks=['numpy'])"), aa.no_transfers(frameworks=3):  # type: ignore[arg-type]
        pass
    with aa.no_transfers(frameworks=["numpy"]):
        pass


def test_subjects_of_the_kit(hint: Any) -> None:
    with hint("pass a cell from TinyBackend.new()"):
        TinyBackend("tiny", ("cpu",)).move(3, aa.Device("cpu"))
    backend = TinyBackend("tiny", ("cpu",))
    cell = backend.new(3.0)
    assert isinstance(backend, TinyBackend) and backend.move(cell, aa.Device("cpu")) is cell
