"""Metrics over positions, with masks and ignored targets: beside loops by hand and scikit-learn on what counts."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss, EvalPhase, FeatureSet, Loss, Metric, ModelGraph, ModelNode
from anyaccel.adapter import VjpResult
from anyaccel.errors import ColumnError, SpecError
from anyaccel.numpy_backend.module import Module

N, STEPS, CLASSES, PAD = 12, 5, 3, -100
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(N, STEPS, CLASSES)).astype("float32")
TAGS = RNG.integers(0, CLASSES, (N, STEPS))
MASK = RNG.random((N, STEPS)) < 0.6
IGNORED = np.where(MASK, TAGS, PAD)


class Same(Module):
    """Gives what it gets."""

    def apply(self, values, inputs, *, train, key):
        return VjpResult(inputs, lambda cotangents: ({}, cotangents))


def by_hand(logits=LOGITS, counts=MASK):
    """Accuracy, position by position."""
    hits = [logits[i, t].argmax() == TAGS[i, t] for i in range(N) for t in range(STEPS) if counts[i, t]]
    return sum(hits) / len(hits)


def value(metric, outputs=LOGITS, targets=TAGS, **given):
    return metric.compute(outputs, targets, **given)


def test_scores_of_positions_are_counted_one_by_one():
    assert value(Metric("accuracy")) == by_hand(counts=np.ones_like(MASK))
    assert value(Metric("accuracy", class_axis=1), np.moveaxis(LOGITS, -1, 1)) == by_hand(counts=np.ones_like(MASK))


def test_ignored_targets_and_masks_leave_positions_out():
    expected = by_hand()
    assert expected != by_hand(counts=np.ones_like(MASK))
    assert value(Metric("accuracy", ignore_index=PAD), targets=IGNORED) == expected
    assert value(Metric("accuracy", mask="d.m"), mask=MASK) == expected
    assert value(Metric("accuracy", mask="d.m"), mask=MASK[..., None].astype("int8")) == expected
    half = Metric("accuracy", mask="d.m", ignore_index=PAD)
    rows = np.arange(N) % 2 == 0
    assert value(half, targets=IGNORED, mask=rows) == by_hand(counts=MASK & rows[:, None])


def test_errors_of_numbers_are_those_of_the_positions_that_count():
    outputs, targets = LOGITS[..., 0], LOGITS[..., 1]
    expected = np.mean([(outputs[i, t] - targets[i, t]) ** 2 for i in range(N) for t in range(STEPS) if MASK[i, t]])
    assert value(Metric("mse", mask="d.m"), outputs, targets, mask=MASK) == pytest.approx(float(expected), rel=1e-6)
    wide = np.where(MASK[..., None], LOGITS, np.nan)
    assert np.isfinite(value(Metric("mse", mask="d.m"), wide, LOGITS + 1, mask=MASK))


def test_functions_get_what_counts_alone():
    seen = []

    def shapes(outputs, targets):
        seen.append((outputs.shape, targets.shape, (targets == PAD).any()))
        return 0.0

    value(Metric(shapes, ignore_index=PAD), targets=IGNORED)
    value(Metric(shapes), targets=IGNORED)
    count = int(MASK.sum())
    assert seen == [((count, CLASSES), (count,), False), (LOGITS.shape, TAGS.shape, True)]


def data():
    columns = {"x": LOGITS, "y": IGNORED, "tags": TAGS, "m": MASK.astype("int64"), "wrong": TAGS}
    return FeatureSet.from_dict("d", columns, ["x"], ["y", "tags", "m", "wrong"])


def evaluated(metric, features):
    graph = ModelGraph([ModelNode("net", Same(), features.reference(features=["x"]))])
    return graph.run(EvalPhase(data="all", metrics=metric, batch_size=5), progress="none").metrics


def test_a_phase_takes_a_column_as_a_mask():
    masked = Metric("accuracy", targets="d.tags", mask="d.m", label="masked")
    ignored = Metric("accuracy", targets="d.y", ignore_index=PAD, label="ignored")
    results = evaluated([masked, ignored], data())
    assert results == {"masked": by_hand(), "ignored": by_hand()}


def test_a_metric_has_the_targets_of_the_loss_and_says_itself_what_counts():
    features = data()
    graph = ModelGraph([ModelNode("net", Same(), features.reference(features=["x"]))])
    loss = AppliedLoss(Loss("cross_entropy", ignore_index=PAD), on="net", inputs=["outputs", "d.y"])
    phase = EvalPhase(data="all", losses=loss, metrics=[Metric("accuracy", ignore_index=PAD)])
    assert graph.run(phase, progress="none").metrics == {"accuracy": by_hand()}


def test_settings_are_in_the_configuration():
    metric = Metric("accuracy", mask="d.m", ignore_index=-1, class_axis=1)
    assert Metric.from_config(metric.get_config()) == metric
    assert set(Metric("accuracy").get_config()) == {"measure", "on", "targets", "label"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ignore_index": 1.5}, r"ignore_index=1.5 is not an int. Hint: write ignore_index=-100"),
        ({"class_axis": 0}, r"class_axis=0 is not a valid axis: axis 0 is the batch.*write class_axis=1"),
        ({"mask": 3}, r"Metric: mask=3"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SpecError, match=message):
        Metric("accuracy", **settings)


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "given", "message"),
    [
        (Metric("accuracy"), LOGITS, IGNORED, {}, r"class index -100.*Hint: to ignore it, write Metric\('accuracy', "
                                                  r"ignore_index=-100\)"),
        (Metric("mse", ignore_index=PAD), LOGITS, LOGITS, {}, r"ignore_index=-100 is for class-index targets.*mask"),
        (Metric("accuracy", ignore_index=PAD), LOGITS, np.full_like(TAGS, PAD), {}, "no position counts"),
        (Metric("accuracy", mask="d.m"), LOGITS, TAGS, {"mask": TAGS}, "the mask d.m has values other than 0 and 1"),
        (Metric("accuracy", mask="d.m"), LOGITS, TAGS, {"mask": MASK[:, :2]}, r"the mask d.m is \[12, 2\]"),
        (Metric("accuracy", mask="d.m"), np.moveaxis(LOGITS, -1, 1), TAGS, {"mask": MASK}, r"class_axis=1"),
        (Metric("accuracy"), LOGITS, TAGS, {"lengths": np.full(N, 7)}, "outputs have 5 positions, but targets have up "
                                                                       "to 7"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted(metric, outputs, targets, given, message):
    with pytest.raises(SpecError, match=message):
        metric.compute(outputs, targets, **given)


def test_a_mask_is_a_column_beside_the_targets():
    with pytest.raises(
        ColumnError, match=r"has the mask 'e.m', which is not a column of the data of its targets.*mask='d.COL"
    ):
        evaluated(Metric("accuracy", targets="d.tags", mask="e.m"), data())
    with pytest.raises(SpecError, match=r"'accuracy' on node 'net': the mask d.wrong has values other than 0 and 1"):
        evaluated(Metric("accuracy", targets="d.tags", mask="d.wrong"), data())
