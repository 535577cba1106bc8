"""Hints of metrics and of evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, Estimator, EvalPhase, Metric, ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
CLASSES = np.arange(24) % 3
SCORES = np.eye(3, dtype="float32")[CLASSES]
MSE = AppliedLoss("mse", on="net")


def features(label: str = "data", **columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    return aa.FeatureSet.from_dict(label, {"x": X, **columns}, ["x"], list(columns))


def graph(width: int = 1, data: aa.FeatureSet | None = None) -> ModelGraph:
    return ModelGraph([ModelNode("net", aa.SequentialMLP(width), (data or features()).reference())], "sgd")


def measure(metric: Any, width: int = 1, data: aa.FeatureSet | None = None, **settings: Any) -> dict[str, float]:
    phase = EvalPhase("test", data="all", metrics=[metric], **settings)
    return dict(graph(width, data).run(phase, progress="none").metrics)


def test_names_of_metrics(hint: Any) -> None:
    with hint("{} is a loss: write losses=[AppliedLoss({}, on='NODE')]"):
        Metric("cross_entropy")
    node = ModelNode("NODE", aa.SequentialMLP(3), features(y=CLASSES).reference())
    phase = EvalPhase("test", data="all", losses=[AppliedLoss("cross_entropy", on="NODE")])
    assert ModelGraph([node], "sgd").run(phase, progress="none").loss > 0
    with hint("roc_auc"):
        Metric("auroc")
    assert Metric("roc_auc").compute(2 * SCORES[:, 0] - 1, CLASSES == 0) == 1
    with hint("top_5_accuracy"):
        Metric("top_k_categorical_accuracy")
    assert Metric("top_5_accuracy").compute(np.eye(6), np.arange(6)) == 1
    for other, name in {
        "mape": "mean_absolute_percentage_error",
        "msle": "mean_squared_log_error",
        "rmsle": "root_mean_squared_log_error",
    }.items():
        with pytest.raises(aa.errors.SpecError, match=f"Hint: .*{name}"):
            Metric(other)
        assert Metric(name).compute(SCORES[:, 0], SCORES[:, 0]) == 0
    with hint("mean_absolute_percentage_error"):
        Metric("mape")
    with hint("mean_squared_log_error"):
        Metric("msle")
    with hint("root_mean_squared_log_error"):
        Metric("rmsle")
    with hint("matthews_corrcoef"):
        Metric("mcc")
    with hint("cohen_kappa"):
        Metric("kappa")
    assert Metric("matthews_corrcoef").compute(SCORES, CLASSES) == 1
    assert Metric("cohen_kappa").compute(SCORES, CLASSES) == 1
    with hint("write ignore_index=-100"):
        Metric("accuracy", ignore_index="none")  # type: ignore[arg-type]
    assert Metric("accuracy", ignore_index=-100).compute(SCORES, np.where(CLASSES == 0, -100, CLASSES)) == 1
    with hint("write class_axis=1"):
        Metric("accuracy", class_axis=0)
    assert Metric("accuracy", class_axis=1).compute(SCORES, CLASSES) == 1
    with hint("write {'measure': 'accuracy'}"):
        Metric.from_config({})
    assert Metric.from_config({"measure": "accuracy"}).name == "accuracy"


def test_values_that_metrics_take(hint: Any) -> None:
    with hint("leave from_logits out"):
        Metric("accuracy", from_logits=False).compute(2 * X[:, 0], CLASSES == 0)
    assert Metric("accuracy").compute(2 * X[:, 0], X[:, 0] > 0) == 1  # without from_logits
    with hint("if these are scores of classes, use a metric of classes, such as 'accuracy'"):
        Metric("mse").compute(SCORES, CLASSES)
    assert Metric("accuracy").compute(SCORES, CLASSES) == 1
    data = features(y=X, z=X[:, 0])
    with hint("name other targets in Metric(..., targets='FEATURE_SET.COLUMN'), or pass a function as metric"):
        measure("mse", 1, data)
    named = features("FEATURE_SET", y=X, COLUMN=X[:, :1])
    assert measure(Metric("mse", targets="FEATURE_SET.COLUMN"), 1, named)["mse"] >= 0
    assert measure(lambda outputs, targets: float(len(outputs)), 1, data)["<lambda>"] == 24
    with hint("to ignore it, write Metric({}, ignore_index={}); otherwise number the classes from 0"):
        Metric("accuracy").compute(SCORES, np.where(CLASSES == 0, -1, CLASSES))
    assert Metric("accuracy", ignore_index=-1).compute(SCORES, np.where(CLASSES == 0, -1, CLASSES)) == 1
    with hint("use an average over classes: 'f1_macro'"):
        Metric("f1").compute(SCORES, CLASSES)
    assert Metric("f1_macro").compute(SCORES, CLASSES) == 1
    with hint("use an average over classes: '{}_macro'"):
        Metric("recall").compute(SCORES, CLASSES)
    assert Metric("recall_macro").compute(SCORES, CLASSES) == 1
    with hint("use 'roc_auc_ovr' to compare each class with the rest"):
        Metric("roc_auc").compute(SCORES, CLASSES)
    assert Metric("roc_auc_ovr").compute(SCORES, CLASSES) == 1


class Nearest:
    """Learns one center of each class."""

    def fit(self, x: Any, y: Any) -> Nearest:
        self.centers = np.stack([x[y == k].mean(0) for k in range(3)])
        return self

    def predict(self, x: Any) -> Any:
        return self.predict_proba(x).argmax(1)

    def predict_proba(self, x: Any) -> Any:
        chances = np.exp(-((x[:, None] - self.centers) ** 2).sum(2))
        return chances / chances.sum(1, keepdims=True)


def test_classes_of_numbers(hint: Any) -> None:
    with hint("use a model with one output per class; metrics of numbers are 'r2', 'mae' and 'rmse'"):
        measure("accuracy")
    for metric in ("r2", "mae", "rmse"):
        assert metric in measure(metric)
    assert "accuracy" in measure("accuracy", 3, features(y=CLASSES))


def test_scores_of_estimators(hint: Any) -> None:
    data = features(y=CLASSES)

    def scored(metric: str, model: Any) -> float:
        net = ModelGraph([ModelNode("net", model, data.reference())])
        net.run(aa.FitPhase("fit", data="all"), progress="none")
        return net.run(EvalPhase("test", data="all", metrics=[metric]), progress="none").metrics[metric]

    with hint(
        "use a metric of classes, such as 'f1_macro', or return scores from the node: for an estimator with "
        "anyaccel.Estimator(..., method='predict_proba')"
    ):
        scored("roc_auc_ovr", Nearest())
    assert 0 <= scored("f1_macro", Nearest()) <= 1
    assert 0 <= scored("roc_auc_ovr", Estimator(Nearest(), method="predict_proba")) <= 1


def test_positions(hint: Any) -> None:
    with hint("leave ignore_index out, or name a mask: Metric(..., mask='DATA.COLUMN')"):
        Metric("mse", ignore_index=0).compute(X, X)
    assert Metric("mse").compute(X, X) == 0  # without ignore_index
    data = features("DATA", y=X[:, :1], COLUMN=np.arange(24) < 12)
    assert measure(Metric("mse", targets="DATA.y", mask="DATA.COLUMN"), 1, data)["mse"] >= 0
    positions = np.stack([SCORES, SCORES], axis=2)  # [n, classes, positions]
    with hint("set the axis of the classes: Metric(..., class_axis=1)"):
        Metric("accuracy", ignore_index=-1).compute(positions, np.stack([CLASSES, CLASSES], axis=1))
    targets = np.stack([CLASSES, CLASSES], axis=1)
    assert Metric("accuracy", ignore_index=-1, class_axis=1).compute(positions, targets) == 1
    with hint("check the mask or ignore_index, and the targets"):
        Metric("accuracy", ignore_index=0).compute(SCORES, np.zeros(24, int))
    assert Metric("accuracy", ignore_index=-1).compute(SCORES, np.zeros(24, int)) == pytest.approx(1 / 3)
    with hint("write mask='{}.COLUMN'"):
        measure(Metric("mse", targets="DATA.y", mask="OTHER"), 1, data)
    assert measure(Metric("mse", targets="DATA.y", mask="DATA.COLUMN"), 1, data)["mse"] >= 0


def test_functions_as_metrics(hint: Any) -> None:
    with hint("end the function with: return float(...)"):
        measure(lambda outputs, targets: None)
    assert measure(lambda outputs, targets: float(np.abs(outputs - targets).max()))

    class Errors:
        """Of each column, as F1Score of Keras is of each class."""

        def __init__(self, average: str | None = None) -> None:
            self.average = average

        def reset_state(self) -> None:
            self.errors = np.zeros(1)

        def update_state(self, targets: Any, outputs: Any) -> None:
            self.errors = abs(outputs - targets).mean(axis=0)

        def result(self) -> Any:
            return self.errors.mean() if self.average == "macro" else np.append(self.errors, 0.0)

    for metric in (lambda outputs, targets: abs(outputs - targets), Errors()):
        with hint("average: return float(np.mean(...)), or create a metric object with average='macro'"):
            measure(metric)
    assert measure(lambda outputs, targets: float(np.mean(abs(outputs - targets))))
    assert measure(Errors(average="macro"))
    collection = {"mae": lambda outputs, targets: float(abs(outputs - targets).mean()), "mse": "mse"}
    with hint("pass each metric separately: metrics=list(collection.values())"):
        measure(lambda outputs, targets: dict.fromkeys(collection, 0.0))
    phase = EvalPhase("test", data="all", metrics=list(collection.values()))
    assert len(graph().run(phase, progress="none").metrics) == 2
    with hint("pass its score function or a name: metrics=['f1_macro']"):
        EvalPhase("test", data="all", metrics=[lambda estimator, x, y: 0.0])
    phase = EvalPhase("test", data="all", metrics=["f1_macro"])
    assert graph(3, features(y=CLASSES)).run(phase, progress="none").metrics["f1_macro"] >= 0

    def accuracy_score(targets: Any, outputs: Any) -> float:
        raise ValueError("continuous is not supported")

    accuracy_score.__name__ = "accuracy"
    with hint("write metrics=[{}]: this name takes the outputs of a model"):
        measure(accuracy_score, 3, features(y=CLASSES))
    assert measure("accuracy", 3, features(y=CLASSES), losses=[])["accuracy"] >= 0
    assert EvalPhase("test", data="all", metrics=["accuracy"]).metrics
    with hint("give a function: def metric(outputs, targets): return float(...)"):
        measure(lambda outputs, targets: 1 / 0)

    def metric(outputs: Any, targets: Any) -> float:
        return float(np.abs(outputs - targets).max())

    assert measure(metric)["metric"] >= 0


def test_metrics_of_one_phase(hint: Any) -> None:
    with hint("give each a label="):
        graph().run(EvalPhase("test", data="all", metrics=["mse", "mse"]), progress="none")
    metrics = [Metric("mse", label="first"), Metric("mse", label="second")]
    assert len(graph().run(EvalPhase("test", data="all", metrics=metrics), progress="none").metrics) == 2
    with hint("give the metric another label="):
        graph().run(EvalPhase("test", data="all", losses=[MSE], metrics=[Metric("mse", label="loss")]), progress="none")
    phase = EvalPhase("test", data="all", losses=[MSE], metrics=[Metric("mse", label="error")])
    assert graph().run(phase, progress="none").metrics["error"] >= 0
    data = features(y=CLASSES)
    nodes = [ModelNode(label, aa.SequentialMLP(width), data.reference()) for label, width in {"a": 3, "b": 2}.items()]
    two = ModelGraph(nodes, "sgd")
    with hint("name the node to judge: Metric({}, on={})"):
        two.run(EvalPhase("test", data="all", metrics=["accuracy"]), progress="none")
    judged = two.run(EvalPhase("test", data="all", metrics=[Metric("accuracy", on="a")]), progress="none")
    assert judged.metrics["accuracy"] >= 0


def test_metrics_of_rows_that_differ_in_length(hint: Any) -> None:
    rows = [np.ones((1 + i % 3, 2), "float32") for i in range(8)]
    data = aa.FeatureSet.from_dict(
        "data", {"x": rows, "y": rows, "z": rows}, ["x"], ["y", "z"], pad=dict.fromkeys("xyz", 0)
    )
    net = ModelGraph([ModelNode("net", Dense(4), data.reference())], "sgd")
    with hint(
        "leave the metric out, and compute it from results.prediction({}), which is padded with NaN after each batch, "
        "and the lengths of the rows"
    ):
        net.run(EvalPhase("test", data="all", metrics=["mse"], batch_size=2), progress="none")
    results = net.run(EvalPhase("test", data="all", batch_size=2), progress="none")
    assert len(results.prediction("net")) == 8
