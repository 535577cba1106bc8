"""The state of torch's optimizers: its devices, and its conversion from and to core's `NodeState`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.nested import map_items
from anyaccel.segment import NodeState

TORCH_SLOTS = {"velocity": "momentum_buffer", "m": "exp_avg", "v": "exp_avg_sq"}
"""torch's names for the slots of named optimizers."""


def named_slots(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The slots of a named optimizer with these settings, by core's names."""
    if "betas" in settings:
        return ("m", "v")
    return ("velocity",) if settings["momentum"] > 0 else ()


def place_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Move the state to the devices of the parameters, but for the step counts that torch reads on the host."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                state[key] = _moved(value, state_device(key, group, parameter))
    return optimizer


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else map_items(value, lambda item: _moved(item, device))


def state_device(key: str, group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """The device of a part of a parameter's state: the host for step counts that torch reads there."""
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if on_host else parameter.device


def matching_state(state: NodeState, parameters: Mapping[str, nn.Parameter], slots: set[str]) -> NodeState:
    """The state if its slots and shapes are those of an optimizer with `slots`; else a fresh one."""
    if not parameters:  # a node whose parameters are all listed with another node
        return NodeState(state.step)
    kept = {name: values for name, values in state.slots.items() if values}
    fits = kept.keys() <= parameters.keys() and all(
        set(values) == slots and all(value.shape in ((), parameters[name].shape) for value in values.values())
        for name, values in kept.items()
    )
    return NodeState(state.step, kept) if fits and (kept or not slots) else NodeState()


def set_step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, step: int) -> None:
    """Set a parameter's own step count."""
    device = state_device("step", optimizer.param_groups[0], parameter)
    optimizer.state[parameter]["step"] = torch.full((), float(step), dtype=torch.float32, device=device)


def load_slots(
    optimizer: torch.optim.Optimizer,
    parameter: nn.Parameter,
    step: int,
    slots: Mapping[str, Any],
    torch_slots: Mapping[str, str],
) -> None:
    """Copy slots under core's names into a parameter's state; `torch_slots` has torch's names for them."""
    for slot, value in slots.items():
        optimizer.state[parameter][torch_slots.get(slot, slot)] = value.detach().to(parameter.device, copy=True)
    if "velocity" not in slots:
        set_step(optimizer, parameter, step)


def read_slots(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, torch_slots: Mapping[str, str]
) -> dict[str, Tensor]:
    """A parameter's slots under core's names: the very tensors."""
    core_slots = {theirs: name for name, theirs in torch_slots.items()}
    state = optimizer.state.get(parameter, {}).items()
    return {core_slots.get(key, key): value for key, value in state if key != "step" and isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True)
class OptimizerSnapshot:
    """A copy of an optimizer's state by parameter and of its parameter groups."""

    state: dict[Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> OptimizerSnapshot:
        """A copy of what an optimizer holds now."""
        state = {parameter: copied_state(state) for parameter, state in optimizer.state.items()}
        return cls(state, [_copied_group(group) for group in optimizer.param_groups])

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Write the copy back; it stays usable."""
        optimizer.state.clear()
        for parameter, state in self.state.items():
            optimizer.state[parameter] = copied_state(state)
        optimizer.param_groups[:] = [_copied_group(group) for group in self.groups]


def copied_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state."""
    return {key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in state.items()}


def _copied_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if key == "params" else copy.deepcopy(value) for key, value in group.items()}
