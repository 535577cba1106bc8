"""Named optimizers as functions: the formulas of docs/reference/formulas.md, on tensors that are not changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SLOTS: Mapping[str, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}
"""torch's names of what an optimizer keeps for a parameter."""

WIDTH = 3
"""Numbers that change from step to step, for each rule: learning rate, and Adam's two corrections."""


def slots_of(name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """torch's names of the tensors that a named optimizer keeps for each parameter."""
    return SLOTS.get(name, ("momentum_buffer",) if settings.get("momentum", 0) > 0 else ())


def numbers(settings: Mapping[str, Any], rates: Tensor, steps: Tensor) -> Tensor:
    """The numbers of a rule for many steps, float64 [steps, WIDTH].

    Args:
        settings: those of the optimizer.
        rates: learning rates, float64 [steps].
        steps: which step of these parameters each is, from 1; float64 [steps].
    """
    first, second = settings.get("betas", (0.0, 0.0))
    return torch.stack([rates, rates / (1 - first**steps), (1 - second**steps).rsqrt()], 1)


def updated(
    name: str, settings: Mapping[str, Any], value: Tensor, slots: Sequence[Tensor], grad: Tensor, row: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """A parameter and its slots after one step; computed in 32 bits where the parameter has 16.

    Args:
        name: of the optimizer.
        settings: its settings.
        value: the parameter.
        slots: in the order of `slots_of`.
        grad: its gradient, already clipped.
        row: the numbers of this step [WIDTH].
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    w, g, kept, row = value.to(wide), grad.to(wide), [slot.to(wide) for slot in slots], row.to(wide)
    decay: float = settings["weight_decay"]
    if decay and name != "adamw":
        g = g + decay * w
    rule: Callable[..., tuple[Tensor, list[Tensor]]] = _adam if "betas" in settings else _sgd
    w, new = rule(settings, w, kept, g, row, decay if name == "adamw" else 0.0)
    return w.to(value.dtype), [one.to(slot.dtype) for one, slot in zip(new, slots, strict=True)]


def _adam(
    settings: Mapping[str, Any], w: Tensor, slots: Sequence[Tensor], g: Tensor, row: Tensor, decay: float
) -> tuple[Tensor, list[Tensor]]:
    first, second = settings["betas"]
    if decay:
        w = w * (1 - row[0] * decay)
    m = slots[0] + (1 - first) * (g - slots[0])
    v = second * slots[1] + (1 - second) * g * g
    return w - row[1] * m / (v.sqrt() * row[2] + settings["eps"]), [m, v]


def _sgd(
    settings: Mapping[str, Any], w: Tensor, slots: Sequence[Tensor], g: Tensor, row: Tensor, decay: float
) -> tuple[Tensor, list[Tensor]]:
    if not slots:
        return w - row[0] * g, []
    velocity = settings["momentum"] * slots[0] + g
    return w - row[0] * (g + settings["momentum"] * velocity if settings["nesterov"] else velocity), [velocity]


def clipped(grads: Sequence[Tensor], groups: Sequence[tuple[float | None, int]]) -> list[Tensor]:
    """Gradients scaled so that those of one group together have at most its norm.

    Args:
        grads: one for each piece.
        groups: for each piece the norm, or None, and its group.
    """
    squares: dict[int, Tensor] = {}
    for grad, (norm, group) in zip(grads, groups, strict=True):
        if norm is not None:
            wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
            squares[group] = squares[group] + wide.square().sum() if group in squares else wide.square().sum()
    found = []
    for grad, (norm, group) in zip(grads, groups, strict=True):
        factor = None if norm is None else torch.clamp(norm / (squares[group].sqrt() + 1e-6), max=1.0)
        found.append(grad if factor is None else (grad * factor).to(grad.dtype))
    return found
