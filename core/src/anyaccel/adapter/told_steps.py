"""ToldSteps: what a program may do that runs several steps in one call, for listeners to each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

AfterStep = Callable[[Callable[[], Any]], bool]
"""Called after a step with a function that gives its mean losses, [1, losses]; whether no more steps are to be done."""


class ToldSteps(ABC):
    """Capability of a `MultiStepProgram`: it tells of each step of a call. Without it, each is a call of its own.

    It is for programs that do their steps one after the other anyway.
    """

    @abstractmethod
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
        """As `MultiStepProgram.train_steps`, with the same numbers; may end after fewer steps.

        Args:
            after_step: called after each step, when its update is done and its gradients are discarded; never raises.
                It may take snapshots, restore them, and set the modes of the models. If it gives True, that step was
                the last one.
            columns, orders, start, n_steps, batch_size, n_microbatches: as of `train_steps`.
        """
