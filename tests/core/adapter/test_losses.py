"""Named losses against written-out values and finite differences, custom losses, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyaccel.adapter import loss_function
from anyaccel.errors import ShapeError, SpecError
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.specs import Loss


@pytest.fixture
def judge(loss):
    """The loss of some inputs, computed as in a program."""

    def judged(name, *inputs, **settings):
        names = " ".join(f"v{i}" for i in range(len(inputs)))
        return loss_function(NumpyOps(), loss(name, names, **settings))(inputs)

    return judged


LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])


def by_hand(name, outputs, targets):
    """Sum and weight with Python's own numbers only."""
    pairs = list(zip(outputs.ravel().tolist(), targets.ravel().tolist(), strict=False))
    if name == "mse":
        return sum((x - y) ** 2 for x, y in pairs), len(pairs)
    if name == "mae":
        return sum(abs(x - y) for x, y in pairs), len(pairs)
    if name == "binary_cross_entropy":
        chances = [(1 / (1 + math.exp(-x)), y) for x, y in pairs]
        return sum(-y * math.log(p) - (1 - y) * math.log(1 - p) for p, y in chances), len(pairs)
    total = 0.0
    for row, target in zip(outputs.tolist(), targets.tolist(), strict=True):
        logs = [x - math.log(sum(math.exp(other) for other in row)) for x in row]
        total -= logs[target] if isinstance(target, int) else sum(p * log for p, log in zip(target, logs, strict=True))
    return total, len(outputs)


CASES = [
    ("mse", LOGITS, LOGITS[::-1].copy()),
    ("mae", LOGITS, LOGITS[::-1].copy()),
    ("binary_cross_entropy", LOGITS, np.array([[0.0, 1.0, 0.3], [1.0, 0.0, 0.5]])),
    ("cross_entropy", LOGITS, np.array([2, 1])),
    ("cross_entropy", LOGITS, np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])),
    ("cross_entropy", LOGITS, np.array([[0.4, 0.6, 1.0], [0.0, 0.5, 0.0]])),
]


@pytest.mark.parametrize(("name", "outputs", "targets"), CASES)
def test_sums_and_weights_by_the_formulas(name, outputs, targets, judge):
    total, weight = by_hand(name, outputs, targets)
    judged = judge(name, outputs, targets)
    assert float(judged.sum) == pytest.approx(total, rel=1e-12)
    assert float(judged.weight) == weight


@pytest.mark.parametrize(("name", "outputs", "targets"), CASES)
def test_gradients_agree_with_finite_differences(name, outputs, targets, judge, slopes):
    inputs = outputs.copy(), targets.copy()
    gradients = judge(name, *inputs).gradients()
    for x, gradient in zip(inputs, gradients, strict=True):
        if x.dtype.kind == "i":
            assert gradient is None
        else:
            np.testing.assert_allclose(gradient, slopes(lambda: float(judge(name, *inputs).sum), x), atol=1e-7)


def test_extreme_logits_stay_finite(judge):
    logits = np.array([[1e4, -1e4, 0.0]], "float32")
    assert float(judge("cross_entropy", logits, np.array([0])).sum) == 0
    assert float(judge("binary_cross_entropy", logits, np.array([[1, 0, 1]])).sum) == pytest.approx(math.log(2))


def test_a_class_ruled_out_by_an_infinite_logit_adds_nothing(judge):
    logits = np.array([[0.0, -np.inf, 0.0]])
    judged = judge("cross_entropy", logits, np.array([2]))
    assert float(judged.sum) == pytest.approx(math.log(2))
    np.testing.assert_allclose(judged.gradients()[0], [[0.5, 0.0, -0.5]])


@pytest.mark.parametrize("index", [3, -1])
def test_an_index_out_of_range_makes_the_loss_nan(index, judge):
    judged = judge("cross_entropy", LOGITS, np.array([0, index]))
    assert math.isnan(float(judged.sum))
    assert np.isnan(judged.gradients()[0][1]).all()


def test_class_indices_over_several_axes_count_every_position(judge):
    logits = np.zeros((2, 5, 4))
    judged = judge("cross_entropy", logits, np.zeros((2, 5), "int64"))
    assert float(judged.weight) == 10
    assert float(judged.sum) == pytest.approx(10 * math.log(4))


