"""Run: the state of one execution of a phase, as plugins and callbacks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anyaccel.data import Rows
from anyaccel.errors import GraphError, PhaseError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.executor.stage import Losses
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.measured_work import MeasuredWork, measured_work
from anyaccel.phases.run_stats import RunStats, run_stats
from anyaccel.phases.step_pacing import EpochTiming
from anyaccel.precision import LossScaleState
from anyaccel.printable import printable
from anyaccel.results.events import Event, log
from anyaccel.results.records import Epoch, EvaluationValues, Fitted


class Run:
    """One execution of a phase: its progress and losses so far, and `stop`.

    Args:
        phase: the phase.
        graph: the graph it runs on.
        experiment: label of the experiment, `""` without one.

    Attributes:
        phase, graph, experiment: as given.
        plan: the plan; None until it is made.
        epoch: number of the epoch within this run, from 0.
        step: number of the step within the epoch, from 0.
        history: the completed epochs.
        timing: steps, samples and seconds of the last one in this process; None before there is one.
        batch_size: the most rows of a step, once they are known; 0 before.
        evaluation: the values of an EvalPhase once it has ended; else None.
        fitted: what a FitPhase has fitted so far, in order.
        rows: the data of the phase by feature set, once known; for a source of batches, some of its first rows.
        error: the exception that ended the run, or None.
        stop_reason: why the run was asked to stop, `""` if it was not.
        looping: whether the training loop has started.
        events: decisions and incidents so far.
        heard: called with every event that is not `verbose`.
        last_losses: gives the losses of the steps that `step_losses` is about.
        final_snapshot: what `return_to` was given; None if it was not called.
        final_state: the state of the graph that a run which goes on from a checkpoint returns to, as `return_to` was
            called before it; None otherwise.
        is_main_process: whether this process shows, tracks and writes the run: of several processes the first.
    """

    def __init__(self, phase: Any, graph: ModelGraph, experiment: str = "") -> None:
        self.phase = phase
        self.graph = graph
        self.experiment = experiment
        self.is_main_process = True
        self.plan: Plan | None = None
        self.epoch = 0
        self.step = 0
        self.history: list[Epoch] = []
        self.timing: EpochTiming | None = None
        self.batch_size = 0
        self.evaluation: EvaluationValues | None = None
        self.fitted: list[Fitted] = []
        self.rows: Mapping[str, Rows] = {}
        self.error: BaseException | None = None
        self.stop_reason = ""
        self.looping = False
        self.events: list[Event] = []
        self.heard: Callable[[Event], None] | None = None
        self.last_losses: Callable[[], list[Losses]] = list
        self._pipeline: Pipeline | None = None
        self._work = MeasuredWork()
        self.final_snapshot: Any = None
        self.final_state: Mapping[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        return f"Run({self.phase.label!r}, {len(self.history)} epochs done)"

    @property
    def done(self) -> tuple[str, ...]:
        """Labels of the nodes that a FitPhase has fitted so far."""
        return tuple(one.node for one in self.fitted)

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop."""
        return bool(self.stop_reason)

    def stop(self, reason: str) -> None:
        """Stop the run after this epoch.

        Called in `step_end`, the run stops after this step and keeps the partial epoch; called in `epoch_start`, it
        stops before this epoch.
        """
        self.stop_reason = self.stop_reason or reason or "asked to stop"

    def log_event(self, kind: str, message: str, *, verbose: bool = False) -> None:
        """Add an event to the results and the log, and show it in the progress.

        Args:
            kind: `"compile"`, `"residency"`, `"memory"`, `"source"`, `"transfer"`, `"rate"`, `"checkpoint"`,
                `"precision"`, `"profile"` or `"context"`.
            message: what happened, and why.
            verbose: leave it out of the progress.
        """
        epoch, step = (self.epoch, self.step) if self.looping else (-1, -1)
        event = Event(epoch, step, kind, printable(message), verbose)
        self.events.append(event)
        log(event, self.phase.label)
        if self.heard is not None and not verbose:
            self.heard(event)

    @property
    def stats(self) -> RunStats:
        """Memory of the devices and nodes, and the speed of the last epoch; for `epoch_end`, as it costs a moment."""
        return run_stats(self.plan, self.graph, self.timing, self._work, trains=self.phase.trains)

    def measure_step(self) -> RunStats:
        """Measure the operations and activations of a training step, which `stats` has from then on; gives `stats`.

        Done without the devices, over a copy of the models; takes about a second. For `after_loading`.

        Raises:
            PhaseError: the run trains nothing, or its programs are not built.
        """
        if not self.phase.trains:
            problem = f"phase {self.phase.label!r} has no training steps to measure"
            raise PhaseError(problem, available="a TrainPhase", hint="call this in a callback of a TrainPhase")
        pipeline = self._programs()
        if self.plan is not None and pipeline.stages:
            self._work = measured_work(self.plan, pipeline.stages, self.batch_size, self.phase.step is not None)
        return self.stats

    def step_losses(self) -> dict[str, float]:
        """Mean losses of the steps since `step_end` was last called, by label. Waits for the devices.

        That is the last step, unless callbacks ask for every n-th (`Callback.every_n_steps`). Of several processes,
        each has the losses of its own rows; those of epochs are of all rows.
        """
        losses = LossAccumulator()
        losses.add(self.last_losses())
        return losses.means()

    def model(self, label: str) -> Any:
        """The model of a node with the values that it has now, also between two steps.

        Raises:
            GraphError: the graph has no such node, or the node has no model.
        """
        node = self.graph[label]
        if not hasattr(node, "model"):
            raise GraphError(
                f"node {label!r} has no model",
                available=", ".join(name for name, each in self.graph.nodes.items() if hasattr(each, "model")),
                hint="give the label of one of these",
            )
        if self._pipeline is not None:
            self._pipeline.sync_values()
        return node.model

    @property
    def loss_scale(self) -> LossScaleState | None:
        """Where the loss scale stands, waiting for the steps so far; None where losses are not scaled."""
        scalings = () if self._pipeline is None else self._pipeline.loss_scalings
        return next((scaling.state for scaling in scalings), None)

    def attach(self, pipeline: Pipeline | None) -> None:
        """Set the programs of this run; None drops them and everything the run holds on devices."""
        self._pipeline = pipeline
        self.final_snapshot, self.last_losses = None, list

    def snapshot(self) -> Any:
        """A copy of everything that training changes: parameters, buffers, optimizer state, random state."""
        return self._programs().snapshot()

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot of this run."""
        self._programs().restore(snapshot)

    def return_to(self, snapshot: Any) -> None:
        """Restore this snapshot when the run ends without an error; the last call counts."""
        self.final_snapshot, self.final_state = snapshot, None

    def finalize(self) -> None:
        """Restore the snapshot that `return_to` was given, if any; called after the last epoch."""
        if self.final_snapshot is not None:
            self.restore(self.final_snapshot)

    def _programs(self) -> Pipeline:
        if self._pipeline is None:
            raise PhaseError(
                f"phase {self.phase.label!r} is not running, so there is no state to snapshot or restore",
                hint="call this in a callback, between after_loading and the last epoch_end",
            )
        return self._pipeline
