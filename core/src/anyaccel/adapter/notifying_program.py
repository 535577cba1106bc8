"""NotifyingProgram: what a program may do that runs several steps in one call, for listeners to each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anyaccel.program import MultiStepProgram

AfterStep = Callable[[Callable[[], Any]], bool]
"""Called after a step with a function that gives its mean losses, [1, losses]; whether no more steps are to be done."""


class NotifyingProgram(ABC):
    """Capability of a `MultiStepProgram`: it tells of each step of a call. Without it, each is a call of its own.

    It is for programs that do their steps one after the other anyway.
    """

    @abstractmethod
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
        """As `MultiStepProgram.train_steps`, with the same numbers; may end after fewer steps.

        Args:
            after_step: called after each step, when its update is done and its gradients are discarded; never raises.
                It may take snapshots, restore them, and set the modes of the models. If it gives True, that step was
                the last one.
            columns, orders, start, n_steps, batch_size, n_microbatches: as of `train_steps`.
        """


def notify_one_by_one(
    program: MultiStepProgram,
    columns: Sequence[Any],
    orders: Sequence[Any],
    start: int,
    n_steps: int,
    batch_size: int,
    after_step: AfterStep,
    n_microbatches: int = 1,
) -> list[Any]:
    """For `NotifyingProgram.train_and_notify`, where each step is a call of `train_steps`: what each of these gives."""
    more: Any = () if n_microbatches == 1 else (n_microbatches,)
    tables: list[Any] = []
    for first in range(start, start + n_steps * batch_size, batch_size):
        tables.append(program.train_steps(columns, orders, first, 1, batch_size, *more))
        if after_step(partial(tables.__getitem__, -1)):
            break
    return tables
