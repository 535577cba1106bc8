"""Metric objects of Keras: given targets and outputs in the order of Keras, and reset before each evaluation."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import anyaccel as aa


def test_objects_of_keras_equal_the_named_metrics():
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(60, 4)).astype("float32"), "c": rng.integers(0, 3, 60), "y": rng.normal(size=60)}
    data = aa.FeatureSet.from_dict("data", columns, "x", ["c", "y"])
    keras.utils.set_random_seed(0)
    nodes = [
        aa.ModelNode("cls", keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), data.reference()),
        aa.ModelNode("reg", keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), data.reference()),
    ]
    graph = aa.ModelGraph(nodes, "adam")
    metrics = [
        aa.Metric(keras.metrics.SparseCategoricalAccuracy(name="keras_acc"), "cls", "data.c"),
        aa.Metric("accuracy", "cls", "data.c"),
        aa.Metric("sparse_categorical_accuracy", "cls", "data.c"),
        aa.Metric(keras.metrics.MeanAbsolutePercentageError(name="keras_mape"), "reg", "data.y"),
        aa.Metric("mean_absolute_percentage_error", "reg", "data.y", "mape"),
        aa.Metric(keras.metrics.mean_absolute_error, "reg", "data.y", "keras_mae"),
        aa.Metric("mae", "reg", "data.y"),
    ]
    ours = aa.Experiment("e", graph, progress="none")
    for _ in range(2):  # an object that is not reset would give other numbers
        values = ours.run_phase(aa.EvalPhase("e", data="all", metrics=metrics)).metrics
        assert values["keras_acc"] == pytest.approx(values["accuracy"], rel=1e-6)
        assert values["sparse_categorical_accuracy"] == values["accuracy"]
        assert values["keras_mape"] == pytest.approx(100 * values["mape"], rel=1e-5)
        assert values["keras_mae"] == pytest.approx(values["mae"], rel=1e-5)
