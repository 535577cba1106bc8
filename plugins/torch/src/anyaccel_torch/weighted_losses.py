"""Named losses with settings or weights as torch functions: the sum of what counts, and the sum of its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from anyaccel.errors import ShapeError
from anyaccel.segment import LossTerm

_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
}
# torch leaves out targets equal to this; a number that is no class, so that every position counts.
IGNORES_NOTHING = -(2**62)


class WeightedLoss:
    """A named loss that has settings, or weights beside outputs and targets.

    Args:
        term: the loss.
        device: where it is computed.
    """

    def __init__(self, term: LossTerm, device: torch.device) -> None:
        self._term, self._settings, self._device = term, term.loss.kwargs, device
        self._class_weights: dict[torch.dtype, Tensor] = {}

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of the weighted losses, and the sum of the weights (or the number of positions without any).

        Raises:
            ShapeError: targets or weights that would broadcast.
        """
        factors = [*self._counts(targets), *weights]
        factor = product(factors, outputs.dtype) if factors else None
        if self._term.loss.name == "cross_entropy":
            losses = self._cross_entropy(outputs, targets)
        else:
            losses = self._elementwise(outputs, targets, factor)
        if factor is None and "class_weights" not in self._settings:
            return losses.sum(), torch.full((), losses.numel(), dtype=losses.dtype, device=losses.device)
        total = losses.sum() if factor is None else self._total(losses, factor)
        return total, self._normalizer(targets, factor, losses.dtype)

    def weight(self, targets: Tensor, weights: Sequence[Tensor], least: torch.dtype) -> Tensor:
        """The sum of the weights alone, in at least this dtype."""
        dtype = next((each.dtype for each in weights if each.is_floating_point()), least)
        dtype = torch.promote_types(dtype, least)
        factors = [*self._counts(targets), *weights]
        return self._normalizer(targets, product(factors, dtype) if factors else None, dtype)

    def _counts(self, targets: Tensor) -> list[Tensor]:
        ignored = self._settings.get("ignore_index")
        return [] if ignored is None else [targets != ignored]

    def _normalizer(self, targets: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
        weights = self._weights_of_classes(dtype)
        if weights is None:
            return factor.sum()  # type: ignore[union-attr]
        by_class = weights[targets.long().clamp(0, len(weights) - 1)]  # an ignored target has a factor of 0
        return by_class.sum() if factor is None else (by_class * expanded(factor, by_class.ndim)).sum()

    def _weights_of_classes(self, dtype: torch.dtype) -> Tensor | None:
        if "class_weights" not in self._settings:
            return None
        if dtype not in self._class_weights:
            weights = self._settings["class_weights"]
            self._class_weights[dtype] = torch.tensor(weights, dtype=dtype, device=self._device)
        return self._class_weights[dtype]

    def _total(self, losses: Tensor, factor: Tensor) -> Tensor:
        """What has a factor of 0 does not count, whatever it is."""
        shared = losses.numel() // max(factor.numel(), 1)
        factor = expanded(factor, losses.ndim)
        return torch.where(factor == 0, 0, losses * factor).sum() / shared

    def _elementwise(self, outputs: Tensor, targets: Tensor, factor: Tensor | None) -> Tensor:
        if outputs.shape != targets.shape:
            raise self._shape_error(outputs, targets, "they must have the same shape")
        if factor is not None:  # a target that does not count may be NaN, and 0 * NaN would reach the gradients
            targets = torch.where(expanded(factor, targets.ndim) == 0, 0, targets)
        return _ELEMENTWISE[self._term.loss.name](outputs, targets.to(outputs.dtype), reduction="none")

    def _cross_entropy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        axis = self._settings.get("class_axis", -1)
        shape = list(outputs.shape)
        by_index = not targets.is_floating_point()
        if by_index:
            del shape[axis]
        if list(targets.shape) != shape or outputs.ndim < 2:
            rule = "class indices have the shape of the logits without the axis of the classes, probabilities all of it"
            raise self._shape_error(outputs, targets, rule)
        logits, targets = outputs.movedim(axis, -1), targets if by_index else targets.movedim(axis, -1)
        losses = F.cross_entropy(
            logits.flatten(0, -2),
            targets.long().flatten() if by_index else targets.to(outputs.dtype).flatten(0, -2),
            weight=self._weights_of_classes(outputs.dtype),
            ignore_index=self._settings.get("ignore_index", IGNORES_NOTHING),
            reduction="none",
            label_smoothing=self._settings.get("label_smoothing", 0.0),
        )
        return losses.reshape(logits.shape[:-1])

    def _shape_error(self, outputs: Tensor, targets: Tensor, rule: str) -> ShapeError:
        return ShapeError(
            f"loss {self._term.label!r} ({self._term.loss.name}): outputs {list(outputs.shape)} and targets "
            f"{list(targets.shape)} (with the batch) do not fit: {rule}; losses never broadcast",
            hint="give the model the targets' shape per sample as output_shape, or reshape the target column",
        )


def product(factors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The product of factors, each of the first axes of the longest."""
    first, *others = sorted(factors, key=lambda each: -each.ndim)
    result = first.to(dtype)
    for factor in others:
        result = result * expanded(factor.to(dtype), result.ndim)
    return result


def expanded(factor: Tensor, ndim: int) -> Tensor:
    """A factor with axes of size 1 after its own."""
    return factor.reshape(*factor.shape, *[1] * (ndim - factor.ndim)) if factor.ndim < ndim else factor


def divisor(weight: Tensor) -> Tensor:
    """A weight to divide by: 1 in place of 0, where nothing counts, so that the loss and its gradients are 0."""
    return torch.where(weight == 0, 1, weight)
