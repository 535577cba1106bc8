"""Segment: the part of a graph that one backend computes, as plain values, with the specs of its tensors."""

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
    """Shape per sample (without the batch) and dtype, by NumPy's name (`"float32"`, `"int64"`) or as `"bfloat16"`.

    Example:
        >>> from anyaccel.segment import TensorSpec
        >>> TensorSpec((3, 4), "float32").nbytes
        48
    """

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
    """An output of a model: its path in the return value, its spec per sample, and the axis of the batch.

    `batch_axis` is None for one value for a whole batch, such as a loss that the model computes; `spec` then has the
    shape of the value.
    """

    path: Path
    spec: TensorSpec
    batch_axis: int | None = 0


def positional_outputs(specs: Sequence[TensorSpec]) -> tuple[OutputSpec, ...]:
    """Return the outputs of a model that returns a tensor, or a flat tuple of tensors, batch first."""
    return tuple(OutputSpec((i,) if len(specs) > 1 else (), spec) for i, spec in enumerate(specs))


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a segment: a model, or, if `model` is None, the concatenation of its inputs along `axis` of a sample.

    `inputs` and `outputs` are names of values; the last `training_only` outputs are missing in evaluation. `trainable`
    is True if it runs in training mode in a training step, as a whole or with `modes="as_is"` the parts that are in
    training mode. `Segment.groups` define which parameters change.

    `arguments` has a path for each input: its position or keyword in the model's call, then the path in a dict or list
    there; empty if the inputs are positional. `results` and `training_results` have an OutputSpec for each output in
    that mode, None for one missing in training, which nothing reads; empty for a tensor or a flat container of tensors.
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
    """A loss of a segment: `inputs` are names of values, `device` is the device of the node `on`, `elements` counts a
    sample.

    If a backend `weighs_losses`, a named loss may have settings, in `loss.kwargs`, and columns after outputs and
    targets. Their product is the weight, with the first axes of the loss's elements or positions.
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
    """An optimizer's state for one node: the number of steps, and the slots (framework tensors) of each parameter.

    A program starts from zero if the slots or shapes do not match its own optimizer.
    """

    step: int = 0
    slots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a graph that one backend computes: operations in topological order, inputs and outputs by name.

    Attributes:
        inputs: Spec and device of each value from outside, by name, in the order of a Program's inputs.
        outputs: Names of the values that other segments or the caller need.
        needs_pullback: Inputs whose cotangents are required because trained nodes of other segments produced them.
        states: Optimizer state of earlier phases, by node.
        frozen: Models of the graph's frozen nodes of this framework by label, in the segment or not; none may change.
        compile: `"off"` if nothing may be compiled, so that each step runs the user's model line by line.
        precision: An `anyaccel.precision.SegmentPrecision`; None if operations keep the precision of their models.
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
