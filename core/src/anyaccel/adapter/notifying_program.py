"""NotifyingProgram: a program that runs several steps in a single call and notifies listeners of each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anyaccel.program import MultiStepProgram

AfterStep = Callable[[Callable[[], Any]], bool]
"""Called after a step with a function that gives its mean losses, [1, losses]; whether no more steps are to be done."""


class NotifyingProgram(ABC):
    """Capability of a `MultiStepProgram`: report each step of a call. Otherwise each step is a separate call.

    It suits programs that run their steps in sequence anyway.
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
        """Run steps like `MultiStepProgram.train_steps`, with the same numbers; it may end after fewer steps.

        Args:
            after_step: Function called after each step, when its update is done and its gradients are discarded; it
                never raises. It may take snapshots, restore them, and set the modes of the models. If it returns True,
                that step was the last one.
            columns, orders, start, n_steps, batch_size, n_microbatches: See `train_steps`.
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
    """Run `NotifyingProgram.train_and_notify` as one call of `train_steps` per step; return the result of each call."""
    more: Any = () if n_microbatches == 1 else (n_microbatches,)
    tables: list[Any] = []
    for first in range(start, start + n_steps * batch_size, batch_size):
        tables.append(program.train_steps(columns, orders, first, 1, batch_size, *more))
        if after_step(partial(tables.__getitem__, -1)):
            break
    return tables
