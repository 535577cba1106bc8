"""What a backend is given to compute: tensors' specifications, and a segment of a graph as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyaccel.device import Device
from anyaccel.specs import Loss, Optimizer


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape per sample (without the batch) and dtype, by NumPy's name (`"float32"`, `"int64"`; also `"bfloat16"`)."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size * _item_size(self.dtype)


def _item_size(dtype: str) -> int:
    bits = re.search(r"[0-9]+", dtype)
    return max(int(bits.group()) // 8, 1) if bits else 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a segment: a model, or (`model` is None) the concatenation of its inputs along `axis`.

    `inputs` and `outputs` are names of values: columns, outputs of other operations, or what crosses a border.
    `axis` counts the axes of one sample, as negative numbers do; the batch is never joined. `trainable` says whether
    it is computed in training mode while others train; what is updated then is said by the groups.
    """

    label: str
    model: Any | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: Device
    trainable: bool = True
    axis: int = -1


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A loss at work in a segment: `inputs` are names of values, `device` is that of the node it is on."""

    label: str
    on: str
    loss: Loss
    inputs: tuple[str, ...]
    device: Device
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The trainable nodes of a segment that share one optimizer. `name` is the same in every segment of a graph."""

    name: str
    optimizer: Optimizer
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeState:
    """What an optimizer keeps for one node: steps done, and per parameter its named slots (framework tensors).

    A program starts afresh where the slots or shapes are not those of its own recipe.
    """

    step: int = 0
    slots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a graph that one backend computes, made concrete: operations in order, and where values go.

    `inputs` maps the name of each value that comes from outside to its specification and the device it arrives on;
    the order is that in which a Program takes them. `needs_pullback` names those inputs whose cotangents are wanted
    (they come from trained nodes of other segments). `outputs` names the values that others need. `states` holds the
    optimizer state of earlier phases by node. `compile` is `"off"` where nothing may be compiled: what a user's model
    does, prints or raises happens in each step, line by line.
    """

    label: str
    operations: tuple[Operation, ...]
    inputs: Mapping[str, tuple[TensorSpec, Device]]
    outputs: tuple[str, ...]
    losses: tuple[LossTerm, ...] = ()
    groups: tuple[ParameterGroup, ...] = ()
    needs_pullback: tuple[str, ...] = ()
    states: Mapping[str, NodeState] = field(default_factory=dict)
    compile: str = "auto"
