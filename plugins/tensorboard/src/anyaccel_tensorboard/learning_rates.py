"""Learning rates that change while a run trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyaccel.specs import Optimizer, Schedule


@dataclass(frozen=True, slots=True)
class ScheduledRate:
    """The learning rate of an optimizer that had done `steps_before` steps when the run began."""

    tag: str
    optimizer: Optimizer
    steps_before: int

    def after(self, steps: int) -> float:
        """The rate of the last of `steps` steps of the run."""
        return self.optimizer.rate(max(self.steps_before + steps - 1, 0))


def scheduled_rates(run: Any) -> tuple[ScheduledRate, ...]:
    """A rate for each optimizer that has a schedule and something to train; called before the first step.

    The tag is `train/learning_rate` for the graph's optimizer, and `train/learning_rate.NODE` for a node's own. There
    are none where steps alternate between samplers: how many steps each node has done is not known here.
    """
    rates: dict[str, ScheduledRate] = {}
    if run.phase.kind != "train" or (run.phase.schedule or "").startswith("alternate"):
        return ()
    for node in run.plan.assignments:
        own = getattr(run.graph[node.node], "optimizer", None)
        optimizer = own or run.graph.optimizer
        if node.frozen or not node.parameters or optimizer is None or optimizer.schedule == Schedule():
            continue
        tag = "train/learning_rate" if own is None else f"train/learning_rate.{node.node}"
        states = run.graph.optimizer_states
        rates.setdefault(tag, ScheduledRate(tag, optimizer, states[node.node].step if node.node in states else 0))
    return tuple(rates.values())
