"""Loss specs as torch functions: the mean for whole training steps, or the exact sum and its weight."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.adapter.losses import loss_function, outputs_first, total_weight, weight_inputs
from anyaccel.errors import ShapeError, SpecError
from anyaccel.formulas import LossParts, with_axis
from anyaccel.segment import LossTerm
from anyaccel.specs import FROM_OUTPUT, Loss, LossTargets, takes_targets_first
from anyaccel_torch import array_functions, keras
from anyaccel_torch.error_translation import first_line, raise_if_device_mismatch
from anyaccel_torch.forward_call import keras_loss

Values = Sequence[Any]
Result = TypeVar("Result")
Prepare = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor]]


class BoundLoss:
    """A loss that reads its inputs from the values of a segment.

    Attributes:
        label, weight: Label and weight of its term.
        slots: Indices of its inputs among the values.
        module: The loss itself if it is a module, which may have parameters.
        mean: Values -> the mean, a scalar on the loss's device.
        sum_and_weight: Values -> the sum and its weight, two scalars there. Both raise `DeviceMismatchError` with the
            loss's name for inputs on several devices.
        total_weight: Values -> the weight alone, from columns; None where it is the number of elements or rows.
        weight_slots: Indices of these columns.
    """

    __slots__ = ("label", "mean", "module", "slots", "sum_and_weight", "total_weight", "weight", "weight_slots")

    def __init__(
        self,
        term: LossTerm,
        slots: Sequence[int],
        mean: Callable[[Values], Tensor],
        sum_and_weight: Callable[[Values], tuple[Tensor, Tensor]],
        module: nn.Module | None = None,
        total_weight: Callable[[Values], Tensor] | None = None,
    ) -> None:
        self.total_weight = total_weight
        self.weight_slots = tuple(slots)[len(slots) - len(weight_inputs(term)) :]
        self.label, self.weight, self.module, self.slots = term.label, term.weight, module, tuple(slots)
        self.mean, self.sum_and_weight = _named(mean, term, slots), _named(sum_and_weight, term, slots)

    def factor(self, weight: Tensor, scale: Mapping[str, Any] | None, share: float = 1.0) -> Any:
        """Return the factor of its sum in the total loss: that of `scale`, otherwise so that its mean counts by its
        weight.

        `share` is the part of a step that this is; that of `scale` has it already.
        """
        if scale is not None and self.label in scale:
            return scale[self.label]
        return self.weight * share / (weight if self.total_weight is None else divisor(weight))


def _named(function: Callable[[Values], Result], term: LossTerm, slots: Sequence[int]) -> Callable[[Values], Result]:
    def call(values: Values) -> Result:
        try:
            return function(values)
        except RuntimeError as error:
            inputs = {name: values[slot] for name, slot in zip(term.inputs, slots, strict=True)}
            raise_if_device_mismatch(error, f"loss {term.label!r} of node {term.on!r} on {term.device}", inputs)
            raise

    return call


def bind(
    term: LossTerm, slots: Sequence[int], device: torch.device, weight_dtype: torch.dtype = torch.float32
) -> BoundLoss:
    """Return the loss of a term, reading its inputs from `slots`; a module is moved to `device`.

    Weights are added up in at least `weight_dtype`.

    Raises:
        SpecError: a named loss without two inputs, or a class that cannot be created. (when called) ShapeError: shapes
            that a named loss would have to broadcast. (when called) SpecError: a custom loss that returns no scalar.
    """
    if term.loss.own is not None:
        return _bind_own(term, slots, device)
    if term.loss.name == FROM_OUTPUT:
        return _bind_formula(term, slots, weight_dtype) if weight_inputs(term) else _bind_output(term, slots)
    if len(slots) < 2:
        raise SpecError(
            f"loss {term.label!r}: {term.loss.name} takes outputs and "
            f"targets, but got {len(slots)} inputs ({', '.join(term.inputs)})",
            hint="pass two inputs, such as ['outputs', 'targets']",
        )
    if term.loss.name not in _NAMED or weight_inputs(term) or term.loss.kwargs:
        return _bind_formula(term, slots, weight_dtype)
    function, prepare, weigh = _NAMED[term.loss.name]
    label, (first, second) = f"{term.label!r} ({term.loss.name})", slots

    def mean(values: Values) -> Tensor:
        outputs, targets = prepare(label, _at_least_float32(values[first]), values[second])
        return function(outputs, targets)

    def sum_and_weight(values: Values) -> tuple[Tensor, Tensor]:
        outputs, targets = prepare(label, _at_least_float32(values[first]), values[second])
        total = function(outputs, targets, reduction="sum")
        return total, _weight(weigh(outputs), total)

    return BoundLoss(term, slots, mean, sum_and_weight)


def _bind_output(term: LossTerm, slots: Sequence[int]) -> BoundLoss:
    """Return a loss that a module returned: the mean over as many rows as the second input has, or one for each row."""
    first, second = slots

    def mean(values: Values) -> Tensor:
        return _at_least_float32(values[first]).mean()

    def sum_and_weight(values: Values) -> tuple[Tensor, Tensor]:
        value, rows = _at_least_float32(values[first]), len(values[second])
        return (value.sum(), _weight(value.numel(), value)) if value.ndim else (value * rows, _weight(rows, value))

    return BoundLoss(term, slots, mean, sum_and_weight)


class _FormulaOps:
    """The operations of torch that formulas of named losses need, like `ArrayOps` of the adapter."""

    xp = array_functions

    def __init__(self) -> None:
        self._constants: dict[Any, Tensor] = {}

    def astype(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        return array.to(dtype)

    def kind(self, array: Tensor) -> str:
        if array.is_floating_point() or array.is_complex():
            return "floating" if array.is_floating_point() else "complex"
        return "boolean" if array.dtype is torch.bool else "integer"

    def itemsize(self, array: Tensor) -> int:
        return array.itemsize

    def arange(self, count: int, like: Tensor) -> Tensor:
        return torch.arange(count, device=like.device)

    def constant(self, values: Sequence[float], like: Tensor) -> Tensor:
        key = values, like.dtype, like.device
        if key not in self._constants:  # made once: to a GPU it is a transfer
            self._constants[key] = torch.tensor(values, dtype=like.dtype, device=like.device)
        return self._constants[key]


def _bind_formula(term: LossTerm, slots: Sequence[int], least: torch.dtype) -> BoundLoss:
    """Return a named loss that torch has no function for, or with settings, or weighted: by its formula.

    torch's own functions give the loss of each element or position where there are such.
    """
    ops: Any = _FormulaOps()
    loss = loss_function(ops, term, _PARTS.get(term.loss.name))
    by_columns = slots[len(slots) - len(weight_inputs(term)) :]

    def sum_and_weight(values: Values) -> tuple[Tensor, Tensor]:
        result = loss([values[slot] for slot in slots])
        return result.sum, result.weight

    def mean(values: Values) -> Tensor:
        total, weight = sum_and_weight(values)
        return total / (divisor(weight) if by_columns else weight)

    def weight_alone(values: Values) -> Tensor:
        inputs = [values[slot] for slot in by_columns]
        dtypes = (tensor.dtype for tensor in inputs if tensor.is_floating_point())
        weight: Tensor = total_weight(ops, term, inputs, torch.promote_types(next(dtypes, least), least))
        return weight

    return BoundLoss(term, slots, mean, sum_and_weight, total_weight=weight_alone if by_columns else None)


def divisor(weight: Tensor) -> Tensor:
    """Return a weight as a divisor: 1 instead of 0 if nothing counts, so that the loss and its gradients are 0."""
    return torch.where(weight == 0, 1, weight)


def _elements(function: Callable[..., Tensor], ops: Any, outputs: Tensor, targets: Tensor, settings: Any) -> LossParts:
    return LossParts(function(outputs, targets.to(outputs.dtype), reduction="none"), tuple)


def _positions(ops: Any, outputs: Tensor, targets: Tensor, settings: Mapping[str, Any]) -> LossParts:
    axis, by_index = settings.get("class_axis", -1), not targets.is_floating_point()
    logits, targets = outputs.movedim(axis, -1), targets if by_index else targets.movedim(axis, -1)
    losses = F.cross_entropy(
        logits.flatten(0, -2),
        targets.long().flatten() if by_index else targets.to(outputs.dtype).flatten(0, -2),
        weight=ops.constant(settings["class_weights"], outputs) if "class_weights" in settings else None,
        ignore_index=settings.get("ignore_index", _IGNORES_NOTHING),
        reduction="none",
        label_smoothing=settings.get("label_smoothing", 0.0),
    )
    return LossParts(losses.reshape(logits.shape[:-1])[with_axis(axis)], tuple, axis)


# torch leaves out targets equal to this; a number that is no class, so that every position counts.
_IGNORES_NOTHING = -(2**62)
_PARTS: dict[str, Callable[..., LossParts]] = {
    "mse": functools.partial(_elements, F.mse_loss),
    "mae": functools.partial(_elements, F.l1_loss),
    "cross_entropy": _positions,
    "binary_cross_entropy": functools.partial(_elements, F.binary_cross_entropy_with_logits),
}


def _elementwise(label: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if outputs.shape != targets.shape:
        raise _shape_error(label, outputs, targets, "they must have the same shape")
    return outputs, targets if targets.dtype is outputs.dtype else targets.to(outputs.dtype)


def _classes(label: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [samples, classes], and class indices int64 [samples] or probabilities [samples, classes]."""
    if targets.is_floating_point():
        if outputs.shape != targets.shape or outputs.ndim < 2:
            raise _shape_error(label, outputs, targets, "probabilities have the shape of the logits [.., classes]")
        return outputs.flatten(0, -2), targets.to(outputs.dtype).flatten(0, -2)
    if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
        rule = "class indices have the shape of the logits [.., classes] without the last axis"
        raise _shape_error(label, outputs, targets, rule)
    return outputs.flatten(0, -2), targets.long().flatten()


