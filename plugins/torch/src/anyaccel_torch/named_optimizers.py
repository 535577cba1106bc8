"""Named optimizers in torch: by a class of torch where there is one, else by their formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyaccel.formulas import OPTIMIZERS, OptimizerRule
from anyaccel.specs import Optimizer
from anyaccel_torch import array_functions


class Native(NamedTuple):
    """A class of torch that computes a named optimizer.

    Attributes:
        create: the class.
        slots: what torch calls the slots of the formula.
        counts: whether the state of each parameter has the number of its steps.
    """

    create: type[torch.optim.Optimizer]
    slots: Mapping[str, str]
    counts: bool


_SGD = Native(torch.optim.SGD, {"velocity": "momentum_buffer"}, counts=False)
_MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
NATIVE: dict[str, Native] = {
    "sgd": _SGD,
    "momentum": _SGD,
    "adam": Native(torch.optim.Adam, _MOMENTS, counts=True),
    "adamw": Native(torch.optim.AdamW, _MOMENTS, counts=True),
}


def counts_steps(spec: Optimizer) -> bool:
    """Whether the state of each parameter of an optimizer may have the number of its steps."""
    return spec.own is not None or spec.name not in NATIVE or NATIVE[spec.name].counts


def slot_names(spec: Optimizer) -> dict[str, str]:
    """The slots of a named optimizer, each with the name that it has in torch's state."""
    renamed = NATIVE[spec.name].slots if spec.name in NATIVE else {}
    return {slot: renamed.get(slot, slot) for slot in OPTIMIZERS[spec.name].slots(spec.settings)}


def updated(
    rule: OptimizerRule,
    settings: Mapping[str, Any],
    value: Tensor,
    slots: Mapping[str, Tensor],
    gradient: Tensor,
    coefficients: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """A parameter and its slots after a step of a rule; parameters of 16 bits are updated in float32."""
    wide = torch.promote_types(value.dtype, torch.float32)
    held = {name: slot.to(wide) for name, slot in slots.items()}
    moved, kept = rule.update(settings, array_functions, value.to(wide), gradient.to(wide), held, coefficients)
    return moved.to(value.dtype), {name: slot.to(slots[name].dtype) for name, slot in kept.items()}


class RuleOptimizer(torch.optim.Optimizer):
    """A named optimizer that torch has no class for, by its formula.

    Args:
        parameters: as any optimizer of torch takes them.
        rule: the formula.
        settings: the learning rate and the formula's settings, for groups that have no others.
    """

    def __init__(self, parameters: Any, rule: OptimizerRule, **settings: Any) -> None:
        super().__init__(parameters, settings)
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            settings = {name: group[name] for name in self._rule.settings}
            names = self._rule.slots(settings)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "step" not in state:
                    state["step"] = torch.zeros(())
                for name in names:
                    if name not in state:
                        state[name] = torch.zeros_like(parameter, requires_grad=False)
                state["step"] += 1
                step = int(state["step"])
                numbers = self._rule.coefficients(settings, np, group["lr"], step)
                gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                moved, kept = updated(
                    self._rule,
                    settings,
                    parameter,
                    {name: state[name] for name in names},
                    gradient,
                    {name: float(number) for name, number in numbers.items()},
                )
                parameter.copy_(moved)
                state.update(kept)
        return loss
