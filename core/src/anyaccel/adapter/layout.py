"""What follows from a segment alone: who owns which parameters, where values are, and what flows back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.adapter.ops import ArrayOps
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.segment import Segment


class Layout:
    """Facts of a segment, by label and by name of value.

    `owner` maps each operation with a model to the operation that its parameters go by: the first trainable one of
    those that share the model. `device` says where an owner's parameters are. `groups` maps each parameter group to
    its owners, none of them twice. `home` is the device on which a value is made. `wanted` has the values whose
    cotangents matter.

    Raises:
        GraphError: two different models share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        modelled = [op for op in segment.operations if op.model is not None]
        first: dict[int, str] = {}
        for op in sorted(modelled, key=lambda op: not op.trainable):
            first.setdefault(id(op.model), op.label)
        self.owner = {op.label: first[id(op.model)] for op in modelled}
        self.models: dict[str, Any] = {op.label: op.model for op in modelled if self.owner[op.label] == op.label}
        self.device = {op.label: op.device for op in modelled if op.label in self.models}
        self.trained = _trained(segment)
        self.groups = _groups(segment, self.owner, self.trained)
        self.home = _homes(segment)
        self.wanted = self._wanted(segment, ops)
        _refuse_ties(self.models, ops)

    def _wanted(self, segment: Segment, ops: ArrayOps) -> set[str]:
        wanted = set(segment.needs_pullback)
        for op in segment.operations:
            learns = op.label in self.trained and bool(ops.parameters(op.model))
            if learns or wanted.intersection(op.inputs):
                wanted.update(op.outputs)
        return wanted


def _trained(segment: Segment) -> set[str]:
    grouped = {node for group in segment.groups for node in group.nodes}
    return {op.label for op in segment.operations if op.trainable and op.model is not None and op.label in grouped}


def _groups(segment: Segment, owner: Mapping[str, str], trained: set[str]) -> dict[str, tuple[str, ...]]:
    return {
        group.name: tuple(dict.fromkeys(owner[node] for node in group.nodes if node in trained))
        for group in segment.groups
    }


def _homes(segment: Segment) -> dict[str, Device]:
    home = {name: device for name, (_, device) in segment.inputs.items()}
    home.update((name, op.device) for op in segment.operations for name in op.outputs)
    return home


def _refuse_ties(models: Mapping[str, Any], ops: ArrayOps) -> None:
    holders: dict[int, str] = {}
    for label, model in models.items():
        for name, array in ops.parameters(model).items():
            holder = holders.setdefault(id(array), label)
            if holder != label:
                raise GraphError(
                    f"nodes {holder!r} and {label!r} have different models that share the parameter {name!r}",
                    remedy="give both nodes the same model object, or each its own parameters",
                )