@pytest.mark.parametrize("name", ["mse", "mae", "binary_cross_entropy"])
@pytest.mark.parametrize("dtype", ["int64", "bool", "float64"])
def test_targets_take_the_dtype_of_the_outputs(name, dtype, judge):
    outputs, targets = LOGITS.astype("float32"), np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    judged = judge(name, outputs, targets)
    assert judged.sum.dtype == judged.weight.dtype == judged.gradients()[0].dtype == np.float32


def test_16_bit_outputs_are_summed_in_32_bits(judge):
    outputs = np.full((70000, 1), 2.0, "float16")
    judged = judge("mse", outputs, np.zeros_like(outputs))
    assert float(judged.sum / judged.weight) == 4


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "available"),
    [
        ("mse", np.zeros((4, 1)), np.zeros(4), "targets of shape [4, 1]"),
        ("mae", np.zeros((4, 2)), np.zeros((4, 1)), "targets of shape [4, 2]"),
        ("binary_cross_entropy", np.zeros(4), np.zeros((4, 1)), "targets of shape [4]"),
        ("cross_entropy", np.zeros((4, 3)), np.zeros((4, 1), "int64"), "class indices of shape [4]"),
        ("cross_entropy", np.zeros((4, 3)), np.zeros(4), "class indices of shape [4], or floating probabilities"),
        ("cross_entropy", np.zeros((4, 3)), np.zeros((4, 3), "int64"), "class indices of shape [4]"),
        ("cross_entropy", np.zeros((4, 3)), np.zeros(4, "bool"), "class indices of shape [4]"),
        ("cross_entropy", np.zeros(4), np.zeros((), "int64"), "class indices of shape []"),
    ],
)
def test_losses_do_not_broadcast(name, outputs, targets, available, judge):
    with pytest.raises(ShapeError) as caught:
        judge(name, outputs, targets, label="fit")
    message = str(caught.value)
    assert message.startswith(
        f"loss 'fit' on 'v0': {name} of outputs float64{list(outputs.shape)} does not take targets"
    )
    assert f"Available: {available}" in message


def test_a_named_loss_takes_outputs_and_targets(judge):
    with pytest.raises(SpecError, match=r"mse takes two inputs, outputs and targets, but got 1: v0"):
        judge("mse", LOGITS, label="fit")


class Huber:
    """A loss of a user's own, with its gradients."""

    def __init__(self, delta=1.0):
        self.delta = delta

    def __call__(self, outputs, targets):
        d = outputs - targets
        near = np.abs(d) <= self.delta
        total = np.sum(np.where(near, 0.5 * d * d, self.delta * (np.abs(d) - 0.5 * self.delta)))
        return total, outputs.size, (np.where(near, d, self.delta * np.sign(d)), None)


OWN = [Loss(Huber()), Loss(Huber, loss_kwargs={"delta": 2.0}), Loss(lambda *inputs: Huber()(*inputs))]


@pytest.mark.parametrize("own", OWN, ids=["object", "class", "function"])
def test_a_custom_loss_returns_sum_weight_and_gradients(own, judge, slopes):
    inputs = LOGITS.copy(), np.full_like(LOGITS, 0.3)
    judged = judge(own, *inputs)
    assert float(judged.weight) == 6
    assert judged.gradients()[1] is None
    np.testing.assert_allclose(judged.gradients()[0], slopes(lambda: float(judge(own, *inputs).sum), inputs[0]), 1e-6)


def test_a_class_that_makes_no_loss_is_refused(judge):
    with pytest.raises(SpecError) as caught:
        judge(Loss(int), LOGITS, LOGITS)
    assert "the loss 'int' is a class, but its objects cannot be called" in str(caught.value)
    assert "Hint: pass a function, a class with __call__, or a name such as 'mse'" in str(caught.value)
    with pytest.raises(SpecError, match=r"cannot create the loss 'ndarray'.*Hint: correct loss_kwargs"):
        judge(Loss(np.ndarray), LOGITS, LOGITS)


@pytest.mark.parametrize(
    "own", [lambda x, y: np.mean((x - y) ** 2), lambda x, y: (1.0, 2), lambda x, y: (1.0, 2, (x,))]
)
def test_a_custom_loss_without_gradients_is_refused(own, judge):
    with pytest.raises(SpecError) as caught:
        judge(Loss(own), LOGITS, LOGITS)
    assert "without gradients, and NumPy has no automatic differentiation" in str(caught.value)
    assert "Hint: return (sum, weight, gradients)" in str(caught.value)
