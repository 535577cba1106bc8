"""The state of torch's optimizers: its devices, and its conversion from and to core's `NodeState`."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.nested import map_items
from anyaccel.segment import NodeState
from anyaccel_torch.state_guard import save_tensor


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
    """Return the device of a part of a parameter's state: the host for step counts that torch reads there."""
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if on_host else parameter.device


def own_slots(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slots that are a parameter's own, without its step and those that `SharedState` keeps with
    parameters.
    """
    return {slot: value for slot, value in values.items() if slot != _STEP and not slot.startswith((_GROUP, _OBJECT))}


@dataclass(frozen=True, slots=True)
class ExpectedSlots:
    """The slots that an optimizer stores for a parameter.

    Attributes:
        names: Names of the slots.
        like: State after a trial step; empty for a named optimizer, whose slots have the parameter's shape.
    """

    names: frozenset[str]
    like: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, like: Mapping[str, Any]) -> ExpectedSlots:
        """Return those of a state after a trial step."""
        return cls(frozenset(names_of(encoded_slots(like))), like)

    def fit(self, values: Mapping[str, Tensor], parameter: nn.Parameter) -> bool:
        """Whether slots are these; a parameter without any has had no gradient yet."""
        own = own_slots(values)
        if own and names_of(own) != self.names:
            return False
        for slot, value in own.items():
            like = self.like.get(slot) if self.like else parameter
            if isinstance(like, Tensor) and 0 not in (value.ndim, like.ndim) and value.shape != like.shape:
                return False
        return True


def matching_state(
    state: NodeState,
    parameters: Mapping[str, nn.Parameter],
    switched_off: Collection[str],
    expected: Mapping[nn.Parameter, ExpectedSlots],
) -> NodeState:
    """Return the state with the slots of those `parameters` whose names and shapes match; otherwise a fresh one.

    Args:
        state: State of an earlier phase.
        parameters: Trained parameters, by name.
        switched_off: Names of the others, which may have slots.
        expected: Slots of the optimizer for each parameter.
    """
    kept = {name: values for name, values in state.slots.items() if values and name not in switched_off}
    if not parameters:  # they are listed with another node, or are all switched off
        return NodeState(state.step)
    if not kept.keys() <= parameters.keys():
        return NodeState()
    fitting = {name: v for name, v in kept.items() if expected[parameters[name]].fit(v, parameters[name])}
    if any(map(own_slots, kept.values())):
        return NodeState(state.step, fitting) if any(map(own_slots, fitting.values())) else NodeState()
    keeps_nothing = not any(expected[parameter].names for parameter in parameters.values())
    return NodeState(state.step, fitting) if keeps_nothing else NodeState()


def set_step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, step: float) -> None:
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
    *,
    counts: bool,
) -> None:
    """Copy slots under core's names into a parameter's state.

    Args:
        optimizer: Optimizer that receives the state.
        parameter: The parameter.
        step: Steps of its node, which are its own unless a slot `step` says otherwise.
        slots: Slots by core's names.
        torch_slots: Torch's names for them.
        like: The state of a parameter after a trial step; may be empty.
        counts: Whether the optimizer may have a step count for each parameter.
    """
    state, own = optimizer.state[parameter], own_slots(slots)
    if not own and _STEP not in slots and like:  # it has had no gradient
        return
    state.update({key: None for key, value in like.items() if value is None})
    for name, value in decode(own, like, parameter.device).items():
        state[torch_slots.get(name, name)] = value
    count = slots[_STEP].item() if _STEP in slots else step
    if isinstance(like.get(_STEP), _NUMBERS):
        state[_STEP] = type(like[_STEP])(count)
    elif counts and (not like or isinstance(like.get(_STEP), Tensor)):
        set_step(optimizer, parameter, count)


def encoded_slots(state: Mapping[str, Any], core_slots: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """Return everything in a parameter's state except its step, as tensors, if it can be encoded and is not None.

    Args:
        state: State by torch's names.
        core_slots: Core's names for some of these.
    """
    slots: dict[str, Tensor] = {}
    for key, value in state.items():
        if value is not None and not (key == _STEP and _is_scalar(value)):
            with suppress(TypeError):
                slots |= encode((core_slots or {}).get(key, key), value)
    return slots


def not_encodable(state: Mapping[str, Any]) -> list[str]:
    """Return names and types of the parts of a parameter's state that slots cannot hold."""
    names = {key: encoded_slots({key: value}) for key, value in state.items() if value is not None}
    scalars = {key for key in names if key == _STEP and _is_scalar(state[key])}
    return [f"{key} ({type(state[key]).__name__})" for key, slots in names.items() if not slots and key not in scalars]


def read_steps(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, Any]:
    """The own step counts of parameters that have one; waits once for each device."""
    known: dict[nn.Parameter, Any] = {}
    by_device: dict[torch.device, dict[nn.Parameter, Tensor]] = {}
    for parameter in parameters:
        step = optimizer.state.get(parameter, {}).get(_STEP)
        if isinstance(step, _NUMBERS):
            known[parameter] = step
        elif isinstance(step, Tensor) and step.ndim == 0 and not step.is_meta:
            by_device.setdefault(step.device, {})[parameter] = step.double()
    for steps in by_device.values():
        known.update(zip(steps, torch.stack(list(steps.values())).tolist(), strict=True))
    return known


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _NUMBERS) or (isinstance(value, Tensor) and value.ndim == 0)


