"""The loss scale of a program: gradients of scaled losses, divided by it, and the steps that are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.precision import LossScale, LossScaleState, ScalesLosses
from anyaccel_torch.divided_gradients import is_dtensor, whole_stats


class LossScaling:
    """The scaling of losses; this base class leaves them unchanged.

    Attributes:
        spec: Numbers of a changing scale; None if losses are not scaled.
        state: Current state of the scale.
    """

    spec: LossScale | None = None
    state = LossScaleState(1.0)

    def scaled(self, weights: list[Any]) -> list[Any]:
        """Return factors of losses, times the scale."""
        return weights

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divide the gradients by the scale; return whether all are finite, so that the step is made."""
        return True

    def count(self, *, finite: bool) -> None:
        """Count a step whose gradients were all finite, or were not."""

    def load(self, state: LossScaleState) -> None:
        """Continue from another state."""


UNSCALED = LossScaling()


class DynamicLossScaling(LossScaling):
    """The numbers of `torch.amp.GradScaler`, for the steps of a program as a whole."""

    def __init__(self, spec: LossScale) -> None:
        self.spec: LossScale = spec
        self.state = LossScaleState(spec.initial)
        self._divided: bool | None = None  # whether some gradients are, once there are some

    def scaled(self, weights: list[Any]) -> list[Any]:
        return [weight * self.state.scale for weight in weights]

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Also counts the step, and waits for the device."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for grad in grads:
            grad.mul_(1.0 / self.state.scale)
        finite = self._are_finite(grads)
        self.count(finite=finite)
        return finite

    def _are_finite(self, grads: Sequence[Tensor]) -> bool:
        if self._divided is None and grads:
            self._divided = any(map(is_dtensor, grads))
        if self._divided:
            return bool(whole_stats(grads)[1])
        norms = [torch.linalg.vector_norm(_values(grad), torch.inf) for grad in grads]  # NaN where one element is
        return all(bool(torch.stack(stacked).isfinite().all()) for stacked in _by_device(norms))

    def count(self, *, finite: bool) -> None:
        self.state = self.state.after_step(self.spec, finite=finite)

    def load(self, state: LossScaleState) -> None:
        self.state = state


class ScaledProgram(ScalesLosses):
    """The loss scale of a program, in `_scaling`."""

    _scaling = UNSCALED

    def loss_scale_state(self) -> LossScaleState:
        return self._scaling.state

    def load_loss_scale_state(self, state: LossScaleState) -> None:
        self._scaling.load(state)

    def update_loss_scale(self, *, finite: bool) -> None:
        self._scaling.count(finite=finite)


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _by_device(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device, []).append(tensor)
    return groups.values()
