"""Metrics of positions beside scikit-learn's functions."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import Metric

N, STEPS, CLASSES, PAD = 12, 5, 3, -100


RNG = np.random.default_rng(0)


LOGITS = RNG.normal(size=(N, STEPS, CLASSES)).astype("float32")


TAGS = RNG.integers(0, CLASSES, (N, STEPS))


MASK = RNG.random((N, STEPS)) < 0.6


IGNORED = np.where(MASK, TAGS, PAD)


def value(metric, outputs=LOGITS, targets=TAGS, **given):
    return metric.compute(outputs, targets, **given)


@pytest.mark.parametrize("name", ["f1_macro", "balanced_accuracy", "cohen_kappa", "matthews_corrcoef", "log_loss"])
def test_equals_scikit_learn_on_what_counts(name):
    sk = pytest.importorskip("sklearn.metrics")
    truth, scores = TAGS[MASK], LOGITS[MASK].astype("float64")
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = {
        "f1_macro": lambda: sk.f1_score(truth, scores.argmax(-1), average="macro"),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(truth, scores.argmax(-1)),
        "cohen_kappa": lambda: sk.cohen_kappa_score(truth, scores.argmax(-1)),
        "matthews_corrcoef": lambda: sk.matthews_corrcoef(truth, scores.argmax(-1)),
        "log_loss": lambda: sk.log_loss(truth, chances, labels=range(CLASSES)),
    }[name]()
    assert value(Metric(name, ignore_index=PAD), targets=IGNORED) == pytest.approx(expected, rel=1e-6)
    assert value(Metric(name, mask="d.m"), mask=MASK) == pytest.approx(expected, rel=1e-6)
