"""Hints of what a graph computes: its outputs, losses, precision, placement and weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend import Estimator, Module, NumpyBackend
from anyaccel.registry import Registry

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def features(label: str = "data", /, **columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    return aa.FeatureSet.from_dict(label, {"x": X, **columns}, ["x"], list(columns))


DATA = features()


def node(label: str = "net", model: Any = None, upstream: Any = None, **settings: Any) -> aa.ModelNode:
    return aa.ModelNode(label, model or aa.SequentialMLP(1, hidden_dim=4), upstream or DATA.reference(), **settings)


def graph(*nodes: Any, optimizer: Any = "sgd") -> aa.ModelGraph:
    return aa.ModelGraph(list(nodes) or [node()], optimizer)


def train(*losses: Any, **settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="all", losses=list(losses) or [LOSS], **settings)


def trained(given: aa.ModelGraph, *losses: Any, **settings: Any) -> Any:
    return given.run(train(*losses, **settings), progress="none")


class Several(Module):
    """Gives x times a factor several times: so often in evaluation, so often in training."""

    def __init__(self, evaluation: int, training: int) -> None:
        super().__init__()
        self.counts = evaluation, training
        self.parameters["factor"] = np.ones(1, "float32")

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,), factor = inputs, values["factor"]
        count = self.counts[train]

        def pullback(cotangents: Any) -> Any:
            total = sum(cotangents)
            return {"factor": np.sum(total * x).reshape(1)}, (total * factor,)

        return VjpResult((x * factor,) * count, pullback)


WIDE = features(y=X)


def test_losses_of_several_outputs(hint: Any) -> None:
    given = graph(node("net", Several(2, 2), WIDE.reference(), outputs=["NAME", "other"]))
    with hint("say which: AppliedLoss({}, inputs=['outputs.{}', 'targets'])"):
        trained(given, LOSS)
    assert trained(given, aa.AppliedLoss("mse", on="net", inputs=["outputs.NAME", "targets"]))


def test_outputs_of_training(hint: Any) -> None:
    with hint(
        "name all outputs, starting with those of evaluation: ModelNode({}, ..., outputs={}), with losses such as "
        "AppliedLoss(..., "
        "on={}, inputs=['outputs.{}', 'targets'], label='{}'); or disable the others in the model"
    ):
        trained(graph(node("net", Several(1, 2), WIDE.reference())), LOSS)
    second = aa.AppliedLoss("mse", on="net", inputs=["outputs.out1", "targets"], label="out1")
    first = aa.AppliedLoss("mse", on="net", inputs=["outputs.out0", "targets"])
    named = graph(aa.ModelNode("net", Several(1, 2), WIDE.reference(), outputs=["out0", "out1"]))
    assert trained(named, first, second)
    assert trained(graph(node("net", Several(1, 1), WIDE.reference())), LOSS)
    named.freeze("net")
    with hint("unfreeze the node, graph.unfreeze({}), or leave the loss out"):
        other = node("other", Several(1, 1), WIDE.reference())
        both = graph(node("net", Several(1, 2), WIDE.reference(), outputs=["out0", "out1"]), other)
        both.freeze("net")
        on_other = aa.AppliedLoss("mse", on="other")
        trained(both, on_other, second)
    assert trained(both, on_other)  # without the loss
    both.unfreeze("net")
    assert trained(both, on_other, second)


class Swapped(Module):
    """Gives the classes on the first axis of a sample: [classes, n]."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters["factor"] = np.ones(1, "float32")

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,), factor = inputs, values["factor"]

        def pullback(cotangents: Any) -> Any:
            (c,) = cotangents
            return {"factor": np.sum(c * x[:, None]).reshape(1)}, (c.sum(1) * factor,)

        return VjpResult((np.repeat((x * factor)[:, None], 2, axis=1),), pullback)


def test_classes_of_positions(hint: Any) -> None:
    classes = features(label=(X > 0).astype(int))
    given = graph(node("net", Swapped(), classes.reference()))
    with hint("if the classes come first, set class_axis: Loss('cross_entropy', class_axis=1)"):
        trained(given, aa.AppliedLoss("cross_entropy", on="net"))
    assert trained(given, aa.AppliedLoss(aa.Loss("cross_entropy", class_axis=1), on="net")).loss == pytest.approx(
        np.log(2)
    )


def test_targets_of_losses(hint: Any) -> None:
    sets = [features("first"), features("second")]
    parts = [node(f"of {data.label}", upstream=data.reference()) for data in sets]
    given = graph(*parts, aa.ConcatNode("both", parts), node("net", upstream="both"))
    data = {"first": "all", "second": "all"}
    with hint("name one of these in inputs="):
        given.run(aa.TrainPhase("train", data=data, losses=[LOSS]), progress="none")
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs", "first.y"])
    assert given.run(aa.TrainPhase("train", data=data, losses=[loss]), progress="none")


