"""The parts of a compiled step, as plain values: programs with equal step specs share compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.formulas import OptimizerRule
from anyaccel.precision import LossScale
from anyaccel.segment import Segment
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.loss_scaling import UNSCALED, LossScaling
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.recomputation import ReplacedForwards


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """The update of some parameters: a named optimizer and its settings, with gradient limits.

    Attributes:
        optimizer: The formula.
        settings: Settings of the formula, by name.
        coefficients: Names of the numbers that change from step to step.
        slots: Names of the slots of each parameter.
        clip_norm, clip_value: Limits of the gradients, None for none.
        group: Group of the gradients with the norm that is clipped.
    """

    optimizer: OptimizerRule
    settings: tuple[tuple[str, Any], ...]
    coefficients: tuple[str, ...]
    slots: tuple[str, ...]
    clip_norm: float | None
    clip_value: float | None
    group: int


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor that is updated at once: one parameter, or several of one rule and dtype flattened end to end.

    Attributes:
        rule: Index of its update rule.
        names: Names of its parameters in the `SegmentModule`.
        shapes, sizes: Shape and number of elements of each.
    """

    rule: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Everything that a step does, apart from calling the `SegmentModule`.

    Attributes:
        rules: Update rules.
        blocks: Blocks to update, with their rules.
        buffers: Names of the buffers that a forward pass changes.
        places: Every name of a parameter or buffer, and its name here; a layer in two places has one.
        weights: Weights of the losses, 0 for a loss that reaches no parameter.
        mutated: Indices of the inputs that some module writes to.
        n_computed: Number of values in addition to the inputs.
        n_microbatches: Number of equal parts of a batch.
        loss_scale: Loss scale; None if losses are not scaled.
        recomputes: Whether some values are computed again in the backward pass.
    """

    rules: tuple[UpdateRule, ...]
    blocks: tuple[Block, ...]
    buffers: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    weights: tuple[float, ...]
    mutated: tuple[int, ...]
    n_computed: int
    n_microbatches: int
    loss_scale: LossScale | None = None
    recomputes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """The parts of a program that are compiled.

    Attributes:
        module: Module with its modules, operations and losses.
        n_computed: Number of values in addition to the inputs.
        eager_seconds: Time of an uncompiled step, 0 if not measured yet.
        scaling: Loss scaling.
        forwards: Forward methods of modules with parts that are computed again.
    """

    segment: Segment
    module: SegmentModule
    losses: Sequence[BoundLoss]
    groups: Sequence[GroupOptimizer]
    device: torch.device
    n_computed: int
    eager_seconds: float = 0.0
    scaling: LossScaling = UNSCALED
    forwards: Sequence[ReplacedForwards] = ()

    @property
    def recomputes(self) -> bool:
        """Whether some values are computed again in the backward pass."""
        return self.segment.precision is not None and bool(self.segment.precision.recomputed)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The trained parameters of all groups."""
        return [parameter for group in self.groups for parameter in group.parameters]


class SegmentModule(nn.Module):
    """All modules of a segment as one: called with the list of values, it computes the others, and the losses."""

    def __init__(self, modules: Sequence[nn.Module], runs: Sequence[Run], losses: Sequence[BoundLoss]) -> None:
        super().__init__()
        self.models = nn.ModuleList(modules)
        self.runs = list(runs)
        self.means = [loss.mean for loss in losses]
        self.weights = [loss.total_weight for loss in losses if loss.total_weight is not None]

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        """The mean losses of a batch, and the weights of those that weigh rows, each a scalar."""
        for run in self.runs:
            run(values)
        return [compute(values) for compute in (*self.means, *self.weights)]
