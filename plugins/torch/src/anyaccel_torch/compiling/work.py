"""What is compiled: the parts of a program, as the program itself uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyaccel.segment import Segment
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.wiring import Run


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