def test_class_weights_need_a_column(hint: Any) -> None:
    label = (X[:, 0] > 0).astype(int)
    classes = features(label=label, w=np.ones(24, "float32"))
    other = aa.ModelNode("other", aa.SequentialMLP(2), classes.reference())
    given = graph(node("net", aa.SequentialMLP(2), classes.reference()), other)
    weighted = aa.Loss("cross_entropy", class_weights=[1.0, 2.0])
    with hint("name a column of targets in inputs=, or use mask= or sample_weight= instead"):
        trained(given, aa.AppliedLoss(weighted, on="net", inputs=["outputs", "other"]))
    assert trained(given, aa.AppliedLoss(weighted, on="net", inputs=["outputs", "data.label"]))
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs", "other"], mask="data.w")
    assert trained(given, loss)
    assert trained(given, aa.AppliedLoss("mse", on="net", inputs=["outputs", "other"], sample_weight="data.w"))


def squares(outputs: np.ndarray, targets: np.ndarray) -> Any:
    """A loss with its gradients."""
    return ((outputs - targets) ** 2).sum(), len(outputs), (2 * (outputs - targets), None)


def test_frameworks_that_do_less(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adam = aa.Optimizer("adamw", groups={"*bias": {"weight_decay": 0.0}})
    monkeypatch.setattr(NumpyBackend, "parameter_groups", False)
    with hint("leave groups out, or use a separate optimizer for each node: ModelNode(..., optimizer=...)"):
        trained(graph(optimizer=adam))
    assert trained(graph(optimizer="adamw"))  # without groups
    own = aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference(), optimizer=aa.Optimizer("adamw"))
    assert trained(graph(own))
    monkeypatch.setattr(NumpyBackend, "weighs_losses", False)
    with hint("use a loss of the framework, or a node of another framework"):
        trained(graph(), aa.AppliedLoss("mse", on="net", sample_weight="data.y"))
    assert trained(graph(), aa.AppliedLoss(squares, on="net"))


def test_what_is_trained(hint: Any) -> None:
    with hint("pass losses=[AppliedLoss('mse', on='NODE')]"):
        graph().run(aa.TrainPhase("train", data="all", losses=[]), progress="none")
    losses = [aa.AppliedLoss("mse", on="net")]
    assert graph().run(aa.TrainPhase("train", data="all", losses=losses), progress="none")
    with hint("train with losses=[...], which can be custom functions"):
        step = SimpleNamespace()
        graph().run(aa.TrainPhase("train", data="all", step=lambda models, batch: step), progress="none")

    own = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss(squares, on="net")])
    assert graph().run(own, progress="none").loss.size


def test_modes_of_nodes(hint: Any) -> None:
    given = graph(node(modes="as_is"), node("other"))
    losses = [LOSS, aa.AppliedLoss("mse", on="other")]
    with hint("leave modes out, or freeze the node: graph.freeze({})"):
        trained(given, *losses)
    given.freeze("net")
    assert trained(given, losses[1])
    assert trained(graph())  # without modes


def test_columns_with_a_plus_sign(hint: Any) -> None:
    def two(name: str) -> aa.ModelGraph:
        columns = {name: X, "a": X[:, 0], "b": X[:, 1], "y": X[:, :1]}
        data = aa.FeatureSet.from_dict("data", columns, [name, "a", "b"], ["y"])
        return graph(node("one", upstream=data.reference([name])), node("net", upstream=data.reference(["a", "b"])))

    with hint("rename the column that has a '+' in its name"):
        two("a+b").build()
    assert trained(two("both"))


def test_precision_of_devices(hint: Any) -> None:
    aa.simulate(1, float64=False)
    with hint("use another one for the node: ModelNode({}, ..., precision={})"):
        trained(graph(node(precision="float64")), accelerator="sim:0")
    other = aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference(), precision="bf16-mixed")
    assert trained(graph(other), accelerator="sim:0")


class Halved(Several):
    dtype = None

    def __init__(self, dtype: str) -> None:
        super().__init__(1, 1)
        self.parameters["factor"] = np.ones(1, dtype)


def test_narrow_models(hint: Any) -> None:
    def narrow(**settings: Any) -> Any:
        return trained(graph(node("net", Halved("float16"), WIDE.cast({"x": "float16"}).reference(), **settings)))

    with hint("convert the model to float32, or leave precision out to compute in its own dtype"):
        narrow(precision="bf16-mixed")
    assert trained(graph(node("net", Halved("float32"), WIDE.reference(), precision="bf16-mixed")))
    assert graph(node("net", Halved("float16"), WIDE.cast({"x": "float16"}).reference())).build()  # without precision


class Learner:
    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full((len(features), 1), self.mean_, "float64")


def test_dtypes_of_estimators(hint: Any) -> None:
    def chained(first: Any) -> aa.ModelGraph:
        given = graph(node("first", first), node("net", upstream="first"))
        given.run(aa.FitPhase("fit", data="all", nodes="first"), progress="none")
        return given

    with hint("set the output dtype of {} to that of this node: Estimator(..., output_dtype={})"):
        trained(chained(Learner()))
    assert trained(chained(Estimator(Learner(), output_dtype="float32")))


class MyModel(aa.SequentialMLP):
    """A class that no configuration may import."""


