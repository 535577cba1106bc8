"""What a compiled step is made of, as plain values: two programs with equal plans can share what was compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.segment import Segment
from anyaccel_torch.forward_plan import Run
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.optimizers import GroupOptimizer


@dataclass(frozen=True, slots=True)
class Rule:
    """How some parameters are updated: a named optimizer, its settings, and the group that is clipped together.

    `start` is how far the step count of these parameters is from that of their node.
    """

    name: str
    settings: tuple[tuple[str, Any], ...]
    clip: float | None
    group: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor that is updated at once: one parameter, or several of one rule and dtype laid end to end.

    `names` and `shapes` are those of the parameters in it, by torch's names in the whole.
    """

    rule: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a step does beside calling the whole.

    `buffers` are those that a forward pass changes, by name; `weights` those of the losses, 0 for a loss that reaches
    no parameter; `written` the inputs that some module writes to; `rest` the number of values beside the inputs;
    `parts` in how many pieces a batch is computed.
    """

    rules: tuple[Rule, ...]
    pieces: tuple[Piece, ...]
    buffers: tuple[str, ...]
    weights: tuple[float, ...]
    written: tuple[int, ...]
    rest: int
    parts: int


@dataclass(frozen=True, slots=True)
class Work:
    """The parts of a program.

    `whole` holds its modules, its operations and its losses; `rest` is the number of values beside the inputs; `plain`
    is the time of a plain step in seconds, 0 where none was seen.
    """

    segment: Segment
    whole: Whole
    losses: Sequence[BoundLoss]
    groups: Sequence[GroupOptimizer]
    device: torch.device
    rest: int
    plain: float = 0.0


class Whole(nn.Module):
    """The modules of a segment under one roof, called with the list of values: computes the rest, gives the losses."""

    def __init__(self, modules: Sequence[nn.Module], runs: Sequence[Run], losses: Sequence[BoundLoss]) -> None:
        super().__init__()
        self.held = nn.ModuleList(modules)
        self.runs = list(runs)
        self.means = [loss.mean for loss in losses]

    def forward(self, values: list[Tensor]) -> list[Tensor]:
        """The mean losses of a batch, each a scalar."""
        for run in self.runs:
            run(values)
        return [mean(values) for mean in self.means]
