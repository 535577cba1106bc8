"""The named losses as sums, weights and gradients, by docs/reference/formulas.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from anyaccel.adapter.array_ops import ArrayOps, LossFunction, LossResult, at_least_float32, cast
from anyaccel.adapter.loss_weights import expanded, normalizer, product, target_counts, weight_inputs
from anyaccel.errors import ShapeError, SpecError
from anyaccel.segment import LossTerm
from anyaccel.specs import FROM_OUTPUT


def loss_function(ops: ArrayOps, term: LossTerm) -> LossFunction:
    """The function that computes a loss term.

    Raises:
        SpecError: a named loss without outputs and targets or without a formula here, or a custom loss that the
            framework cannot take.
    """
    if term.loss.own is not None:
        return ops.custom_loss(term.loss)
    if term.loss.name == FROM_OUTPUT:
        return partial(_from_output, ops)
    if term.loss.name not in _FORMULAS:
        raise SpecError(
            f"loss {term.label!r}: there is no formula for {term.loss.name!r} here",
            available=", ".join(_FORMULAS),
            hint="use one of these names",
        )
    if len(term.inputs) < 2:
        raise SpecError(
            f"loss {term.label!r}: {term.loss.name} takes two inputs, outputs and targets, "
            f"and got {len(term.inputs)}: {', '.join(term.inputs)}",
            hint="name these two in inputs=[...]",
        )
    return NamedLoss(ops, term)


class NamedLoss:
    """A named loss of a segment. Checks each combination of shapes once; nothing broadcasts."""

    def __init__(self, ops: ArrayOps, term: LossTerm) -> None:
        self._ops = ops
        self._term = term
        self._settings = term.loss.kwargs
        self._formula = _FORMULAS[term.loss.name]
        self._is_weighted = bool(weight_inputs(term))
        self._checked: set[tuple[Any, ...]] = set()

    def __call__(self, inputs: Sequence[Any]) -> LossResult:
        """The result for (outputs, targets), or (outputs, targets, *weights).

        Raises:
            ShapeError: the shape or dtype of the targets or weights does not match the outputs, or one is complex.
        """
        outputs, targets, *weights = inputs
        signature = tuple((array.shape, array.dtype) for array in inputs)
        if signature not in self._checked:
            self._check(outputs, targets)
            self._checked.add(signature)
        outputs = at_least_float32(self._ops, outputs)
        if self._is_weighted:
            return self._weighted(outputs, targets, weights)
        parts = self._formula(self._ops, outputs, targets, self._settings)
        total, count = self._ops.xp.sum(parts.losses), math.prod(parts.losses.shape)
        return _result(self._ops, total, count, parts.gradients)

    def _weighted(self, outputs: Any, targets: Any, weights: Sequence[Any]) -> LossResult:
        """Each loss times its factor; what has a factor of 0 does not count, whatever it is."""
        ops = self._ops
        counts = target_counts(ops, targets, self._settings, outputs)
        factor = product(ops, [*counts, *weights], outputs)
        weight = normalizer(ops, targets, self._settings, factor, outputs)
        if factor is not None and self._term.loss.name != "cross_entropy":  # such a target may be NaN
            masked = ops.xp.where(expanded(factor, targets.ndim) == 0, 0.0, targets)
            targets = cast(ops, masked, targets.dtype)
        parts = self._formula(ops, outputs, targets, self._settings)
        losses = parts.losses
        if factor is None:
            return LossResult(ops.xp.sum(losses), weight, parts.gradients)
        mean_of = math.prod(losses.shape) // max(math.prod(factor.shape), 1)  # elements that share a factor
        if parts.class_axis is not None:
            factor = expanded(factor, losses.ndim - 1)[_inserted(parts.class_axis)]
        factor = expanded(factor, losses.ndim)

        def times_factor(array: Any) -> Any:
            return cast(ops, ops.xp.where(factor == 0, 0.0, array * factor), array.dtype) / mean_of

        def gradients() -> Sequence[Any]:
            given = [None if gradient is None else times_factor(gradient) for gradient in parts.gradients()]
            return [*given, *[None] * len(weights)]

        return LossResult(ops.xp.sum(times_factor(losses)), weight, gradients)

    def _check(self, outputs: Any, targets: Any) -> None:
        self._refuse_complex(outputs, targets)
        shape = list(outputs.shape)
        matches, expected = shape == list(targets.shape), f"targets of shape {shape}"
        if self._term.loss.name == "cross_entropy":
            positions = list(shape)
            del positions[self._settings.get("class_axis", -1)]
            matches = _are_classes(self._ops, outputs, targets, positions)
            expected = f"class indices of shape {positions}, or floating probabilities of shape {shape}"
        if not matches:
            raise ShapeError(
                f"loss {self._term.label!r} on {self._term.on!r}: {self._term.loss.name} of outputs {_shown(outputs)} "
                f"does not take targets {_shown(targets)}; losses do not broadcast",
                available=expected,
                hint="give the targets that shape",
            )

    def _refuse_complex(self, outputs: Any, targets: Any) -> None:
        for what, array in (("outputs", outputs), ("targets", targets)):
            if self._ops.kind(array) == "complex":
                raise ShapeError(
                    f"loss {self._term.label!r} on {self._term.on!r}: {self._term.loss.name} does not take complex "
                    f"{what} {_shown(array)}",
                    hint="use their absolute values, or real and imaginary parts as two real numbers",
                )


class _Parts(NamedTuple):
    """The loss of each element or position, and their gradients, in the shape of outputs and targets.

    `class_axis` is the axis of `cross_entropy` that is 1 long in `losses`.
    """

    losses: Any
    gradients: Callable[[], Sequence[Any]]
    class_axis: int | None = None


def _are_classes(ops: ArrayOps, outputs: Any, targets: Any, positions: Sequence[int]) -> bool:
    kind = ops.kind(targets)
    if kind == "integer":
        return outputs.ndim > 1 and list(targets.shape) == list(positions)
    return kind == "floating" and tuple(targets.shape) == tuple(outputs.shape)


def _shown(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _result(ops: ArrayOps, total: Any, count: int, gradients: Callable[[], Sequence[Any]]) -> LossResult:
    return LossResult(total, ops.xp.full_like(total, count), gradients)


def _mse(ops: ArrayOps, outputs: Any, targets: Any, settings: Mapping[str, Any]) -> _Parts:
    difference = outputs - cast(ops, targets, outputs.dtype)
    return _Parts(difference * difference, lambda: (2 * difference, -2 * difference))


def _mae(ops: ArrayOps, outputs: Any, targets: Any, settings: Mapping[str, Any]) -> _Parts:
    difference = outputs - cast(ops, targets, outputs.dtype)

    def gradients() -> Sequence[Any]:
        sign = ops.xp.sign(difference)
        return sign, -sign

    return _Parts(ops.xp.abs(difference), gradients)


def _cross_entropy(ops: ArrayOps, logits: Any, targets: Any, settings: Mapping[str, Any]) -> _Parts:
    xp, by_index = ops.xp, targets.ndim < logits.ndim
    axis, smoothing = settings.get("class_axis", -1), settings.get("label_smoothing", 0.0)
    if by_index and "ignore_index" in settings:  # it may be out of range
        targets = cast(ops, xp.where(targets == settings["ignore_index"], 0, targets), targets.dtype)
    probabilities = _one_hot(ops, targets, logits, axis) if by_index else cast(ops, targets, logits.dtype)
    if smoothing:
        probabilities = probabilities * (1 - smoothing) + smoothing / logits.shape[axis]
    if "class_weights" in settings:
        probabilities = probabilities * _along(ops.constant(settings["class_weights"], logits), axis, logits.ndim)
    shifted = logits - xp.max(logits, axis=axis, keepdims=True)
    logs = shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))
    # A class of probability 0 adds nothing, even where its logit is -inf.
    terms = probabilities * cast(ops, xp.where(probabilities == 0, 0.0, logs), logits.dtype)
    losses = -xp.sum(terms, axis=axis, keepdims=True)

    def gradients() -> Sequence[Any]:
        total = xp.sum(probabilities, axis=axis, keepdims=True)
        return xp.exp(logs) * total - probabilities, None if by_index else -logs * (1 - smoothing)

    return _Parts(losses, gradients, axis)


def _inserted(axis: int) -> tuple[Any, ...]:
    """The index that adds an axis of size 1, which is then at `axis`."""
    return (*[slice(None)] * axis, None) if axis >= 0 else (..., None, *[slice(None)] * (-1 - axis))


def _along(values: Any, axis: int, ndim: int) -> Any:
    """Values [n] along one axis of `ndim`."""
    return values[(slice(None), *[None] * (ndim - axis % ndim - 1))]


def _one_hot(ops: ArrayOps, indices: Any, logits: Any, axis: int) -> Any:
    """1 at each index, along a new axis; NaN where an index is out of range, so that the loss is NaN."""
    selected = indices[_inserted(axis)] == _along(ops.arange(logits.shape[axis], indices), axis, logits.ndim)
    in_range = ops.xp.any(selected, axis=axis, keepdims=True)
    return cast(ops, ops.xp.where(in_range, ops.astype(selected, logits.dtype), math.nan), logits.dtype)


def _binary_cross_entropy(ops: ArrayOps, logits: Any, targets: Any, settings: Mapping[str, Any]) -> _Parts:
    xp, probabilities = ops.xp, cast(ops, targets, logits.dtype)
    losses = xp.maximum(logits, 0.0) - logits * probabilities + xp.log1p(xp.exp(-xp.abs(logits)))

    def gradients() -> Sequence[Any]:
        return 0.5 * (1.0 + xp.tanh(0.5 * logits)) - probabilities, -logits

    return _Parts(losses, gradients)


def _from_output(ops: ArrayOps, inputs: Sequence[Any]) -> LossResult:
    """A loss that a model gave: the mean over a batch, or one for each row.

    It is weighted by further inputs, else by the number of rows, which the second input has.
    """
    value, xp = at_least_float32(ops, inputs[0]), ops.xp
    weight = product(ops, inputs[2:], value)
    if weight is None and value.ndim:
        return _result(ops, xp.sum(value), math.prod(value.shape), lambda: (xp.full_like(value, 1.0), None))
    if weight is None:
        rows = int(inputs[1].shape[0])
        return _result(ops, value * rows, rows, lambda: (xp.full_like(value, rows), None))
    if not value.ndim:
        weight = xp.sum(weight)
    elif weight.ndim > value.ndim:
        by_row = xp.reshape(weight, (value.shape[0], math.prod(weight.shape[1:])))
        weight = xp.reshape(xp.sum(by_row, axis=-1, keepdims=True), tuple(value.shape))
    counted = cast(ops, xp.where(weight == 0, 0.0, value * weight), value.dtype)
    return LossResult(xp.sum(counted), xp.sum(weight), lambda: (weight, *[None] * (len(inputs) - 1)))


_FORMULAS: dict[str, Callable[[ArrayOps, Any, Any, Mapping[str, Any]], _Parts]] = {
    "mse": _mse,
    "mae": _mae,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
}