def test_classes_of_configurations(hint: Any) -> None:
    config = graph(node("net", MyModel(1))).get_config()
    with hint("pass the model: models={{}: ...}; or, if you trust the class, import it and pass allow=[{}]"):
        aa.ModelGraph.from_config(config, feature_sets=[DATA])
    assert aa.ModelGraph.from_config(config, feature_sets=[DATA], allow=[MyModel])
    config["nodes"][0]["model"]["config"]["depth"] = 3
    with hint("pass the model: models={{}: ...}"):
        aa.ModelGraph.from_config(config, feature_sets=[DATA], allow=[MyModel])
    assert aa.ModelGraph.from_config(config, feature_sets=[DATA], models={"net": MyModel(1)})


def arrays_of(given: aa.ModelGraph) -> dict[str, np.ndarray]:
    return {name.split("/")[-1]: value for name, value in given.state().items() if "/parameters/" in name}


def test_changes_of_states(hint: Any) -> None:
    given = graph(optimizer="adam")
    trained(given)
    state = given.state()
    with hint("load only the weights with load_weights, and train from scratch"):
        graph(optimizer="adam").load_state(state, change=lambda name, array: 2 * array)
    new = graph(optimizer="adam")
    new.build()
    assert new.load_weights(arrays_of(given), change=lambda name, array: 2 * array)
    assert trained(new).loss.size


def test_weights_in_another_order(hint: Any) -> None:
    given = graph()
    given.build()
    arrays = arrays_of(given)
    turned = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    with hint("reorder the axes as in the model: {}"):
        given.load_weights(turned)
    given.load_weights(
        turned,
        change=lambda name, array: array.T if name.endswith("weight") and array.ndim == 2 else array,
    )
    for name, array in arrays_of(given).items():
        np.testing.assert_array_equal(array, arrays[name])
    short = {name.removeprefix("layers."): array for name, array in arrays.items()}
    with hint("names=lambda name: {} + name"):
        given.load_weights(short)
    assert given.load_weights(short, names=lambda name: "layers." + name)


class Kernel(Module):
    """A matrix product with the matrix in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters["kernel"] = np.arange(9, dtype="float32").reshape(3, 3)

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        (x,), kernel = inputs, values["kernel"]

        def pullback(cotangents: Any) -> Any:
            (c,) = cotangents
            return {"kernel": x.T @ c}, (c @ kernel.T,)

        return VjpResult((x @ kernel,), pullback)


class Weight(Kernel):
    def __init__(self) -> None:
        super().__init__()
        self.parameters["weight"] = self.parameters.pop("kernel").T

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        inner = super().apply({"kernel": values["weight"].T}, inputs, train=train, key=key)

        def pullback(cotangents: Any) -> Any:
            gradients, pulled = inner.pullback(cotangents)
            return {"weight": gradients["kernel"].T}, pulled

        return VjpResult(inner.outputs, pullback)


def test_copies_in_another_order(hint: Any) -> None:
    source, target = Kernel(), Weight()
    graph(node("a", source, WIDE.reference()), node("b", target, WIDE.reference())).build()
    names = {"weight": "kernel"}
    with hint("specify the order: {}; or, if the order is the same, pass change=lambda name, array: array"):
        aa.copy_weights(source, target, names=names)
    aa.copy_weights(source, target, names=names, change=lambda name, array: array.T)
    np.testing.assert_array_equal(target.parameters["weight"].T, source.parameters["kernel"])
    assert aa.copy_weights(source, target, names=names, change=lambda name, array: array)


def with_policy(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    """A plugin offers a placement policy from now on."""
    from anyaccel import hookimpl

    registry = Registry(NumpyBackend, lambda: ())
    module = SimpleNamespace(policies=hookimpl(lambda: {"nearest": policy}))
    registry.register(module, "chooser")
    monkeypatch.setattr("anyaccel.registry._registry", [registry])


def test_policies_of_plugins(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_policy(monkeypatch, lambda nodes: {"net": 7})
    with hint("update {}, or leave policy= out"):
        trained(graph(), policy="nearest")
    with_policy(monkeypatch, lambda nodes: {"net": "cpu"})
    assert trained(graph(), policy="nearest")  # the plugin was updated
    assert trained(graph())  # without policy=


class Ensemble(Learner):
    """An estimator with another in it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"inner": self.inner}


def test_estimators_in_estimators(hint: Any) -> None:
    with hint("pass the estimator directly: {}(...) without Estimator(...)"):
        Estimator(Ensemble(Estimator(Learner())))
    assert Estimator(Ensemble(Learner()))


def test_variables_of_the_environment(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_DEVICE", "my gpu!")
    with hint("set {}=cpu or {}=gpu:0"):
        trained(graph())
    monkeypatch.setenv("ANYACCEL_DEVICE", "cpu")
    assert trained(graph())


def test_rates_of_optimizers(hint: Any) -> None:
    def halved(step: int) -> float:
        return 0.5**step

    with hint("write lr=1.0, schedule=... with this value of {}, a function of the step"):
        aa.Optimizer("sgd", lr=halved)
    assert trained(graph(optimizer=aa.Optimizer("sgd", lr=1.0, schedule=halved)))
