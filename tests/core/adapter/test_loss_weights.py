"""What counts in a named loss: settings and weights by hand, with Python's numbers, and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from anyaccel.adapter import loss_function
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.specs import FROM_OUTPUT, Loss

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 2))  # rows, positions, classes
TARGETS = np.array([[0, 1, -9, 1], [-9, -9, -9, -9], [1, 1, 0, 0]])
CLASS_WEIGHTS = [0.5, 3.0]
BY_ROW, BY_POSITION = np.array([2.0, 1.0, 0.0]), RNG.random((3, 4))


@pytest.fixture
def judge(loss):
    """The loss of some inputs, computed as in a program."""

    def judged(spec, *inputs):
        names = " ".join(f"v{i}" for i in range(len(inputs)))
        return loss_function(NumpyOps(), replace(loss("mse", names), loss=spec))(inputs)

    return judged


def by_hand(smoothing=0.0, class_weights=(1.0, 1.0), weight=lambda row, position: 1.0):
    """Sum and weight, position by position."""
    total = count = 0.0
    for row, position in np.ndindex(3, 4):
        target = TARGETS[row, position]
        if target == -9:
            continue
        logits = LOGITS[row, position].tolist()
        logs = [x - math.log(sum(map(math.exp, logits))) for x in logits]
        shares = [(1 - smoothing) * (c == target) + smoothing / 2 for c in (0, 1)]
        here = -sum(w * share * log for w, share, log in zip(class_weights, shares, logs, strict=True))
        total += weight(row, position) * here
        count += weight(row, position) * class_weights[target]
    return total, count


CASES = {
    "ignored": ({}, (), by_hand()),
    "class weights": ({"class_weights": CLASS_WEIGHTS}, (), by_hand(class_weights=CLASS_WEIGHTS)),
    "all settings": (
        {"class_weights": np.array(CLASS_WEIGHTS), "label_smoothing": 0.2},
        (),
        by_hand(0.2, CLASS_WEIGHTS),
    ),
    "weights by row": ({}, (BY_ROW,), by_hand(weight=lambda row, _: BY_ROW[row])),
    "both weights": (
        {"class_weights": CLASS_WEIGHTS},
        (BY_ROW, BY_POSITION),
        by_hand(class_weights=CLASS_WEIGHTS, weight=lambda row, position: BY_ROW[row] * BY_POSITION[row, position]),
    ),
}


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("case", CASES)
def test_cross_entropy_is_the_sum_over_what_counts(case, axis, judge, slopes):
    settings, weights, expected = CASES[case]
    spec = Loss("cross_entropy", ignore_index=-9, class_axis=axis, **settings)
    logits = np.ascontiguousarray(np.moveaxis(LOGITS, -1, axis))
    judged = judge(spec, logits, TARGETS, *weights)
    assert (float(judged.sum), float(judged.weight)) == pytest.approx(expected, rel=1e-12)
    gradient, *others = judged.gradients()
    assert others == [None] * (1 + len(weights))
    differences = slopes(lambda: float(judge(spec, logits, TARGETS, *weights).sum), logits)
    np.testing.assert_allclose(gradient, differences, atol=1e-7)


@pytest.mark.parametrize("axis", [-1, 1])
def test_probabilities_are_smoothed_and_weighted(axis, judge, slopes):
    spec = Loss("cross_entropy", class_axis=axis, label_smoothing=0.1)
    logits, targets = np.moveaxis(LOGITS, -1, axis).copy(), np.moveaxis(RNG.random((3, 4, 2)), -1, axis).copy()
    judged = judge(spec, logits, targets, BY_POSITION)
    for gradient, array in zip(judged.gradients(), (logits, targets), strict=False):
        difference = slopes(lambda: float(judge(spec, logits, targets, BY_POSITION).sum), array)
        np.testing.assert_allclose(gradient, difference, atol=1e-7)
    assert float(judged.weight) == pytest.approx(BY_POSITION.sum())


@pytest.mark.parametrize(("name", "each"), [("mse", np.square), ("mae", np.abs)])
def test_elements_share_the_weight_of_their_position(name, each, judge):
    targets = RNG.normal(size=LOGITS.shape)
    judged = judge(Loss(name), LOGITS, targets, BY_POSITION)
    expected = (each(LOGITS - targets).mean(-1) * BY_POSITION).sum()
    assert (float(judged.sum), float(judged.weight)) == pytest.approx((expected, BY_POSITION.sum()))


@pytest.mark.parametrize("name", ["mse", "mae", "binary_cross_entropy"])
def test_what_does_not_count_may_be_nan(name, judge):
    targets = np.where(BY_POSITION < 0.5, np.nan, 1.0)
    judged = judge(Loss(name), LOGITS[..., 0], targets, BY_POSITION >= 0.5)
    assert np.isfinite(judged.sum)
    assert judged.weight == (BY_POSITION >= 0.5).sum()
    for gradient in judged.gradients()[:2]:
        assert (np.asarray(gradient)[BY_POSITION < 0.5] == 0).all()


def test_where_nothing_counts_the_sum_and_weight_are_0(judge):
    judged = judge(Loss("cross_entropy", ignore_index=1), LOGITS, np.ones((3, 4), "int64"))
    assert (float(judged.sum), float(judged.weight)) == (0, 0)
    assert not judged.gradients()[0].any()


@pytest.mark.parametrize("weight", [BY_ROW, BY_POSITION, RNG.random((3, 2, 2))])
def test_a_loss_that_a_model_computed_is_weighted_by_what_it_counted(weight, judge):
    by_row = weight.reshape(3, -1).sum(axis=1)
    whole = judge(Loss(FROM_OUTPUT), np.array(1.5), LOGITS, weight)
    assert (float(whole.sum), float(whole.weight)) == pytest.approx((1.5 * by_row.sum(), by_row.sum()))
    assert float(whole.gradients()[0]) == pytest.approx(by_row.sum())
    values = np.array([1.0, 2.0, 4.0])
    each = judge(Loss(FROM_OUTPUT), values, LOGITS, weight)
    assert (float(each.sum), float(each.weight)) == pytest.approx((by_row @ values, by_row.sum()))
    np.testing.assert_allclose(each.gradients()[0], by_row)
