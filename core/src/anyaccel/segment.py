"""Segment: the part of a graph that one backend computes, as plain values; and the specs of its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
        bits = re.search(r"[0-9]+", self.dtype)
        return math.prod(self.shape) * (max(int(bits.group()) // 8, 1) if bits else 1)


Path = tuple[str | int, ...]
"""The way to a value in nested containers: keys of mappings and names of fields, and positions in sequences."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output of a model: the path to it in what the model returns, its spec per sample, and the axis of the batch.

    `batch_axis` is None for one value for a whole batch, such as a loss that the model computes: `spec` has its shape.
    """

    path: Path
    spec: TensorSpec
    batch_axis: int | None = 0


def positional_outputs(specs: Sequence[TensorSpec]) -> tuple[OutputSpec, ...]:
    """Outputs of a model that returns a tensor, or a flat tuple of them, batch first."""
    return tuple(OutputSpec((i,) if len(specs) > 1 else (), spec) for i, spec in enumerate(specs))


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a segment: a model, or, if `model` is None, the concatenation of its inputs along `axis` of a sample.

    `inputs` and `outputs` are names of values; the last `training_only` outputs are missing in evaluation. `trainable`
    says whether it runs in training mode in a training step, as a whole or with `modes="as_is"` those parts that are in
    it; `Segment.groups` say which parameters change.

    `arguments` has a path for each input: its position or keyword in the model's call, then the way into a dict or list
    there; empty where the inputs are positional. `results` and `training_results` have an OutputSpec for each output in
    that mode, None for one missing in training, which nothing reads; empty for a tensor, or a flat container of them.
    """

    label: str
    model: Any | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: Device
    trainable: bool = True
    axis: int = -1
    arguments: tuple[Path, ...] = ()
    results: tuple[OutputSpec, ...] = ()
    training_results: tuple[OutputSpec | None, ...] = ()
    training_only: int = 0
    modes: str = "train"


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A loss of a segment: `inputs` are names of values, `device` that of the node `on`; `elements` count in a sample.

    Where a backend `weighs_losses`, a named loss may have settings, in `loss.kwargs`, and columns after outputs and
    targets, whose product weighs it: with the first axes of its elements or positions.
    """

    label: str
    on: str
    loss: Loss
    inputs: tuple[str, ...]
    device: Device
    weight: float = 1.0
    elements: int = 1


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The trainable nodes of a segment that share an optimizer. `name` is the same in every segment of a graph."""

    name: str
    optimizer: Optimizer
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeState:
    """An optimizer's state of one node: the number of steps, and for each parameter its slots (framework tensors).

    A program starts from zero where the slots or shapes do not match its own optimizer.
    """

    step: int = 0
    slots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a graph that one backend computes: operations in topological order, inputs and outputs by name.

    Attributes:
        inputs: spec and device of each value from outside, by name, in the order in which a Program takes them.
        outputs: names of the values that other segments or the caller need.
        needs_pullback: the inputs whose cotangents are wanted, because trained nodes of other segments gave them.
        states: optimizer state of earlier phases, by node.
        frozen: models of the graph's frozen nodes of this framework by label, in the segment or not: none may change.
        compile: `"off"` if nothing may be compiled, so that each step runs the user's model line by line.
        precision: an `anyaccel.precision.SegmentPrecision`; None where operations are computed as they are.
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
    frozen: Mapping[str, Any] = field(default_factory=dict)
    precision: Any = None
