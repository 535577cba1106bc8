"""The named losses as sums, weights and gradients, by docs/reference/formulas.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, LossFunction, LossResult, at_least_float32
from anyaccel.errors import ShapeError, SpecError
from anyaccel.formulas import LOSSES, LossParts, Settings, cast, with_axis
from anyaccel.segment import LossTerm
from anyaccel.specs import FROM_OUTPUT, Loss, takes_targets_first


def weight_inputs(term: LossTerm) -> tuple[str, ...]:
    """Return the names of the inputs that determine the weight of a named loss; empty if it counts elements or rows."""
    if term.loss.own is not None:
        return ()
    by_target = "ignore_index" in term.loss.kwargs or "class_weights" in term.loss.kwargs
    return term.inputs[1 if by_target else 2 :]


def target_counts(ops: ArrayOps, targets: Any, settings: Mapping[str, Any], like: Any) -> list[Any]:
    """Return 1 for each target that counts and 0 for an ignored one, in the dtype of `like`; nothing if all count."""
    if "ignore_index" not in settings:
        return []
    return [1.0 - ops.astype(targets == settings["ignore_index"], like.dtype)]


def normalizer(ops: ArrayOps, targets: Any, settings: Mapping[str, Any], factor: Any | None, like: Any) -> Any:
    """Return the sum of the weights that count: `factor`, times the weight of each target's class if set."""
    if "class_weights" not in settings:
        return ops.xp.sum(factor)
    selected = targets[..., None] == ops.arange(len(settings["class_weights"]), targets)
    weights = ops.astype(selected, like.dtype) * ops.constant(settings["class_weights"], like)
    return ops.xp.sum(weights if factor is None else weights * expanded(factor, weights.ndim))


def product(ops: ArrayOps, factors: Sequence[Any], like: Any) -> Any | None:
    """Return the product of factors in the dtype of `like`, each with the first axes of the longest; None if empty."""
    if not factors:
        return None
    ndim = max(factor.ndim for factor in factors)
    whole = [expanded(cast(ops, factor, like.dtype), ndim) for factor in sorted(factors, key=lambda it: -it.ndim)]
    result = whole[0]
    for factor in whole[1:]:
        result = result * factor
    return result


def expanded(factor: Any, ndim: int) -> Any:
    """Append axes of size 1 to a factor."""
    return factor if factor.ndim == ndim else factor[(..., *[None] * (ndim - factor.ndim))]


def total_weight(ops: ArrayOps, term: LossTerm, inputs: Sequence[Any], dtype: Any = None) -> Any:
    """Return the weight of a loss from the values of its `weight_inputs` alone, a scalar on their device.

    It has this dtype; by default that of the first column of weights, or float32 if there is none.
    """
    settings, factors = term.loss.kwargs, list(inputs[len(inputs) - len(term.inputs[2:]) :])
    if dtype is None:
        dtype = factors[0].dtype if factors else ops.xp.float32
    like = cast(ops, factors[0] if factors else inputs[0], dtype)
    counts = target_counts(ops, inputs[0], settings, like) if len(inputs) > len(factors) else []
    return normalizer(ops, inputs[0], settings, product(ops, [*counts, *factors], like), like)


def divisor(ops: ArrayOps, term: LossTerm, weight: Any) -> Any:
    """Return the weight of a loss as a divisor: 1 instead of 0, so that loss and gradients are 0 if nothing counts."""
    return cast(ops, ops.xp.where(weight == 0, 1.0, weight), weight.dtype) if weight_inputs(term) else weight


def loss_function(
    ops: ArrayOps, term: LossTerm, parts: Callable[[ArrayOps, Any, Any, Settings], LossParts] | None = None
) -> LossFunction:
    """Return the function that computes a loss term.

    `parts` replaces `LossRule.parts`: a function of the framework for a named loss.

    Raises:
        SpecError: a named loss without outputs and targets, or a custom loss that the framework does not support.
    """
    if term.loss.own is not None:
        return ops.custom_loss(term.loss)
    if term.loss.name == FROM_OUTPUT:
        return partial(_from_output, ops)
    if len(term.inputs) < 2:
        raise SpecError(
            f"loss {term.label!r}: {term.loss.name} takes two inputs, outputs and "
            f"targets, but got {len(term.inputs)}: {', '.join(term.inputs)}",
            hint="name these two in inputs=[...]",
        )
    return NamedLoss(ops, term, parts or LOSSES[term.loss.name].parts)


