"""Runnable: what `ModelGraph.run` runs. Phases, which stand above graphs, derive from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError


class Runnable:
    """What can be run on a graph."""

    label: str

    def run_on(
        self,
        graph: Any,
        *others: Runnable,
        callbacks: Iterable[Any] = (),
        progress: Any = "auto",
        resume: str = "never",
    ) -> list[Any]:
        """Run this on a graph, and then the others, in order.

        Args:
            graph: the ModelGraph.
            others: run afterwards.
            callbacks, progress, resume: as of `ModelGraph.run`.

        Returns:
            the results of each.

        Raises:
            AnyaccelError: one of them cannot run.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")


def checked_runnable(value: Any, who: str) -> Runnable:
    """A phase from an argument.

    Args:
        value: what was given.
        who: is to run it, for messages.

    Raises:
        PhaseError: it is no phase.
    """
    if isinstance(value, Runnable):
        return value
    hint = "pass a TrainPhase, EvalPhase or FitPhase"
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, Runnable) for part in value):
        hint = "give phases one by one: run(*phases)"
    elif isinstance(value, type) and issubclass(value, Runnable):
        hint = f"create one: {value.__name__}('name', data='train', ...)"
    elif isinstance(value, str):
        hint = "pass the phase itself, not its label: run(TrainPhase(...))"
    raise PhaseError(f"{who} cannot run {shown(value)}", hint=hint)
