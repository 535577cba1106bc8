"""Tests of losses that are weighted: by samples, positions and classes, and by targets that do not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Program
from anyaccel.segment import LossTerm, Segment, TensorSpec
from anyaccel.specs import Loss
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import LOSS, NODE, Array, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
RANDOM = np.random.default_rng(2)
WEIGHTS: dict[str, Array] = {
    "rows": np.array([1, 0.5, 0, 2, 1, 3], "float32"),
    "elements": (RANDOM.random((6, 3)) < 0.6).astype("float32") * RANDOM.uniform(0.5, 2, (6, 3)).astype("float32"),
    "positions": np.array([[1, 0], [2, 1], [0, 0], [1, 1], [0.5, 3], [1, 2]], "float32"),
    "none": np.zeros(6, "float32"),
}


@dataclass(frozen=True)
class Case:
    """A named loss, its settings, and the names of its WEIGHTS."""

    loss: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[str, ...] = ()

    def formula(self, outputs: Array, targets: Array) -> tuple[float, float]:
        """Return its sum and weight by docs/reference/formulas.md."""
        weights = [WEIGHTS[name] for name in self.weights]
        return reference_formulas.weighted_loss(self.loss, outputs, targets, self.settings, weights)


CASES = {
    "class weights": Case("cross_entropy", {"class_weights": (0.5, 2.0, 1.0)}),
    "ignored targets": Case("cross_entropy", {"ignore_index": 2}),
    "smoothed classes of weighted samples": Case("cross_entropy", {"label_smoothing": 0.1}, ("rows",)),
    "all settings": Case(
        "cross_entropy", {"ignore_index": 1, "class_weights": (0.5, 2.0, 1.0), "label_smoothing": 0.2}, ("rows",)
    ),
    "weighted samples": Case("mse", {}, ("rows",)),
    "weighted elements": Case("mae", {}, ("elements",)),
    "both weights": Case("binary_cross_entropy", {}, ("rows", "elements")),
}
POSITIONS = {
    "classes last": Case("cross_entropy", {}, ("positions",)),
    "classes first": Case("cross_entropy", {"class_axis": 1}, ("rows", "positions")),
}


class WeightedLossTests(Subject):
    """Named losses whose elements do not all count alike."""

    @pytest.mark.parametrize("name", CASES)
    def test_a_weighted_loss_follows_its_formula(self, harness: Harness, model: Make, name: str) -> None:
        """Sum and weight equal those of docs/reference/formulas.md, in evaluation and in training."""
        program, case = built(harness, model, CASES[name]), CASES[name]
        inputs = inputs_of(harness, case)
        (y,), evaluated = program.forward(inputs)
        _, trained, _ = program.forward_pullback(inputs)
        expected = np.array(case.formula(harness.to_numpy(y), target_of(case)))
        for losses in (evaluated, trained):
            assert_close(np.array([float(harness.to_numpy(part)) for part in losses[LOSS]]), expected)

    @pytest.mark.parametrize("name", CASES)
    def test_gradients_of_a_weighted_loss_are_those_of_its_mean(self, harness: Harness, model: Make, name: str) -> None:
        """They equal the pullback of the derivative of sum / weight, taken in float64."""
        case = CASES[name]
        program = built(harness, model, case)
        (y,), _, pullback = program.forward_pullback(inputs_of(harness, case))
        pullback([None])
        actual = harness.gradients(program)
        program.zero_grad()
        cotangent = derivative(case, harness.to_numpy(y), target_of(case)).astype(y_dtype(harness, y))
        pullback = program.forward_pullback(inputs_of(harness, case), {LOSS: 0.0})[2]
        pullback([harness.put(cotangent)])
        for mine, expected in zip(actual, harness.gradients(program), strict=True):
            assert_close(mine, expected, 2e-5, 2e-6)

    @pytest.mark.parametrize("name", POSITIONS)
    def test_positions_of_a_sample_are_weighted(self, harness: Harness, parameter_free_model: Make, name: str) -> None:
        """Classes may be the last axis, or another, and weights are of samples or of each position."""
        case = POSITIONS[name]
        segment, inputs = positions(harness, parameter_free_model, case)
        program = harness.compute.build(segment)
        (y,), losses, pullback = program.forward_pullback(inputs)
        target = harness.to_numpy(inputs[1])
        expected = np.array(case.formula(harness.to_numpy(y), target))
        assert_close(np.array([float(harness.to_numpy(part)) for part in losses[LOSS]]), expected)
        (actual,) = pullback([None])
        cotangent = derivative(case, harness.to_numpy(y), target).astype("float32")
        (pulled,) = program.forward_pullback(inputs, {LOSS: 0.0})[2]([harness.put(cotangent)])
        assert_close(harness.to_numpy(actual), harness.to_numpy(pulled), 2e-5, 2e-6)

    def test_what_weighs_nothing_counts_nothing_whatever_it_is(self, harness: Harness, model: Make) -> None:
        """An unknown target, NaN, is ignored if its weight is 0."""
        case = CASES["weighted samples"]
        program = built(harness, model, case)
        target = target_of(case).copy()
        target[WEIGHTS["rows"] == 0] = np.nan
        results = []
        for values in (target_of(case), target):
            losses = harness.forward_backward(program, inputs_of(harness, case, values))
            results.append([np.array(harness.mean_loss(losses[LOSS])), *harness.gradients(program)])
            program.zero_grad()
        for finite, unknown in zip(*results, strict=True):
            assert_close(unknown, finite)

    def test_a_loss_of_no_weight_is_zero(self, harness: Harness, model: Make) -> None:
        """If nothing in a batch counts, the gradients are 0, not NaN."""
        case = Case("mse", {}, ("none",))
        program = built(harness, model, case)
        losses = harness.forward_backward(program, inputs_of(harness, case))
        assert [float(harness.to_numpy(part)) for part in losses[LOSS]] == [0.0, 0.0]
        for gradient in harness.gradients(program):
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient))

    def test_loss_weights_are_those_of_the_losses(self, harness: Harness, model: Make) -> None:
        """The weights scale the micro-batches of a batch: each is the weight of the whole batch, 1 if that is 0."""
        for case, expected in ((CASES["all settings"], None), (Case("mse", {}, ("none",)), 1.0)):
            program = built(harness, model, case)
            inputs = inputs_of(harness, case)
            (y,), _ = program.forward(inputs)
            weight = case.formula(harness.to_numpy(y), target_of(case))[1] if expected is None else expected
            assert_close(float(harness.to_numpy(program.loss_weights(inputs)[LOSS])), weight)


def built(harness: Harness, make: Make, case: Case) -> Program:
    """Return a program of one model and the loss of the case; a skip without the capability."""
    if not harness.compute.weighs_losses:
        pytest.skip("weighs_losses is not declared")
    segment = harness.segment(harness.prepare_model(make), loss=case.loss)
    return harness.compute.build(with_loss(harness, segment, case))


def with_loss(harness: Harness, segment: Segment, case: Case) -> Segment:
    """Return the segment with the loss of the case, whose weights are more inputs."""
    weights = {name: (TensorSpec(WEIGHTS[name].shape[1:], "float32"), harness.device) for name in case.weights}
    loss = Loss(case.loss, **case.settings)
    term = LossTerm(LOSS, NODE, loss, ("y", "t", *case.weights), harness.device)
    return replace(segment, inputs={**segment.inputs, **weights}, losses=(term,))


def positions(harness: Harness, make: Make, case: Case) -> tuple[Segment, list[Any]]:
    """Return a segment of a model without parameters that has two positions in a sample, of three classes; and its
    inputs.
    """
    if not harness.compute.weighs_losses:
        pytest.skip("weighs_losses is not declared")
    spec = TensorSpec((3, 2) if case.settings else (2, 3), "float32")
    model = harness.compute.wrap(make())
    harness.compute.infer(model, [spec], 0)
    operation = harness.operation(NODE, harness.backend.place(model, harness.device), ("x",), ("y",))
    target = np.random.default_rng(4).integers(0, 3, (6, 2)).astype(harness.index_dtype)
    inputs = {"x": spec, "t": TensorSpec((2,), harness.index_dtype)}
    segment = Segment(
        label="segment",
        operations=(operation,),
        inputs={name: (tensor, harness.device) for name, tensor in inputs.items()},
        outputs=("y",),
        needs_pullback=("x",),
    )
    x = np.random.default_rng(3).normal(size=(6, *spec.shape)).astype("float32")
    return with_loss(harness, segment, case), [harness.put(x), harness.put(target), *weights_of(harness, case)]


def inputs_of(harness: Harness, case: Case, target: Array | None = None) -> list[Any]:
    """Return the inputs of a program of `built`."""
    target = target_of(case) if target is None else target
    target = target.astype(harness.index_dtype) if target.dtype.kind == "i" else target
    return [harness.put(BATCH.x), harness.put(target), *weights_of(harness, case)]


def weights_of(harness: Harness, case: Case) -> list[Any]:
    """Return the weights of the case, on the device."""
    return [harness.put(WEIGHTS[name]) for name in case.weights]


def target_of(case: Case) -> Array:
    """Return the targets of the case."""
    return BATCH.targets[case.loss]


def y_dtype(harness: Harness, y: Any) -> Any:
    """Return the dtype of outputs."""
    return harness.to_numpy(y).dtype


def derivative(case: Case, outputs: Array, targets: Array) -> Array:
    """The derivative of the case's mean by each output, by central differences in float64."""
    result, step = np.zeros(outputs.shape), 1e-6
    for index in np.ndindex(*outputs.shape):
        shift = np.zeros(outputs.shape)
        shift[index] = step
        upper, lower = (mean(case.formula(outputs + sign * shift, targets)) for sign in (1, -1))
        result[index] = (upper - lower) / (2 * step)
    return result


def mean(parts: Sequence[float]) -> float:
    """Sum over weight."""
    return parts[0] / parts[1]
