"""What follows from a segment alone: who owns which parameters, where values are, and where gradients flow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, LossResult
from anyaccel.adapter.call_layout import POSITIONAL, layout_of
from anyaccel.adapter.losses import divisor, loss_function, total_weight, weight_inputs
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.segment import LossTerm, Operation, Segment


class SegmentLayout:
    """Who owns which parameters in a segment, and on which device each value is made.

    Attributes:
        owner: by operation with a model, the operation under whose label its parameters are kept: the first trainable
            one of those that share the model.
        models: by owner.
        parameters: by owner and name.
        owner_device: by owner.
        trained: labels of the operations that learn.
        groups: by parameter group, its owners, each once.
        home: by name of value, the device on which it is made.
        needs_cotangent: names of the values whose cotangents matter.

    Raises:
        GraphError: two different models, one of which learns, share a parameter; or a complex parameter would learn.
    """

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        modelled = [op for op in segment.operations if op.model is not None]
        first: dict[int, str] = {}
        for op in sorted(modelled, key=lambda op: not op.trainable):
            first.setdefault(id(op.model), op.label)
        self.owner = {op.label: first[id(op.model)] for op in modelled}
        self.models: dict[str, Any] = {op.label: op.model for op in modelled if self.owner[op.label] == op.label}
        self.parameters = {label: dict(ops.parameters(model)) for label, model in self.models.items()}
        self.weight_dtype = _double_dtype(ops, self.parameters)
        self.owner_device = {op.label: op.device for op in modelled if op.label in self.models}
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
        self.needs_cotangent = self._needs_cotangent(segment)
        elsewhere = {label: model for label, model in segment.frozen.items() if label not in self.owner}
        frozen = {label: dict(ops.parameters(model)) for label, model in elsewhere.items()} if self.trained else {}
        trained = {self.owner[label] for label in self.trained}
        _refuse_shared_parameters({**self.parameters, **frozen}, trained)
        _refuse_complex_parameters(ops, self.parameters, trained)

    def without_models(self) -> SegmentLayout:
        """The same without models and their arrays."""
        layout = copy.copy(self)
        layout.models, layout.parameters = {}, {}
        return layout

    def _needs_cotangent(self, segment: Segment) -> set[str]:
        names = set(segment.needs_pullback)
        for op in segment.operations:
            if op.label in self.trained or names.intersection(op.inputs):
                names.update(op.outputs)
        return names


def _double_dtype(ops: ArrayOps, parameters: Mapping[str, Mapping[str, Any]]) -> Any:
    """The dtype of 64 bits that some parameter has; None where none has."""
    arrays = (array for held in parameters.values() for array in held.values())
    return next((x.dtype for x in arrays if ops.kind(x) == "floating" and ops.itemsize(x) == 8), None)


def _refuse_shared_parameters(parameters: Mapping[str, Mapping[str, Any]], trained: Set[str]) -> None:
    holders: dict[int, str] = {}
    for label, arrays in parameters.items():
        for name, array in arrays.items():
            holder = holders.setdefault(id(array), label)
            if holder != label and not trained.isdisjoint((holder, label)):
                frozen = {holder, label} - trained
                raise GraphError(
                    f"nodes {holder!r} and {label!r} have different models that share the parameter {name!r}"
                    + (f", and {', '.join(map(repr, frozen))} is frozen" if frozen else ""),
                    hint="freeze both, or give each node its own parameters"
                    if frozen
                    else "give both nodes the same model object, or each its own parameters",
                )


def _refuse_complex_parameters(ops: ArrayOps, parameters: Mapping[str, Mapping[str, Any]], trained: Set[str]) -> None:
    """Update rules are those of real numbers, and frameworks disagree on whether a complex gradient is conjugated."""
    for label in sorted(trained):
        for name, array in parameters[label].items():
            if ops.kind(array) == "complex":
                raise GraphError(
                    f"the parameter {name!r} of node {label!r} is complex ({array.dtype}) and cannot be trained",
                    hint="hold its real and imaginary parts as two real parameters, or freeze the node",
                )


def devices_of(segment: Segment) -> set[Device]:
    """Every device that a value of the segment is on."""
    used = {op.device for op in segment.operations} | {term.device for term in segment.losses}
    return used | {device for _, device in segment.inputs.values()}


class GradientFlow:
    """Where gradients flow in a segment that is differentiated as a whole.

    Attributes:
        ends: values with a cotangent that losses or other segments take: where gradients enter.
        trained_owners: owners of trained operations.
        constant_owners: owners whose parameters some operation takes as constants.
    """

    def __init__(self, segment: Segment, layout: SegmentLayout) -> None:
        self._loss_ends = {term.label: layout.needs_cotangent.intersection(term.inputs) for term in segment.losses}
        candidates = dict.fromkeys([*segment.outputs, *(name for term in segment.losses for name in term.inputs)])
        self.ends = tuple(name for name in candidates if name in layout.needs_cotangent)
        self.trained_owners = {layout.owner[label] for label in layout.trained}
        self.constant_owners = {owner for label, owner in layout.owner.items() if label not in layout.trained}
        self._owner = {label: layout.owner[label] for label in layout.trained}
        self._ends_of = _dependent_ends(segment, set(self.ends))

    def active_ends(self, outputs: Iterable[str], losses: Iterable[str] | None = None) -> frozenset[str]:
        """The ends that gradients come from, given cotangents for some outputs and some losses (default: all)."""
        labels = self._loss_ends if losses is None else losses
        by_losses = (self._loss_ends[label] for label in labels)
        return frozenset().union(*by_losses, (name for name in outputs if name in self.ends))

    def reached_owners(self, active_ends: frozenset[str]) -> set[str]:
        """The owners whose parameters get gradients from these ends."""
        return {owner for label, owner in self._owner.items() if self._ends_of[label] & active_ends}


def _dependent_ends(segment: Segment, ends: set[str]) -> dict[str, set[str]]:
    """By operation, the ends that depend on it."""
    by_operation: dict[str, set[str]] = {}
    by_value: dict[str, set[str]] = {}
    for op in reversed(segment.operations):
        by_operation[op.label] = (ends & set(op.outputs)).union(*(by_value.get(name, set()) for name in op.outputs))
        for name in op.inputs:
            by_value.setdefault(name, set()).update(by_operation[op.label])
    return by_operation


class SegmentDataflow:
    """The operations and losses of a segment, over the `StepValues` of one step.

    Attributes:
        segment: what is computed.
        ops: the framework.
        layout: where values and parameters are.
        weighted: the losses that weigh rows or positions, with the names of the columns that say how.
        calls, training_calls: by operation, what its call is given besides in evaluation and in training: its `layout`,
            where it is not positional; its `precision`, where that is not the model's; `remat`, where it has some.

    Raises:
        SpecError: a loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: SegmentLayout | None = None) -> None:
        self.segment = segment
        self.ops = ops
        self.layout = SegmentLayout(segment, ops) if layout is None else layout
        self.calls = {op.label: _call_keywords(segment, op, training=False) for op in segment.operations}
        self.training_calls = {op.label: _call_keywords(segment, op, training=True) for op in segment.operations}
        self._losses = [(term, loss_function(ops, term)) for term in segment.losses]
        self.weighted = {term: names for term in segment.losses if (names := weight_inputs(term))}

    def run(self, inputs: Sequence[Any], call: Callable[[Operation, tuple[Any, ...]], Sequence[Any]]) -> StepValues:
        """The values of a step.

        Args:
            inputs: in the order of `segment.inputs`; None for those that are missing in this step.
            call: the outputs of an operation for its inputs, on its device. It is not called where one is missing.
        """
        values = StepValues(self.ops, self.layout.home)
        values.put_all(self.segment.inputs, inputs)
        for op in self.segment.operations:
            if values.lacks(op.inputs):
                outputs: Sequence[Any] = (None,) * len(op.outputs)
            else:
                outputs = call(op, tuple(values.on(name, op.device) for name in op.inputs))
            values.put_all(op.outputs, outputs)
        return values

    def outputs(self, values: StepValues) -> tuple[Any, ...]:
        """The segment's outputs; None for those that are missing."""
        return tuple(values.at_home(name) for name in self.segment.outputs)

    def losses(self, values: StepValues) -> list[tuple[LossTerm, LossResult]]:
        """Every loss that has all its inputs, on its device."""
        return [
            (term, loss([values.on(name, term.device) for name in term.inputs]))
            for term, loss in self._losses
            if not values.lacks(term.inputs)
        ]

    def loss_weights(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """As `summed_weights`, 1 in place of 0."""
        return {term.label: divisor(self.ops, term, weight) for term, weight in self._summed_weights(columns)}

    def summed_weights(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of those losses whose columns are there, by label, on their devices."""
        return {term.label: weight for term, weight in self._summed_weights(columns)}

    def _summed_weights(self, columns: Mapping[str, Any]) -> Iterator[tuple[LossTerm, Any]]:
        for term, names in self.weighted.items():
            if all(columns.get(name) is not None for name in names):
                yield term, total_weight(self.ops, term, [columns[name] for name in names], self.layout.weight_dtype)


def _call_keywords(segment: Segment, op: Operation, *, training: bool) -> dict[str, Any]:
    layout = layout_of(op, training=training)
    keywords: dict[str, Any] = {} if layout is POSITIONAL else {"layout": layout}
    if segment.precision is None:
        return keywords
    precision, remat = segment.precision.of(op.label), segment.precision.remat(op.label)
    keywords |= {} if precision is None else {"precision": precision}
    return keywords | ({"remat": remat} if remat and training else {})


def loss_sums(results: Sequence[tuple[LossTerm, LossResult]]) -> dict[str, tuple[Any, Any]]:
    """Losses as (sum, weight), by label."""
    return {term.label: (loss.sum, loss.weight) for term, loss in results}


class StepValues:
    """The values of one step by name; each is moved to another device at most once."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._values: dict[tuple[str, Device], Any] = {}

    def put_all(self, names: Iterable[str], values: Iterable[Any]) -> None:
        """Add values that are on their home devices; None for missing ones."""
        for name, value in zip(names, values, strict=True):
            self._values[name, self._home[name]] = value

    def on(self, name: str, device: Device) -> Any:
        """The value on a device."""
        if (name, device) not in self._values:
            value = self.at_home(name)
            edge = ("outputs of", name)
            self._values[name, device] = None if value is None else _crossed(self._ops, value, device, edge)
        return self._values[name, device]

    def lacks(self, names: Iterable[str]) -> bool:
        """Whether one of some values is missing in this step."""
        return any(self.at_home(name) is None for name in names)

    def at_home(self, name: str) -> Any:
        """The value on the device where it was made; None if it is missing."""
        return self._values[name, self._home[name]]


def _crossed(ops: ArrayOps, value: Any, device: Device, edge: tuple[str, str]) -> Any:
    """A value that crosses between nodes, on `device`; ledgers read `edge` from the stack."""
    return ops.move(value, device)


class CotangentSums:
    """Cotangents by name; those of one device are summed there before they are moved home."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._sums: dict[str, dict[Device, Any]] = {}

    def add(self, name: str, device: Device, cotangent: Any) -> None:
        """Add a cotangent that is on `device`."""
        sums = self._sums.setdefault(name, {})
        sums[device] = sums[device] + cotangent if device in sums else cotangent

    def take(self, name: str) -> Any | None:
        """Remove and return the total on the value's home device; None where nothing flowed back."""
        total = None
        for cotangent in self._sums.pop(name, {}).values():
            moved = _crossed(self._ops, cotangent, self._home[name], ("gradients of", name))
            total = moved if total is None else total + moved
        return total