class NamedLoss:
    """A named loss of a segment. It checks each combination of shapes once; nothing broadcasts."""

    def __init__(
        self, ops: ArrayOps, term: LossTerm, parts: Callable[[ArrayOps, Any, Any, Settings], LossParts]
    ) -> None:
        self._ops = ops
        self._term = term
        self._settings = term.loss.kwargs
        self._parts, self._takes_classes = parts, LOSSES[term.loss.name].takes_classes
        self._is_weighted = bool(weight_inputs(term))
        self._checked: set[tuple[Any, ...]] = set()

    def __call__(self, inputs: Sequence[Any]) -> LossResult:
        """Compute the result for (outputs, targets), or (outputs, targets, *weights).

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
        parts = self._parts(self._ops, outputs, targets, self._settings)
        total, count = self._ops.xp.sum(parts.losses), math.prod(parts.losses.shape)
        return _result(self._ops, total, count, parts.gradients)

    def _weighted(self, outputs: Any, targets: Any, weights: Sequence[Any]) -> LossResult:
        """Return each loss times its factor; a value with a factor of 0 does not count, even if it is NaN."""
        ops = self._ops
        counts = target_counts(ops, targets, self._settings, outputs)
        factor = product(ops, [*counts, *weights], outputs)
        weight = normalizer(ops, targets, self._settings, factor, outputs)
        if factor is not None and not self._takes_classes:  # such a target may be NaN
            masked = ops.xp.where(expanded(factor, targets.ndim) == 0, 0.0, targets)
            targets = cast(ops, masked, targets.dtype)
        parts = self._parts(ops, outputs, targets, self._settings)
        losses = parts.losses
        if factor is None:
            return LossResult(ops.xp.sum(losses), weight, parts.gradients)
        mean_of = math.prod(losses.shape) // max(math.prod(factor.shape), 1)  # elements that share a factor
        if parts.class_axis is not None:
            factor = expanded(factor, losses.ndim - 1)[with_axis(parts.class_axis)]
        factor = expanded(factor, losses.ndim)

        def times_factor(array: Any) -> Any:
            return cast(ops, ops.xp.where(factor == 0, 0.0, array * factor), array.dtype) / mean_of

        def gradients() -> Sequence[Any]:
            scaled = [None if gradient is None else times_factor(gradient) for gradient in parts.gradients()]
            return [*scaled, *[None] * len(weights)]

        return LossResult(ops.xp.sum(times_factor(losses)), weight, gradients)

    def _check(self, outputs: Any, targets: Any) -> None:
        for what, array in (("outputs", outputs), ("targets", targets)):
            if self._ops.kind(array) == "complex":
                raise ShapeError(
                    f"loss {self._term.label!r} on {self._term.on!r}: {self._term.loss.name} does not take complex "
                    f"{what} {_shown(array)}",
                    hint="use their absolute values, or real and imaginary parts as two real numbers",
                )
        shape = list(outputs.shape)
        matches, expected = shape == list(targets.shape), f"targets of shape {shape}"
        if self._takes_classes:
            positions = list(shape)
            del positions[self._settings.get("class_axis", -1)]
            kind = self._ops.kind(targets)
            matches = matches and kind == "floating"
            if kind == "integer":
                matches = outputs.ndim > 1 and list(targets.shape) == positions
            expected = f"class indices of shape {positions}, or floating probabilities of shape {shape}"
        if not matches:
            raise ShapeError(
                f"loss {self._term.label!r} on {self._term.on!r}: {self._term.loss.name} of outputs {_shown(outputs)} "
                f"does not take targets {_shown(targets)}; losses do not broadcast",
                available=expected,
                hint="change the shape of the targets",
            )


def _shown(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _result(ops: ArrayOps, total: Any, count: int, gradients: Callable[[], Sequence[Any]]) -> LossResult:
    return LossResult(total, ops.xp.full_like(total, count), gradients)


def _from_output(ops: ArrayOps, inputs: Sequence[Any]) -> LossResult:
    """Return a loss that a model gave: the mean over a batch, or one for each row.

    It is weighted by more inputs, otherwise by the number of rows, which the second input has.
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


# -- A loss that is not a named one: the user's own function, object or class ------------------------------------------


def make_loss(loss: Loss) -> Callable[..., Any]:
    """Return the loss's own object; a class is called with `loss_kwargs`.

    Raises:
        SpecError: the class does not take them, or it returns an object that is not callable.
    """
    if not isinstance(loss.own, type):
        custom_loss: Callable[..., Any] = loss.own
        return custom_loss
    try:
        made = loss.own(**loss.kwargs)
    except (TypeError, ValueError) as error:
        raise SpecError(f"cannot create the loss {loss.name!r}: {error}", hint="correct loss_kwargs") from error
    if not callable(made):
        raise SpecError(
            f"the loss {loss.name!r} is a class, but its objects cannot be called",
            cause="a loss is called with (outputs, targets)",
            hint="pass a function, a class with __call__, or a name such as 'mse'",
        )
    function: Callable[..., Any] = made
    return function


def outputs_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a custom loss as a function of (outputs, targets, ...), if its parameters are `y_true`, then `y_pred`."""
    if not takes_targets_first(function):
        return function
    return lambda outputs, targets, *others: function(targets, outputs, *others)
