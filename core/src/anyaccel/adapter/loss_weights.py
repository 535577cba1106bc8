"""What counts in a named loss: weights of samples and positions, masks, class weights and targets that are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.formulas import cast
from anyaccel.segment import LossTerm


def weight_inputs(term: LossTerm) -> tuple[str, ...]:
    """Names of the inputs on which the weight of a named loss depends; none where it only counts elements or rows."""
    if term.loss.own is not None:
        return ()
    by_target = "ignore_index" in term.loss.kwargs or "class_weights" in term.loss.kwargs
    return term.inputs[1 if by_target else 2 :]


def target_counts(ops: ArrayOps, targets: Any, settings: Mapping[str, Any], like: Any) -> list[Any]:
    """1 for each target that counts and 0 for one that is ignored, in the dtype of `like`; nothing where all count."""
    if "ignore_index" not in settings:
        return []
    return [1.0 - ops.astype(targets == settings["ignore_index"], like.dtype)]


def normalizer(ops: ArrayOps, targets: Any, settings: Mapping[str, Any], factor: Any | None, like: Any) -> Any:
    """The sum of the weights of what counts: `factor`, times the weight of each target's class where there are some."""
    if "class_weights" not in settings:
        return ops.xp.sum(factor)
    selected = targets[..., None] == ops.arange(len(settings["class_weights"]), targets)
    weights = ops.astype(selected, like.dtype) * ops.constant(settings["class_weights"], like)
    return ops.xp.sum(weights if factor is None else weights * expanded(factor, weights.ndim))


def product(ops: ArrayOps, factors: Sequence[Any], like: Any) -> Any | None:
    """The product of factors in the dtype of `like`, each of the first axes of the longest; None of none."""
    if not factors:
        return None
    ndim = max(factor.ndim for factor in factors)
    whole = [expanded(cast(ops, factor, like.dtype), ndim) for factor in sorted(factors, key=lambda it: -it.ndim)]
    result = whole[0]
    for factor in whole[1:]:
        result = result * factor
    return result


def expanded(factor: Any, ndim: int) -> Any:
    """A factor with axes of size 1 after its own."""
    return factor if factor.ndim == ndim else factor[(..., *[None] * (ndim - factor.ndim))]


def total_weight(ops: ArrayOps, term: LossTerm, inputs: Sequence[Any], dtype: Any = None) -> Any:
    """The weight of a loss from the values of its `weight_inputs` alone, a scalar on their device.

    It has this dtype; else that of the first column of weights, or float32 where there is none.
    """
    settings, factors = term.loss.kwargs, list(inputs[len(inputs) - len(term.inputs[2:]) :])
    if dtype is None:
        dtype = factors[0].dtype if factors else ops.xp.float32
    like = cast(ops, factors[0] if factors else inputs[0], dtype)
    counts = target_counts(ops, inputs[0], settings, like) if len(inputs) > len(factors) else []
    return normalizer(ops, inputs[0], settings, product(ops, [*counts, *factors], like), like)


def divisor(ops: ArrayOps, term: LossTerm, weight: Any) -> Any:
    """The weight of a loss to divide by: 1 in place of 0, so that the loss and gradients are 0 where nothing counts."""
    return cast(ops, ops.xp.where(weight == 0, 1.0, weight), weight.dtype) if weight_inputs(term) else weight
