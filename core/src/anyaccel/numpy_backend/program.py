"""NumpyProgram: the program of a segment in NumPy, which tells of each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from anyaccel.adapter import ArrayProgram
from anyaccel.adapter.told_steps import AfterStep, ToldSteps


class NumpyProgram(ArrayProgram, ToldSteps):
    """An `ArrayProgram` that does its steps one after the other in any case."""

    def train_told_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        after_step: AfterStep,
        n_microbatches: int = 1,
    ) -> Any:
        """As of `ToldSteps`."""
        tables: list[Any] = []
        for first in range(start, start + n_steps * batch_size, batch_size):
            tables.append(self.train_steps(columns, orders, first, 1, batch_size, n_microbatches))
            if after_step(partial(tables.__getitem__, -1)):
                break
        return self._ops.xp.concatenate(tables)