_GROUP, _OBJECT, _STEP = "group.", "object.", "step"
_NUMBERS = (bool, int, float)


class SharedState:
    """State that a custom optimizer class stores in its `param_groups` and attributes.

    Anything that changed since the optimizer was created is part of its state. It belongs to no parameter, so the state
    of each has it, as the slots `group.NAME` and `object.NAME`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._first_groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        self._fresh_groups = {id(group): _encoded(group) for group in optimizer.param_groups}
        self._fresh_object = _encoded(_own_attributes(optimizer))

    def slots(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """Return the changes as slots of each parameter."""
        now = _changed(_encoded(_own_attributes(self._optimizer)), self._fresh_object)
        shared = {f"{_OBJECT}{slot}": value for slot, value in now.items()}
        slots: dict[nn.Parameter, dict[str, Tensor]] = {}
        for group in self._optimizer.param_groups:
            fresh = self._fresh_groups[id(self._first_groups[group["params"][0]])] if group["params"] else {}
            own = {f"{_GROUP}{slot}": value for slot, value in _changed(_encoded(group), fresh).items()}
            slots.update({parameter: {**own, **shared} for parameter in group["params"]})
        return slots

    def load(self, slots: Mapping[str, Tensor], parameter: nn.Parameter | None = None) -> None:
        """Restore the state of a parameter, before the first step; without a parameter's group, in all groups."""
        first = self._optimizer.param_groups
        for group in first if parameter is None else [self._first_groups[parameter]]:
            group.update(_decoded(slots, _GROUP, group, first[0]["params"][0].device))
        attributes = vars(self._optimizer)
        attributes.update(_decoded(slots, _OBJECT, attributes, first[0]["params"][0].device))


def _decoded(slots: Mapping[str, Tensor], prefix: str, like: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return decode({k.removeprefix(prefix): v for k, v in slots.items() if k.startswith(prefix)}, like, device)


def _encoded(values: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return copies by name, without the learning rate, which the optimizer's spec sets, and what cannot be encoded."""
    encoded: dict[str, dict[str, Tensor]] = {}
    for key, value in values.items():
        if key not in ("params", "lr", "initial_lr") and not (isinstance(value, Tensor) and value.is_meta):
            with suppress(TypeError):
                encoded[key] = {slot: part.detach().clone() for slot, part in encode(key, value).items()}
    return encoded


def _changed(now: Mapping[str, Mapping[str, Tensor]], before: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    changed: dict[str, Tensor] = {}
    for key, parts in now.items():
        others = before.get(key, {})
        is_equal = key in before and parts.keys() == others.keys()
        for slot, part in parts.items() if is_equal else ():
            is_equal = is_equal and part.dtype == others[slot].dtype and torch.equal(part, others[slot])
        if not is_equal:
            changed.update(parts)
    return changed


@cache
def _base_attributes() -> frozenset[str]:
    return frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))])))


def _own_names(optimizer: torch.optim.Optimizer) -> Iterable[str]:
    """Return the attributes of an optimizer beyond those of every torch optimizer."""
    return [name for name in vars(optimizer) if name not in _base_attributes()]


def _own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: vars(optimizer)[name] for name in _own_names(optimizer)}


@dataclass(frozen=True, slots=True)
class OptimizerSnapshot:
    """A copy of an optimizer's state by parameter, of its parameter groups, and of its attributes, if they change."""

    state: dict[Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]
    attributes: AttributeSnapshot | None

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, *, has_attributes: bool) -> OptimizerSnapshot:
        """Return a copy of the current state of an optimizer; `has_attributes` if its steps may change attributes."""
        attributes = AttributeSnapshot([optimizer], _own_names, save_tensor) if has_attributes else None
        return cls(*_copied(optimizer.state, optimizer.param_groups), attributes)

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Write the copy back; it stays usable."""
        optimizer.state.clear()  # first, so that its memory is free for the copies
        state, groups = _copied(self.state, self.groups)
        optimizer.state.update(state)
        optimizer.param_groups[:] = groups
        if self.attributes is not None:
            self.attributes.restore()


def copied_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter's state."""
    return {key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in state.items()}


