"""The operations of a segment as bound functions over one list of values, with the moves between devices in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyaccel.device import Device
from anyaccel.errors import GraphError, ShapeError, SpecError
from anyaccel.segment import NodeState, Operation, Segment
from anyaccel_torch.builtin_models import outputs_of
from anyaccel_torch.error_translation import refuse_mixing
from anyaccel_torch.forward_call import calling
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.module_state import parameters, parts

Run = Callable[[list[Any]], None]

_FRESH = NodeState()


class Wiring:
    """Numbers for the values of a segment, and functions that compute one from others.

    The inputs come first, in their order. A value wanted on another device than its own gets a number of its own
    there, and is moved once, differentiably, however many read it.
    """

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.runs: list[Run] = []
        self._needs: list[tuple[int, ...]] = []
        self._homes: dict[str, torch.device] = {}
        self._slots: dict[tuple[str, torch.device], int] = {}
        for name, (_, device) in segment.inputs.items():
            self._enter(name, torch_device(device))
        self._read = Counter(segment.outputs)
        for operation in segment.operations:
            self._read.update(operation.inputs)
        for term in segment.losses:
            self._read.update(term.inputs)
        for operation in segment.operations:
            self._add(operation, torch_device(operation.device))

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self._slots)

    def partly(self, values: list[Any]) -> None:
        """All runs whose values there are; what the others would give stays None."""
        for run, needed in zip(self.runs, self._needs, strict=True):
            if all(values[i] is not None for i in needed):
                run(values)

    def _append(self, run: Run, needed: Sequence[int]) -> None:
        self.runs.append(run)
        self._needs.append(tuple(needed))

    def slot(self, name: str, device: torch.device | None = None) -> int:
        """Number of a value, on `device` if that is given, else where it arises.

        Raises:
            GraphError: no such value so far.
        """
        if name not in self._homes:
            there = ", ".join(self._homes) or "no value"
            asked = f"{name!r} is no value of the segment so far"
            raise GraphError(asked, available=there, hint="put the operation that gives it first")
        home = self._homes[name]
        device = home if device is None else device
        if (name, device) not in self._slots:
            self._slots[name, device] = self.size
            self._append(_hop(self._slots[name, home], self._slots[name, device], device), [self._slots[name, home]])
        return self._slots[name, device]

    def _enter(self, name: str, device: torch.device) -> int:
        self._homes[name] = device
        return self._slots.setdefault((name, device), self.size)

    def _add(self, operation: Operation, device: torch.device) -> None:
        sources = [self.slot(name, device) for name in operation.inputs]
        targets = [self._enter(name, device) for name in operation.outputs]
        if operation.model is None:
            self._append(_joined(operation, sources, targets[0]), sources)
        elif not callable(operation.model):
            kind = type(operation.model).__name__
            raise SpecError(f"{operation.label!r} cannot be called: it is a {kind}", hint="give an nn.Module")
        else:
            model = self._callable(operation, device)
            if len(sources) == len(targets) == 1:
                self._append(_one_to_one(model, operation, sources[0], targets[0]), sources)
            else:
                self._append(_many(model, operation, sources, targets), sources)

    def _callable(self, operation: Operation, device: torch.device) -> Callable[..., Any]:
        """What to call; one that writes to its inputs is called with copies of them where anybody else reads them."""
        model = calling(operation.model, device, len(operation.inputs))
        shared = any(self._read[name] > 1 for name in operation.inputs)
        if not shared:
            return model
        held = parts(operation.model) if isinstance(operation.model, torch.nn.Module) else ()
        return _apart(model, writes=any(getattr(part, "inplace", False) for part in held))


def _apart(model: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
    """A call with copies of the inputs, if the model writes to them: as it says, or as its first call shows."""
    known = {True: True, False: True} if writes else {}

    def call(*inputs: Tensor) -> Any:
        training = torch.is_grad_enabled()
        if not known.get(training, True):
            return model(*inputs)
        copies = [tensor.clone() for tensor in inputs]
        found = model(*copies)
        if training not in known:
            known[training] = any(copy._version for copy in copies)  # noqa: SLF001
        return found

    return call


def _hop(source: int, target: int, device: torch.device) -> Run:
    def run(values: list[Any]) -> None:
        values[target] = values[source].to(device)

    return run


def _joined(operation: Operation, sources: Sequence[int], target: int) -> Run:
    axis = operation.axis

    def run(values: list[Any]) -> None:
        parts = [values[source] for source in sources]
        whole = axis + 1 if axis >= 0 else parts[0].ndim + axis
        if whole < 1:
            there = f"its inputs have {parts[0].ndim - 1} axes per sample, and the batch is never joined"
            asked = f"{operation.label!r} cannot join along axis {axis}"
            raise ShapeError(asked, available=there, hint="name an axis of a sample")
        values[target] = torch.cat(parts, whole)

    return run


def _one_to_one(model: Callable[..., Any], operation: Operation, source: int, target: int) -> Run:
    def run(values: list[Any]) -> None:
        try:
            found = model(values[source])
        except RuntimeError as error:
            _told(error, operation, [values[source]])
            raise
        values[target] = found if isinstance(found, Tensor) else outputs_of(found)[0]

    return run


def _many(model: Callable[..., Any], operation: Operation, sources: Sequence[int], targets: Sequence[int]) -> Run:
    def run(values: list[Any]) -> None:
        given = [values[source] for source in sources]
        try:
            found = outputs_of(model(*given))
        except RuntimeError as error:
            _told(error, operation, given)
            raise
        if len(found) != len(targets):
            raise GraphError(
                f"{operation.label!r} gives {len(found)} outputs",
                available=f"{len(targets)} stand in the graph: {', '.join(operation.outputs)}",
                hint="let the model give the same outputs every time",
            )
        for target, value in zip(targets, found, strict=True):
            values[target] = value

    return run


def _told(error: RuntimeError, operation: Operation, given: Sequence[Any]) -> None:
    inputs = dict(zip(operation.inputs, given, strict=True))
    refuse_mixing(error, f"node {operation.label!r} on {operation.device}", inputs)


def modules_of(segment: Segment, losses: Sequence[BoundLoss]) -> dict[torch.nn.Module, bool]:
    """The modules of a segment and of its own losses, each once, and whether it trains in any of its places."""
    found: dict[torch.nn.Module, bool] = {}
    trainable = {each.label: each.trainable for each in segment.operations}
    for each in segment.operations:
        if isinstance(each.model, torch.nn.Module):
            found[each.model] = each.trainable or found.get(each.model, False)
    for term, loss in zip(segment.losses, losses, strict=True):
        if loss.module is not None:
            found[loss.module] = trainable.get(term.on, True) or found.get(loss.module, False)
    return found


def members_of(
    segment: Segment, losses: Sequence[BoundLoss], nodes: Sequence[str], seen: set[int]
) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Trained parameters by node and name, own losses' as `loss.LABEL.NAME`; each once, as `seen` (ids) remembers.

    A node that has none left, as the same model stands in a node before it, is left out.
    """
    members: dict[str, dict[str, torch.nn.Parameter]] = {}
    for node in nodes:
        model = next((each.model for each in segment.operations if each.label == node), None)
        named = dict(parameters(model)) if isinstance(model, torch.nn.Module) else {}
        for term, loss in zip(segment.losses, losses, strict=True):
            if term.on == node and loss.module is not None:
                named |= {f"loss.{term.label}.{name}": found for name, found in parameters(loss.module).items()}
        mine = {name: each for name, each in named.items() if each.requires_grad and id(each) not in seen}
        if mine or id(model) not in seen:
            members[node] = mine
        seen.update(map(id, (model, *mine.values())))
    return members


def for_all(segment: Segment, states: Mapping[str, NodeState]) -> dict[str, NodeState]:
    """States by node; of nodes that share one model, all have the state of the first, which holds its parameters."""
    models, found, first = {each.label: each.model for each in segment.operations}, dict(states), dict[int, str]()
    for node in (node for group in segment.groups for node in group.nodes):
        home = first.setdefault(id(models.get(node, node)), node)
        found[node] = found[home]
    return found


def states_of(segment: Segment) -> dict[str, NodeState]:
    """The optimizer states by node; of nodes that share one model, all have the state that has slots."""
    found = dict(segment.states)
    for each in segment.operations:
        if each.model is None or found.get(each.label, _FRESH).slots:
            continue
        sharing = (other.label for other in segment.operations if other.model is each.model)
        kept = next((found[label] for label in sharing if found.get(label, _FRESH).slots), None)
        if kept is not None:
            found[each.label] = kept
    return found
