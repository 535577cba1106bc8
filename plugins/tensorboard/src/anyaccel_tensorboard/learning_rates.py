"""Learning rates that change while a run trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyaccel.specs import Optimizer, Schedule


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of an optimizer that has done `before` steps when the run begins."""

    tag: str
    optimizer: Optimizer
    before: int

    def after(self, steps: int) -> float:
        """The rate with which the last of `steps` steps of the run was done."""
        return self.optimizer.rate(max(self.before + steps - 1, 0))


def rates(run: Any) -> tuple[Rate, ...]:
    """One for each optimizer with a schedule that has something to train; asked before the first step.

    The tag is `train/learning_rate` for the graph's optimizer, and `train/learning_rate.NODE` for a node's own. None
    where steps alternate between samplers: what each node has done cannot be told from outside.
    """
    found: dict[str, Rate] = {}
    if run.phase.kind != "train" or (run.phase.schedule or "").startswith("alternate"):
        return ()
    for one in run.plan.assignments:
        own = getattr(run.graph[one.node], "optimizer", None)
        optimizer = own or run.graph.optimizer
        if one.frozen or not one.parameters or optimizer is None or optimizer.schedule == Schedule():
            continue
        tag = "train/learning_rate" if own is None else f"train/learning_rate.{one.node}"
        states = run.graph.optimizer_states
        found.setdefault(tag, Rate(tag, optimizer, states[one.node].step if one.node in states else 0))
    return tuple(found.values())