def _copied(
    state: Mapping[Tensor, Mapping[str, Any]], groups: Iterable[Mapping[str, Any]]
) -> tuple[dict[Tensor, dict[str, Any]], list[dict[str, Any]]]:
    """Return copies of states by parameter, and of groups, whose parameters stay the same objects."""
    states = {parameter: copied_state(values) for parameter, values in state.items()}
    copied_groups: list[dict[str, Any]] = []
    for group in groups:
        others = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
        copied_groups.append({"params": list(group["params"]), **others})
    return states, copied_groups


# -- What an optimizer keeps under one name, as tensors: numbers, text, and containers of these and of tensors ---------


_STRUCTURE = ".json"
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple}


def encode(key: str, value: Any) -> dict[str, Tensor]:
    """Return a value as tensors by name.

    A tensor is itself; a number is a scalar in 64 bits in host memory. Text, and a list, tuple, deque or dict of all
    these, is text in JSON (`KEY.json`, bytes in UTF-8), with its tensors in separate entries (`KEY.0`, ...).

    Raises:
        TypeError: it holds another object, or a parameter; or the key is not text or has a slash.
    """
    if not isinstance(key, str) or "/" in key:
        raise TypeError(f"the name {key!r}")
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return {key: value}
    if isinstance(value, _NUMBERS):
        return {key: torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)}
    tensors: list[Tensor] = []
    text = json.dumps(_plain(value, tensors)).encode()
    parts = {f"{key}.{i}": tensor for i, tensor in enumerate(tensors)}
    return {f"{key}{_STRUCTURE}": torch.frombuffer(bytearray(text), dtype=torch.uint8), **parts}


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value as JSON: a pair of its kind and its content."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_plain(item, tensors) for item in value]]
    if type(value) is deque:
        return ["deque", [value.maxlen, [_plain(item, tensors) for item in value]]]
    if isinstance(value, dict):
        return ["dict", [[_plain(name, tensors), _plain(item, tensors)] for name, item in value.items()]]
    raise TypeError(type(value).__name__)


def names_of(slots: Iterable[str]) -> set[str]:
    """Return the names of encoded values."""
    slots = set(slots)
    structures = {slot.removesuffix(_STRUCTURE) for slot in slots if slot.endswith(_STRUCTURE)}
    split = {slot: slot.rpartition(".") for slot in slots if not slot.endswith(_STRUCTURE)}
    of_structures = {slot for slot, (name, _, last) in split.items() if name in structures and last.isdigit()}
    return structures | (split.keys() - of_structures)


def decode(slots: Mapping[str, Tensor], like: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Rebuild values by name, as copies on `device`.

    Args:
        slots: Output of `encode`.
        like: Values with the same names, which show whether a value was a number or a scalar tensor; may lack some.
            Scalars in 64 bits are then numbers.
        device: Device of the tensors.
    """
    values: dict[str, Any] = {}
    for name in names_of(slots):
        if name in slots:
            tensor = slots[name]
            before: Any = like.get(name)
            wide = tensor.ndim == 0 and tensor.dtype in (torch.float64, torch.int64, torch.bool)
            if wide and not isinstance(before, Tensor):
                values[name] = tensor.item()
            elif isinstance(before, _NUMBERS) and tensor.ndim == 0:
                values[name] = type(before)(tensor.item())
            else:
                on = before.device if isinstance(before, Tensor) else device
                values[name] = tensor.detach().to(on, copy=True)
        else:
            plain = json.loads(bytes(slots[f"{name}{_STRUCTURE}"].cpu().tolist()))
            parts = [slot.rpartition(".") for slot in slots]  # those of the value are numbered
            n_tensors = sum(1 for before, _, last in parts if before == name and last.isdigit())
            tensors = [slots[f"{name}.{i}"].detach().to(device, copy=True) for i in range(n_tensors)]
            values[name] = _rebuilt(plain, tensors)
    return values


def _rebuilt(plain: Any, tensors: Sequence[Tensor]) -> Any:
    kind, content = plain
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]([_rebuilt(item, tensors) for item in content])
    if kind == "deque":
        return deque((_rebuilt(item, tensors) for item in content[1]), content[0])
    if kind == "dict":
        return {_rebuilt(name, tensors): _rebuilt(item, tensors) for name, item in content}
    return tensors[content] if kind == "tensor" else content