_NAMED: dict[str, tuple[Callable[..., Tensor], Prepare, Callable[[Tensor], int]]] = {
    "mse": (F.mse_loss, _elementwise, Tensor.numel),
    "mae": (F.l1_loss, _elementwise, Tensor.numel),
    "cross_entropy": (functools.partial(F.cross_entropy, ignore_index=_IGNORES_NOTHING), _classes, len),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, _elementwise, Tensor.numel),
}


def _at_least_float32(outputs: Tensor) -> Tensor:
    """Return 16-bit outputs as float32: targets would be rounded, and a sum over a batch soon overflows."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def _weight(count: int, total: Tensor) -> Tensor:
    dtype = torch.float64 if total.dtype is torch.float64 else torch.float32
    return torch.full((), count, dtype=dtype, device=total.device)  # a fill, where torch.tensor would be a transfer


def _shape_error(label: str, outputs: Tensor, targets: Tensor, rule: str) -> ShapeError:
    return ShapeError(
        f"loss {label}: outputs {list(outputs.shape)} and targets {list(targets.shape)} (with the batch) do not "
        f"match: {rule}; losses never broadcast",
        hint="set output_shape of the model to the targets' shape per sample, or reshape the target column",
    )


# What losses of torch take as targets.
_TARGETS: dict[Any, str] = {
    **dict.fromkeys((nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss), "probabilities"),
    **dict.fromkeys((F.binary_cross_entropy, F.binary_cross_entropy_with_logits), "probabilities"),
    **dict.fromkeys((nn.CrossEntropyLoss, nn.NLLLoss, F.cross_entropy, F.nll_loss), "classes"),
    **dict.fromkeys((nn.SoftMarginLoss, nn.HingeEmbeddingLoss, F.soft_margin_loss, F.hinge_embedding_loss), "signs"),
    **dict.fromkeys((nn.PoissonNLLLoss, F.poisson_nll_loss), "non_negative"),
    **dict.fromkeys((nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss), "numbers"),
    **dict.fromkeys((F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss), "numbers"),
}


def loss_targets(loss: Loss) -> LossTargets | None:
    """Return the targets that a loss of torch or Keras accepts; None for others, including classes derived from one."""
    own = loss.own.func if isinstance(loss.own, functools.partial) else loss.own
    kind = _TARGETS.get(own if isinstance(own, type) or inspect.isroutine(own) else type(own))
    if kind is None:
        return keras.library().loss_targets(loss)
    settings = loss.own.keywords if isinstance(loss.own, functools.partial) else loss.kwargs
    ignored = settings.get("ignore_index", getattr(own, "ignore_index", _IGNORED)) if kind == "classes" else None
    return LossTargets(kind, class_axis=1, ignored=ignored)


_IGNORED = -100  # where nobody says anything else


# What torch says of class indices in other dtypes.
_NEEDS_INT64 = re.compile(r"target dtype to be Long|expected scalar type Long")

# Elementwise losses of torch, which broadcast with no more than a warning; what custom losses compare is up to them.
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
_ELEMENTWISE_FUNCTIONS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)


def _bind_own(term: LossTerm, slots: Sequence[int], device: torch.device) -> BoundLoss:
    is_keras = keras.library().is_loss(term.loss.own)
    own = keras_loss(term.loss, device) if is_keras else _created(term)
    module = own.to(device) if isinstance(own, nn.Module) else None
    is_elementwise = isinstance(own, _ELEMENTWISE) or any(own is function for function in _ELEMENTWISE_FUNCTIONS)
    checked = len(slots) == 2 and is_elementwise
    compute = own if is_keras else _outputs_first(own)

    def mean(values: Values) -> Tensor:
        inputs = [values[slot] for slot in slots]
        if checked and inputs[0].shape != inputs[1].shape:
            raise _shape_error(
                f"{term.label!r} ({term.loss.name})", inputs[0], inputs[1], "they must have the same shape"
            )
        try:
            result = compute(*inputs)
        except RuntimeError as error:
            if not _NEEDS_INT64.search(str(error)):
                raise
            shown = ", ".join(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" for value in inputs)
            raise SpecError(
                f"loss {term.label!r}: {term.loss.name} needs class indices in int64, but was called with {shown}",
                cause=first_line(error),
                hint="cast class indices: feature_set.cast({'y': 'int64'}), or y.astype('int64')",
            ) from error
        if not isinstance(result, Tensor) or result.ndim:
            shown = f"shape {list(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
            raise SpecError(
                f"loss {term.label!r}: {term.loss.name} returns {shown}, not a scalar tensor",
                hint="return the mean over the batch, for example with reduction='mean'",
            )
        return result

    def sum_and_weight(values: Values) -> tuple[Tensor, Tensor]:
        result = mean(values)
        count = len(values[slots[0]])
        return _at_least_float32(result) * count, _weight(count, result)

    return BoundLoss(term, slots, mean, sum_and_weight, module)


def _outputs_first(own: Any) -> Callable[..., Any]:
    if isinstance(own, nn.Module) and takes_targets_first(own.forward):  # hooks run in the call of the module
        return lambda outputs, targets, *others: own(targets, outputs, *others)
    return outputs_first(own)


def _created(term: LossTerm) -> Any:
    own = term.loss.own
    if not isinstance(own, type):
        return own
    try:
        instance = own(**term.loss.kwargs)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"loss {term.label!r}: {term.loss.name} cannot be created with "
            f"loss_kwargs {', '.join(term.loss.kwargs) or '(none)'}: {first_line(error)}",
            hint="correct loss_kwargs, or pass an instance",
        ) from error
    if not callable(instance):
        raise SpecError(
            f"loss {term.label!r}: a {term.loss.name} is not callable", hint="pass a class such as torch.nn.MSELoss"
        )
    return instance
