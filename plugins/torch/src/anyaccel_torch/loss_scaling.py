"""The loss scale of a program: gradients of scaled losses, divided by it, and the steps that are skipped."""

from __future__ import annotations

from collections.abc import Iterable
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
        if self._divided is None and grads:
            self._divided = any(map(is_dtensor, grads))
        if self._divided:
            finite = bool(whole_stats(grads)[1])
        else:
            norms: dict[torch.device, list[Tensor]] = {}
            for grad in grads:  # NaN where one element is
                values = grad.coalesce().values() if grad.is_sparse else grad
                norms.setdefault(grad.device, []).append(torch.linalg.vector_norm(values, torch.inf))
            finite = all(bool(torch.stack(on_device).isfinite().all()) for on_device in norms.values())
        self.count(finite=finite)
        return finite

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
