"""FinishedSteps: the training steps that one call has done, with their losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.loss_accumulator import step_means


class FinishedSteps:
    """Consecutive steps of an epoch, as `steps_done` of plugins and callbacks gets them.

    It may be kept: it holds the losses, on their device until they are read.

    Attributes:
        epoch: number of the epoch within the run, from 0.
        numbers: of the steps within the epoch, from 0.
    """

    def __init__(self, epoch: int, numbers: range, losses: Sequence[Losses]) -> None:
        self.epoch, self.numbers = epoch, numbers
        self._losses = losses

    def __repr__(self) -> str:
        return f"FinishedSteps(epoch {self.epoch}, steps {self.numbers[0]} to {self.numbers[-1]})"

    def __len__(self) -> int:
        return len(self.numbers)

    def losses(self) -> dict[str, np.ndarray]:
        """The mean loss of each step, float64 [number of steps], by label. Waits for the device.

        With a step of your own, what it gave by name. NaN for a step in which a loss had no rows.
        """
        return step_means(self._losses, len(self))
