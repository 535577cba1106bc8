"""Device replicas of torch: the gradients of a program, also where only some rows use a parameter."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from anyaccel.adapter.device_replicas import Gradients
from anyaccel.backend import Program
from anyaccel_torch.program import TorchProgram


def gradients(program: Program) -> Gradients:
    """As `DeviceReplicas.gradients`: one for each trained parameter, None where it has none."""
    return [_dense(parameter.grad) for parameter in cast("TorchProgram", program).trained]


def set_gradients(program: Program, gradients: Gradients) -> None:
    """As `DeviceReplicas.set_gradients`."""
    for parameter, gradient in zip(cast("TorchProgram", program).trained, gradients, strict=True):
        parameter.grad = gradient


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
