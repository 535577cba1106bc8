"""What follows from a segment alone: who owns which parameters, where values are, and what flows back."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from typing import Any

from anyaccel.adapter.ops import ArrayOps
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.segment import Segment


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
                    remedy="give both nodes the same model object, or each its own parameters",
                )


def devices_of(segment: Segment) -> set[Device]:
    """Every device that a value of the segment is on."""
    used = {op.device for op in segment.operations} | {term.device for term in segment.losses}
    return used | {device for _, device in segment.inputs.values()}
