"""Loss recipes made into torch functions: a mean for whole steps, or an exact sum with its weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.errors import ShapeError, SpecError
from anyaccel.segment import LossTerm
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line, refuse_mixing
from anyaccel_torch.forward_call import comparing

Values = Sequence[Any]
Result = TypeVar("Result")
Fit = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]]

# torch leaves out targets equal to this; a number that no class has, so that every sample counts.
_NO_CLASS = -(2**62)


class BoundLoss:
    """A loss that knows where its inputs are among the values of a segment.

    `mean(values)` is a scalar on the loss's device; `parts(values)` are its sum and weight, both there too.
    `module` is the loss itself where it is a module, which may have parameters. `slots` are the numbers of its inputs.
    An operation over several devices is told with the loss's name.
    """

    __slots__ = ("label", "mean", "module", "parts", "slots", "weight")

    def __init__(
        self,
        term: LossTerm,
        slots: Sequence[int],
        mean: Callable[[Values], Tensor],
        parts: Callable[[Values], tuple[Tensor, Tensor]],
        module: nn.Module | None = None,
    ) -> None:
        self.label, self.weight, self.module, self.slots = term.label, term.weight, module, tuple(slots)
        self.mean, self.parts = _naming(mean, term, slots), _naming(parts, term, slots)


def _naming(function: Callable[[Values], Result], term: LossTerm, slots: Sequence[int]) -> Callable[[Values], Result]:
    def call(values: Values) -> Result:
        try:
            return function(values)
        except RuntimeError as error:
            inputs = {name: values[slot] for name, slot in zip(term.inputs, slots, strict=True)}
            refuse_mixing(error, f"loss {term.label!r} of node {term.on!r} on {term.device}", inputs)
            raise

    return call


def bind(term: LossTerm, slots: Sequence[int], device: torch.device) -> BoundLoss:
    """The loss of a term, reading its inputs from `slots`; a module goes to `device`.

    Raises:
        SpecError: a named loss without two inputs, or a class that cannot be made.
        (when called) ShapeError: shapes that a named loss would have to broadcast.
        (when called) SpecError: an own loss that gives no scalar.
    """
    if term.loss.own is not None:
        return _bind_own(term, slots, device)
    if len(slots) != 2:
        raise SpecError(
            f"loss {term.label!r}: {term.loss.name} was given {len(slots)} inputs ({', '.join(term.inputs)})",
            available="it takes outputs and targets",
            hint="give two inputs, such as ['outputs', 'targets']",
        )
    function, fit, weigh = _NAMED[term.loss.name]
    label, (first, second) = f"{term.label!r} ({term.loss.name})", slots

    def mean(values: Values) -> Tensor:
        outputs, targets = fit(label, values[first], values[second])
        return function(outputs, targets)

    def parts(values: Values) -> tuple[Tensor, Tensor]:
        outputs, targets = fit(label, _wide(values[first]), values[second])
        total = function(outputs, targets, reduction="sum")
        return total, _weight(weigh(outputs), total)

    return BoundLoss(term, slots, mean, parts)


# -- named -----------------------------------------------------------------------------------------------------------


def _elementwise(label: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if outputs.shape != targets.shape:
        raise _misfit(label, outputs, targets, "they must have the same shape")
    return outputs, targets if targets.dtype is outputs.dtype else targets.to(outputs.dtype)


def _classes(label: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [samples, classes], and class indices int64 [samples] or probabilities [samples, classes]."""
    if targets.is_floating_point():
        if outputs.shape != targets.shape or outputs.ndim < 2:
            raise _misfit(label, outputs, targets, "probabilities have the shape of the logits [.., classes]")
        return outputs.flatten(0, -2), targets.to(outputs.dtype).flatten(0, -2)
    if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
        rule = "class indices have the shape of the logits [.., classes] without the last axis"
        raise _misfit(label, outputs, targets, rule)
    return outputs.flatten(0, -2), targets.long().flatten()


def _cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(outputs, targets, reduction=reduction, ignore_index=_NO_CLASS)


_NAMED: dict[str, tuple[Callable[..., Tensor], Fit, Callable[[Tensor], int]]] = {
    "mse": (F.mse_loss, _elementwise, Tensor.numel),
    "mae": (F.l1_loss, _elementwise, Tensor.numel),
    "cross_entropy": (_cross_entropy, _classes, len),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, _elementwise, Tensor.numel),
}


def _wide(outputs: Tensor) -> Tensor:
    """A sum over a batch soon leaves the range of 16 bits."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def _weight(count: int, total: Tensor) -> Tensor:
    dtype = torch.float64 if total.dtype is torch.float64 else torch.float32
    return torch.full((), count, dtype=dtype, device=total.device)  # a fill, where torch.tensor would be a transfer


def _misfit(label: str, outputs: Tensor, targets: Tensor, rule: str) -> ShapeError:
    return ShapeError(
        f"loss {label}: outputs {list(outputs.shape)} and targets {list(targets.shape)} do not fit, batch first",
        available=f"{rule}; nothing is broadcast",
        hint="give the model an output_shape, or the data a column, of the other's shape",
    )


# -- own -------------------------------------------------------------------------------------------------------------


# Losses of torch's own that broadcast with no more than a warning; what others compare is theirs to say.
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
_ELEMENTWISE_FUNCTIONS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)


def _bind_own(term: LossTerm, slots: Sequence[int], device: torch.device) -> BoundLoss:
    own = _made(term)
    if keras.is_loss(own):
        own = comparing(own, device)
    module = own.to(device) if isinstance(own, nn.Module) else None
    elementwise = len(slots) == 2 and (
        isinstance(own, _ELEMENTWISE) or any(own is one for one in _ELEMENTWISE_FUNCTIONS)
    )

    def mean(values: Values) -> Tensor:
        given = [values[slot] for slot in slots]
        if elementwise and given[0].shape != given[1].shape:
            raise _misfit(f"{term.label!r} ({term.loss.name})", given[0], given[1], "they must have the same shape")
        found = own(*given)
        if not isinstance(found, Tensor) or found.ndim:
            shown = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            remedy = "let it give the mean over the batch, such as with reduction='mean'"
            asked = f"loss {term.label!r}: {term.loss.name} gives {shown}"
            raise SpecError(asked, available="a loss must give a scalar tensor", hint=remedy)
        return found

    def parts(values: Values) -> tuple[Tensor, Tensor]:
        found = mean(values)
        count = len(values[slots[0]])
        return _wide(found) * count, _weight(count, found)

    return BoundLoss(term, slots, mean, parts, module)


def _made(term: LossTerm) -> Any:
    own = term.loss.own
    if not isinstance(own, type):
        return own
    try:
        made = own(**term.loss.kwargs)
    except (TypeError, ValueError) as error:
        asked = f"loss {term.label!r}: {term.loss.name} cannot be made: {first_line(error)}"
        there = f"loss_kwargs: {', '.join(term.loss.kwargs) or 'none'}"
        raise SpecError(asked, available=there, hint="correct loss_kwargs, or give an instance") from error
    if not callable(made):
        asked = f"loss {term.label!r}: a {term.loss.name} cannot be called"
        raise SpecError(asked, hint="give a class such as torch.nn.MSELoss")
    return made
