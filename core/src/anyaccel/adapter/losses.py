"""The named losses as sums, weights and gradients, by docs/reference/formulas.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, LossFunction, LossResult, at_least_float32, cast
from anyaccel.errors import ShapeError, SpecError
from anyaccel.segment import LossTerm
from anyaccel.specs import FROM_OUTPUT


def loss_function(ops: ArrayOps, term: LossTerm) -> LossFunction:
    """The function that computes a loss term.

    Raises:
        SpecError: a named loss without exactly two inputs, or a custom loss that the framework cannot take.
    """
    if term.loss.own is not None:
        return ops.custom_loss(term.loss)
    if term.loss.name == FROM_OUTPUT:
        return partial(_from_output, ops)
    if len(term.inputs) != 2:
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
        self._formula = _FORMULAS[term.loss.name]
        self._checked: set[tuple[Any, ...]] = set()

    def __call__(self, inputs: Sequence[Any]) -> LossResult:
        """The result for (outputs, targets).

        Raises:
            ShapeError: the shape or dtype of the targets does not match the outputs, or one of them is complex.
        """
        outputs, targets = inputs
        signature = outputs.shape, outputs.dtype, targets.shape, targets.dtype
        if signature not in self._checked:
            self._check(outputs, targets)
            self._checked.add(signature)
        return self._formula(self._ops, at_least_float32(self._ops, outputs), targets)

    def _check(self, outputs: Any, targets: Any) -> None:
        self._refuse_complex(outputs, targets)
        shape = list(outputs.shape)
        matches, expected = shape == list(targets.shape), f"targets of shape {shape}"
        if self._term.loss.name == "cross_entropy":
            matches = _are_classes(self._ops, outputs, targets)
            expected = f"class indices of shape {shape[:-1]}, or floating probabilities of shape {shape}"
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


def _are_classes(ops: ArrayOps, outputs: Any, targets: Any) -> bool:
    kind = ops.kind(targets)
    if kind == "integer":
        return outputs.ndim > 1 and tuple(targets.shape) == tuple(outputs.shape[:-1])
    return kind == "floating" and tuple(targets.shape) == tuple(outputs.shape)


def _shown(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _result(ops: ArrayOps, total: Any, count: int, gradients: Callable[[], Sequence[Any]]) -> LossResult:
    return LossResult(total, ops.xp.full_like(total, count), gradients)


def _mse(ops: ArrayOps, outputs: Any, targets: Any) -> LossResult:
    difference = outputs - cast(ops, targets, outputs.dtype)
    total = ops.xp.sum(difference * difference)
    return _result(ops, total, math.prod(outputs.shape), lambda: (2 * difference, -2 * difference))


def _mae(ops: ArrayOps, outputs: Any, targets: Any) -> LossResult:
    difference = outputs - cast(ops, targets, outputs.dtype)

    def gradients() -> Sequence[Any]:
        sign = ops.xp.sign(difference)
        return sign, -sign

    return _result(ops, ops.xp.sum(ops.xp.abs(difference)), math.prod(outputs.shape), gradients)


def _cross_entropy(ops: ArrayOps, logits: Any, targets: Any) -> LossResult:
    xp, by_index = ops.xp, targets.ndim < logits.ndim
    probabilities = _one_hot(ops, targets, logits) if by_index else cast(ops, targets, logits.dtype)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    logs = shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
    # A class of probability 0 adds nothing, even where its logit is -inf.
    total = -xp.sum(probabilities * cast(ops, xp.where(probabilities == 0, 0.0, logs), logits.dtype))

    def gradients() -> Sequence[Any]:
        return xp.exp(logs) * xp.sum(probabilities, axis=-1, keepdims=True) - probabilities, None if by_index else -logs

    return _result(ops, total, math.prod(logits.shape[:-1]), gradients)


def _one_hot(ops: ArrayOps, indices: Any, logits: Any) -> Any:
    """1 at each index, along a new last axis; NaN where an index is out of range, so that the loss is NaN."""
    selected = indices[..., None] == ops.arange(logits.shape[-1], indices)
    in_range = ops.xp.any(selected, axis=-1, keepdims=True)
    return cast(ops, ops.xp.where(in_range, ops.astype(selected, logits.dtype), math.nan), logits.dtype)


def _binary_cross_entropy(ops: ArrayOps, logits: Any, targets: Any) -> LossResult:
    xp, probabilities = ops.xp, cast(ops, targets, logits.dtype)
    total = xp.sum(xp.maximum(logits, 0.0) - logits * probabilities + xp.log1p(xp.exp(-xp.abs(logits))))

    def gradients() -> Sequence[Any]:
        return 0.5 * (1.0 + xp.tanh(0.5 * logits)) - probabilities, -logits

    return _result(ops, total, math.prod(logits.shape), gradients)


def _from_output(ops: ArrayOps, inputs: Sequence[Any]) -> LossResult:
    """A loss that a model gave: the mean over as many rows as the second input has, or one for each row."""
    value = at_least_float32(ops, inputs[0])
    if value.ndim:
        return _result(ops, ops.xp.sum(value), math.prod(value.shape), lambda: (ops.xp.full_like(value, 1.0), None))
    rows = int(inputs[1].shape[0])
    return _result(ops, value * rows, rows, lambda: (ops.xp.full_like(value, rows), None))


_FORMULAS: dict[str, Callable[[ArrayOps, Any, Any], LossResult]] = {
    "mse": _mse,
    "mae": _mae,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
}
