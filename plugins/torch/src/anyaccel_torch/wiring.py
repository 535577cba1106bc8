"""The operations of a segment as bound functions over one list of values, with the moves between devices in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyaccel.device import Device
from anyaccel.errors import GraphError, RecipeError
from anyaccel.segment import Operation, Segment
from anyaccel_torch.models import outputs_of

Run = Callable[[list[Any]], None]


class Wiring:
    """Numbers for the values of a segment, and functions that compute one from others.

    The inputs come first, in their order. A value wanted on another device than its own gets a number of its own
    there, and is moved once, differentiably, however many read it.
    """

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.runs: list[Run] = []
        self._homes: dict[str, torch.device] = {}
        self._slots: dict[tuple[str, torch.device], int] = {}
        for name, (_, device) in segment.inputs.items():
            self._enter(name, torch_device(device))
        for operation in segment.operations:
            self._add(operation, torch_device(operation.device))

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self._slots)

    def slot(self, name: str, device: torch.device | None = None) -> int:
        """Number of a value, on `device` if that is given, else where it arises.

        Raises:
            GraphError: no such value so far.
        """
        if name not in self._homes:
            there = ", ".join(self._homes) or "no value"
            raise GraphError(f"{name!r} is no value of the segment so far", there=there, remedy="put what gives it first")
        home = self._homes[name]
        device = home if device is None else device
        if (name, device) not in self._slots:
            self._slots[name, device] = self.size
            self.runs.append(_hop(self._slots[name, home], self._slots[name, device], device))
        return self._slots[name, device]

    def _enter(self, name: str, device: torch.device) -> int:
        self._homes[name] = device
        return self._slots.setdefault((name, device), self.size)

    def _add(self, operation: Operation, device: torch.device) -> None:
        sources = [self.slot(name, device) for name in operation.inputs]
        targets = [self._enter(name, device) for name in operation.outputs]
        if operation.model is None:
            self.runs.append(_joined(operation.axis, sources, targets[0]))
        elif not callable(operation.model):
            kind = type(operation.model).__name__
            raise RecipeError(f"{operation.label!r} cannot be called: it is a {kind}", remedy="give an nn.Module")
        elif len(sources) == len(targets) == 1:
            self.runs.append(_one_to_one(operation.model, sources[0], targets[0]))
        else:
            self.runs.append(_many(operation, sources, targets))


def _hop(source: int, target: int, device: torch.device) -> Run:
    def run(values: list[Any]) -> None:
        values[target] = values[source].to(device)

    return run


def _joined(axis: int, sources: Sequence[int], target: int) -> Run:
    def run(values: list[Any]) -> None:
        values[target] = torch.cat([values[source] for source in sources], axis if axis < 0 else axis + 1)

    return run


def _one_to_one(model: Callable[..., Any], source: int, target: int) -> Run:
    def run(values: list[Any]) -> None:
        found = model(values[source])
        values[target] = found if isinstance(found, Tensor) else outputs_of(found)[0]

    return run


def _many(operation: Operation, sources: Sequence[int], targets: Sequence[int]) -> Run:
    model: Callable[..., Any] = operation.model  # type: ignore[assignment]

    def run(values: list[Any]) -> None:
        found = outputs_of(model(*[values[source] for source in sources]))
        if len(found) != len(targets):
            raise GraphError(
                f"{operation.label!r} gives {len(found)} outputs",
                there=f"{len(targets)} stand in the graph: {', '.join(operation.outputs)}",
                remedy="let the model give the same outputs every time",
            )
        for target, value in zip(targets, found, strict=True):
            values[target] = value

    return run


def modules_of(operations: Sequence[Operation]) -> Mapping[str, torch.nn.Module]:
    """The models that are modules, by label."""
    return {each.label: each.model for each in operations if isinstance(each.model, torch.nn.Module)}
