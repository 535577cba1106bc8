"""Metrics of a validation that are not defined, and their directions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import UndefinedMetricWarning

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")


PLAIN = aa.AppliedLoss("cross_entropy", on="net")


def graph(width=2):
    targets = {"k": (X[:, 0] > 0).astype("int64"), "one": np.zeros(32, "int64"), "y": X[:, :1]}
    data = aa.FeatureSet.from_dict("d", {"x": X, **targets}, ["x"], list(targets))
    data.add_splits({"train": range(20), "val": range(20, 32)})
    target = "k" if width == 2 else "y"
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(width), data.reference(target=[target]))], "adam")


def train(losses, validation, width=2, epochs=3, **settings):
    phase = aa.TrainPhase("t", data="train", losses=losses, epochs=epochs, validation=validation, **settings)
    trained = graph(width)
    return trained, aa.Experiment("e", trained, progress="none").run_phase(phase)


def test_a_metric_that_is_not_defined_ends_no_training_and_is_told_of_once():
    auc = aa.Metric("roc_auc", on="net", targets="d.one")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, results = train([PLAIN], aa.EvalPhase("v", data="val", metrics=[auc, "accuracy"]))
    assert np.isnan(results.figure("val_roc_auc")).all() and len(results.epochs) == 3
    assert np.isfinite(results.figure("val_accuracy")).all()
    cause = "metric 'roc_auc' is not defined: all targets are of class 0. It is nan, as in scikit-learn"
    assert [str(warning.message) for warning in told if warning.category is UndefinedMetricWarning] == [cause]
    assert [event.message for event in results.events if event.kind == "metric"] == [cause]


def test_an_evaluation_alone_tells_of_it_too():
    auc = aa.Metric("roc_auc", on="net", targets="d.one")
    with pytest.warns(UndefinedMetricWarning, match="all targets are of class 0"):
        results = graph().run(aa.EvalPhase("v", data="val", metrics=[auc]), progress="none")
    assert np.isnan(results.metrics["roc_auc"])
