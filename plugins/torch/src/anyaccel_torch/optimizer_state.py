"""The state of torch's optimizers: its devices, and its conversion from and to core's `NodeState`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.nested import map_items
from anyaccel.segment import NodeState
from anyaccel_torch.state_guard import save_tensor

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


def own_slots(values: Mapping[str, Any]) -> dict[str, Any]:
    """The slots that are a parameter's own, without those that `Counters` keeps with every parameter."""
    return {slot: value for slot, value in values.items() if not slot.startswith((_GROUP, _OBJECT))}


def matching_state(state: NodeState, parameters: Mapping[str, nn.Parameter], slots: set[str]) -> NodeState:
    """The state if its slots and shapes are those of an optimizer with `slots`; else a fresh one."""
    if not parameters:  # a node whose parameters are all listed with another node
        return NodeState(state.step)
    kept = {name: values for name, values in state.slots.items() if values}
    fits = kept.keys() <= parameters.keys() and all(
        set(own_slots(values)) == slots and all(v.shape in ((), parameters[name].shape) for v in values.values())
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
    like: Mapping[str, Any],
) -> None:
    """Copy slots under core's names into a parameter's state.

    Args:
        optimizer: whose state.
        parameter: the parameter.
        step: its number of steps.
        slots: by core's names.
        torch_slots: torch's names for them.
        like: the state of a parameter after a trial step, where what is a number there becomes one; may be empty.
    """
    state = optimizer.state[parameter]
    for slot, value in own_slots(slots).items():
        copied = value.detach().to(parameter.device, copy=True)
        state[torch_slots.get(slot, slot)] = type(like[slot])(value.item()) if _is_number(like.get(slot)) else copied
    if _is_number(like.get("step")):
        state["step"] = type(like["step"])(step)
    elif "velocity" not in slots and (not like or "step" in like):
        set_step(optimizer, parameter, step)


def read_slots(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, torch_slots: Mapping[str, str]
) -> dict[str, Tensor]:
    """A parameter's slots under core's names: the very tensors, and plain numbers as tensors."""
    core_slots = {theirs: name for name, theirs in torch_slots.items()}
    state = optimizer.state.get(parameter, {}).items()
    known = {core_slots.get(key, key): value for key, value in state if key != "step"}
    return {key: _as_tensor(value) for key, value in known.items() if isinstance(value, Tensor) or _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _as_tensor(value: Any) -> Tensor:
    """A number as a scalar in 64 bits on the host."""
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


_GROUP, _OBJECT = "group.", "object."


class Counters:
    """The numbers that an optimizer class of the user's own keeps in its `param_groups` and attributes.

    Those that have changed since the optimizer was made are part of its state. They belong to no parameter, so that the
    state of each has them, as the slots `group.NAME` and `object.NAME`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._first_groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        self._fresh_groups = {parameter: _numbers(group) for parameter, group in self._first_groups.items()}
        self._fresh_object = _numbers(_own_attributes(optimizer))

    def slots(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """The numbers that have changed, as slots of each parameter."""
        shared = {f"{_OBJECT}{key}": value for key, value in self._object().items()}
        return {
            parameter: {**self._group(parameter, group), **shared}
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }

    def _object(self) -> dict[str, Tensor]:
        return _changed(_numbers(_own_attributes(self._optimizer)), self._fresh_object)

    def _group(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        changed = _changed(_numbers(group), self._fresh_groups.get(parameter, {}))
        return {f"{_GROUP}{key}": value for key, value in changed.items()}

    def load(self, parameter: nn.Parameter, slots: Mapping[str, Tensor]) -> None:
        """Set the numbers that the state of a parameter has; before the first step."""
        group = self._first_groups[parameter]
        for slot, value in slots.items():
            holder = group if slot.startswith(_GROUP) else vars(self._optimizer)
            name = slot.removeprefix(_GROUP).removeprefix(_OBJECT)
            if slot not in own_slots({slot: value}):
                holder[name] = _like(holder.get(name), value)


def _like(before: Any, value: Tensor) -> Any:
    """A saved number as what it was before; where that is unknown, scalars in 64 bits were plain numbers."""
    if _is_number(before):
        return type(before)(value.item())
    if isinstance(before, Tensor):
        return value.detach().to(before.device, copy=True)
    return value.item() if value.dtype in (torch.float64, torch.int64, torch.bool) else value.detach().clone()


def _numbers(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Numbers and scalar tensors; not the learning rate, which the optimizer's spec sets."""
    scalars = {key: value for key, value in values.items() if key not in ("params", "lr", "initial_lr")}
    return {
        key: _as_tensor(value).detach().clone()
        for key, value in scalars.items()
        if _is_number(value) or (isinstance(value, Tensor) and value.ndim == 0 and not value.is_meta)
    }


def _changed(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in now.items() if key not in before or value.item() != before[key].item()}


@cache
def _base_attributes() -> frozenset[str]:
    return frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))])))


def _own_names(optimizer: torch.optim.Optimizer) -> Iterable[str]:
    """The attributes that an optimizer has beside those of every torch optimizer."""
    return [name for name in vars(optimizer) if name not in _base_attributes()]


def _own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: vars(optimizer)[name] for name in _own_names(optimizer)}


@dataclass(frozen=True, slots=True)
class OptimizerSnapshot:
    """A copy of an optimizer's state by parameter, of its parameter groups, and of its own attributes."""

    state: dict[Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]
    attributes: AttributeSnapshot

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> OptimizerSnapshot:
        """A copy of what an optimizer holds now."""
        state = {parameter: copied_state(state) for parameter, state in optimizer.state.items()}
        attributes = AttributeSnapshot([optimizer], _own_names, save_tensor)
        return cls(state, [_copied_group(group) for group in optimizer.param_groups], attributes)

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Write the copy back; it stays usable."""
        optimizer.state.clear()
        for parameter, state in self.state.items():
            optimizer.state[parameter] = copied_state(state)
        optimizer.param_groups[:] = [_copied_group(group) for group in self.groups]
        self.attributes.restore()


def copied_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state."""
    return {key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in state.items()}


def _copied_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if key == "params" else copy.deepcopy(value) for key, value in group.items()}
