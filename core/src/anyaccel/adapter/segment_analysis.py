"""What follows from a segment alone: who owns which parameters, where values are, and what flows back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, LossResult
from anyaccel.adapter.losses import loss_function
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.segment import LossTerm, Operation, Segment


class Layout:
    """Facts of a segment, by label and by name of value.

    `owner` maps each operation with a model to the operation that its parameters go by: the first trainable one of
    those that share the model. `models`, `parameters` and `device` are by owner. `trained` has the operations that
    learn, `groups` maps each parameter group to its owners, none of them twice. `home` is the device on which a value
    is made. `wanted` has the values whose cotangents matter.

    Raises:
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        modelled = [op for op in segment.operations if op.model is not None]
        first: dict[int, str] = {}
        for op in sorted(modelled, key=lambda op: not op.trainable):
            first.setdefault(id(op.model), op.label)
        self.owner = {op.label: first[id(op.model)] for op in modelled}
        self.models: dict[str, Any] = {op.label: op.model for op in modelled if self.owner[op.label] == op.label}
        self.parameters = {label: dict(ops.parameters(model)) for label, model in self.models.items()}
        self.device = {op.label: op.device for op in modelled if op.label in self.models}
        grouped = {node for group in segment.groups for node in group.nodes}
        self.trained = {
            op.label
            for op in modelled
            if op.trainable and op.label in grouped and self.parameters[self.owner[op.label]]
        }
        self.groups = {
            group.name: tuple(dict.fromkeys(self.owner[node] for node in group.nodes if node in self.trained))
            for group in segment.groups
        }
        self.home = {name: device for name, (_, device) in segment.inputs.items()}
        self.home.update((name, op.device) for op in segment.operations for name in op.outputs)
        self.wanted = self._wanted(segment)
        _refuse_ties(self.parameters, {self.owner[label] for label in self.trained})

    def bare(self) -> Layout:
        """The same without models and their arrays."""
        found = copy.copy(self)
        found.models, found.parameters = {}, {}
        return found

    def _wanted(self, segment: Segment) -> set[str]:
        wanted = set(segment.needs_pullback)
        for op in segment.operations:
            if op.label in self.trained or wanted.intersection(op.inputs):
                wanted.update(op.outputs)
        return wanted


def _refuse_ties(parameters: Mapping[str, Mapping[str, Any]], learning: Set[str]) -> None:
    holders: dict[int, str] = {}
    for label, arrays in parameters.items():
        for name, array in arrays.items():
            holder = holders.setdefault(id(array), label)
            if holder != label and not learning.isdisjoint((holder, label)):
                raise GraphError(
                    f"nodes {holder!r} and {label!r} have different models that share the parameter {name!r}",
                    hint="give both nodes the same model object, or each its own parameters",
                )


def devices_of(segment: Segment) -> set[Device]:
    """Every device that a value of the segment is on."""
    used = {op.device for op in segment.operations} | {term.device for term in segment.losses}
    return used | {device for _, device in segment.inputs.values()}


class Reach:
    """Facts of a segment for whoever differentiates it as a whole.

    Attributes:
        ends: values that losses or other segments take, and whose cotangents matter.
        learning: owners of trained operations.
        constant: owners whose parameters some operation takes as they are.
    """

    def __init__(self, segment: Segment, layout: Layout) -> None:
        self._judged = {term.label: layout.wanted.intersection(term.inputs) for term in segment.losses}
        judged = {name for term in segment.losses for name in term.inputs}
        self.ends = tuple(name for name in dict.fromkeys([*segment.outputs, *judged]) if name in layout.wanted)
        self.learning = {layout.owner[label] for label in layout.trained}
        self.constant = {owner for label, owner in layout.owner.items() if label not in layout.trained}
        self._owner = {label: layout.owner[label] for label in layout.trained}
        self._leads = _leads(segment, set(self.ends))

    def active(self, outputs: Iterable[str], losses: Iterable[str] | None = None) -> frozenset[str]:
        """The ends that gradients come from, if there are these losses (all by default) and cotangents for outputs."""
        judged = (self._judged[label] for label in (self._judged if losses is None else losses))
        return frozenset().union(*judged, (name for name in outputs if name in self.ends))

    def owners(self, active: frozenset[str]) -> set[str]:
        """The owners whose gradients come from these ends."""
        return {owner for label, owner in self._owner.items() if self._leads[label] & active}


