"""Run: one execution of a phase, as plugins and callbacks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyaccel.data import Rows
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.phases.estimator_fit import Fitted
from anyaccel.phases.evaluation import Figures
from anyaccel.phases.events import Event, log
from anyaccel.phases.executor.links import Losses
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.loss_accumulator import Tally


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch gave. `number` counts from 0 over all runs of phases of this label.

    `losses` are means over the epoch by label, `loss` is their weighted sum (NaN of none), and `validation` holds what
    the validation after this epoch gave (`loss`, `loss.LABEL`, metrics), empty if there was none.
    """

    number: int
    loss: float
    losses: dict[str, float]
    steps: int
    seconds: float
    validation: dict[str, float] = field(default_factory=dict)

    @property
    def validated(self) -> bool:
        """Whether there was a validation after this epoch."""
        return bool(self.validation)

    @property
    def figures(self) -> dict[str, float]:
        """Every figure by the name that callbacks use: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`."""
        own = {f"loss.{label}": value for label, value in self.losses.items()}
        own = {"loss": self.loss, **own} if own else {}
        return {**own, **{f"val_{name}": value for name, value in self.validation.items()}}


class Run:
    """One execution of a phase: its progress and losses so far, and the brake.

    Args:
        phase: what is executed.
        graph: on what.
        experiment: label of the experiment that does so, `""` where there is none.

    Attributes:
        phase, graph, experiment: as given.
        plan: how; None until it is made.
        epoch: number of the epoch within this run, from 0.
        step: number of the step within the epoch, from 0.
        history: the epochs that are complete.
        evaluation: what an EvalPhase gave, from its end on; None before, and for other phases.
        fitted: what a FitPhase has fitted, in this order.
        rows: the data of the phase by feature set, once they are known; of a source of batches some of its first.
        error: what ended the run, None if nothing did.
        stop_reason: why somebody asked the run to stop, `""` if nobody did.
        looping: whether the loop has begun.
        events: what was decided on the way: compiling, residency, what was done when memory ran out.
        heard: is told every event that is not routine; the progress of the run.
    """

    def __init__(self, phase: Any, graph: ModelGraph, experiment: str = "") -> None:
        self.phase = phase
        self.graph = graph
        self.experiment = experiment
        self.plan: Plan | None = None
        self.epoch = 0
        self.step = 0
        self.history: list[Epoch] = []
        self.evaluation: Figures | None = None
        self.fitted: list[Fitted] = []
        self.rows: Mapping[str, Rows] = {}
        self.error: BaseException | None = None
        self.stop_reason = ""
        self.looping = False
        self.events: list[Event] = []
        self.heard: Callable[[Event], None] | None = None
        self.last_losses: list[Losses] = []
        self._chain: Chain | None = None
        self._last: Any = None

    def __repr__(self) -> str:
        return f"Run({self.phase.label!r}, {len(self.history)} epochs done)"

    @property
    def done(self) -> tuple[str, ...]:
        """Labels of the nodes that a FitPhase has fitted."""
        return tuple(one.node for one in self.fitted)

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the run to stop."""
        return bool(self.stop_reason)

    def stop(self, reason: str) -> None:
        """End the run after this epoch.

        Asked in `step_end`, it ends after this step, and the epoch counts as it is; in `epoch_start`, before the first
        step, and the epoch does not take place.
        """
        self.stop_reason = self.stop_reason or reason or "asked to stop"

    def log_event(self, kind: str, message: str, *, verbose: bool = False) -> None:
        """Note something that was decided: it stands in the results, is logged, and shown by the progress.

        Args:
            what: its kind: compile, residency, memory or source.
            text: what, and why.
            routine: whether it is a matter of course: then the progress does not show it.
        """
        epoch, step = (self.epoch, self.step) if self.looping else (-1, -1)
        event = Event(epoch, step, kind, message, verbose)
        self.events.append(event)
        log(event, self.phase.label)
        if self.heard is not None and not verbose:
            self.heard(event)

    def step_losses(self) -> dict[str, float]:
        """Mean losses of the last step by label; waits for the devices."""
        tally = Tally()
        tally.add(self.last_losses)
        return tally.means()

    def attach(self, chain: Chain | None) -> None:
        """Give the run the programs that are at work, or take them away, with all that it holds on their devices."""
        self._chain = chain
        self._last, self.last_losses = None, []

    def snapshot(self) -> Any:
        """A copy of everything that training changes: parameters, buffers, optimizer and random state."""
        return self._programs().snapshot()

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this run."""
        self._programs().restore(snapshot)

    def return_to(self, snapshot: Any) -> None:
        """Go back to a snapshot of this run once it has ended well, by itself or stopped; the last request counts."""
        self._last = snapshot

    def finalize(self) -> None:
        """The last epoch is over: go back to where somebody asked to return to."""
        if self._last is not None:
            self.restore(self._last)

    def _programs(self) -> Chain:
        if self._chain is None:
            raise PhaseError(
                f"phase {self.phase.label!r} is not at work",
                hint="use snapshots between after_loading and the last epoch_end",
            )
        return self._chain
