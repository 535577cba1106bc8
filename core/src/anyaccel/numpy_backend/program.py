"""NumpyProgram: the program of a segment in NumPy, which tells of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.adapter import ArrayProgram
from anyaccel.adapter.notifying_program import AfterStep, NotifyingProgram, notify_one_by_one


class NumpyProgram(ArrayProgram, NotifyingProgram):
    """An `ArrayProgram` that does its steps one after the other in any case."""

    def train_and_notify(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        after_step: AfterStep,
        n_microbatches: int = 1,
    ) -> Any:
        """As of `NotifyingProgram`."""
        told = notify_one_by_one(self, columns, orders, start, n_steps, batch_size, after_step, n_microbatches)
        return self._ops.xp.concatenate(told)