def _leads(segment: Segment, ends: set[str]) -> dict[str, set[str]]:
    """By operation, the ends that depend on it."""
    found: dict[str, set[str]] = {}
    behind: dict[str, set[str]] = {}
    for op in reversed(segment.operations):
        found[op.label] = (ends & set(op.outputs)).union(*(behind.get(name, set()) for name in op.outputs))
        for name in op.inputs:
            behind.setdefault(name, set()).update(found[op.label])
    return found


class Wired:
    """A segment's operations and losses over `Values`.

    Attributes:
        segment: what is computed.
        ops: by which framework.
        layout: where values and parameters are.

    Raises:
        SpecError: a loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: Layout | None = None) -> None:
        self.segment = segment
        self.ops = ops
        self.layout = Layout(segment, ops) if layout is None else layout
        self._losses = [(term, loss_function(ops, term)) for term in segment.losses]

    def begin(self, inputs: Sequence[Any]) -> Values:
        """The values of a step so far: its inputs, None for those that it lacks."""
        values = Values(self.ops, self.layout.home)
        for name, value in zip(self.segment.inputs, inputs, strict=True):
            values.put(name, value)
        return values

    def given(self, op: Operation, values: Values) -> tuple[Any, ...] | None:
        """An operation's inputs, on its device; None if this step lacks one, as it then does the outputs."""
        if values.lacks(op.inputs):
            self.enter(op, (None,) * len(op.outputs), values)
            return None
        return tuple(values.on(name, op.device) for name in op.inputs)

    def enter(self, op: Operation, outputs: Sequence[Any], values: Values) -> None:
        """Add what an operation gave."""
        for name, output in zip(op.outputs, outputs, strict=True):
            values.put(name, output)

    def outputs(self, values: Values) -> tuple[Any, ...]:
        """What other segments take; None for what this step lacks."""
        return tuple(values.home(name) for name in self.segment.outputs)

    def judge(self, values: Values) -> list[tuple[LossTerm, LossResult]]:
        """Every loss whose inputs there are, on its device."""
        return [
            (term, loss([values.on(name, term.device) for name in term.inputs]))
            for term, loss in self._losses
            if not values.lacks(term.inputs)
        ]


def pairs(judged: Sequence[tuple[LossTerm, LossResult]]) -> dict[str, tuple[Any, Any]]:
    """Losses as (sum, weight), by label."""
    return {term.label: (loss.sum, loss.weight) for term, loss in judged}


class Values:
    """Values by name; each crosses to another device at most once a step."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._found: dict[tuple[str, Device], Any] = {}

    def put(self, name: str, value: Any) -> None:
        """Enter a value that is on its home device; None if this step lacks it."""
        self._found[name, self._home[name]] = value

    def on(self, name: str, device: Device) -> Any:
        """The value on a device."""
        if (name, device) not in self._found:
            value = self.home(name)
            self._found[name, device] = None if value is None else self._ops.move(value, device)
        return self._found[name, device]

    def lacks(self, names: Iterable[str]) -> bool:
        """Whether this step lacks one of some values."""
        return any(self.home(name) is None for name in names)

    def home(self, name: str) -> Any:
        """The value where it was made; None if this step lacks it."""
        return self._found[name, self._home[name]]


class Cotangents:
    """Cotangents by name; those of one device are added up there before they cross home."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._found: dict[str, dict[Device, Any]] = {}

    def add(self, name: str, device: Device, cotangent: Any) -> None:
        """Add a cotangent that is on `device`."""
        there = self._found.setdefault(name, {})
        there[device] = there[device] + cotangent if device in there else cotangent

    def take(self, name: str) -> Any | None:
        """The whole cotangent on the value's home device; None where nothing flowed back."""
        total = None
        for cotangent in self._found.pop(name, {}).values():
            moved = self._ops.move(cotangent, self._home[name])
            total = moved if total is None else total + moved
        return total
