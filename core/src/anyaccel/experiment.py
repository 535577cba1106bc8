"""Experiment: a graph, the phases that were run over it, and what each gave."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from anyaccel.errors import ConfigError, PhaseError, ResultError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.nodes import check_label
from anyaccel.phases import Callback, FitPhase, Phase, Run, TrainPhase, execute, plan_of, progress_for
from anyaccel.phases.evaluation import compared
from anyaccel.results import (
    Comparison,
    FitResults,
    Results,
    TrainResults,
    compare,
    eval_results,
    plots,
    runs_html,
)
from anyaccel.results.formatting import absent


class Experiment:
    """Runs phases over one graph and keeps what they give.

    Args:
        label: its name.
        graph: the ModelGraph.
        phases: what `run` runs, in order.
        callbacks: for every phase, before the phase's own.
        progress: `"auto"` draws in a notebook, shows bars if standard error is a terminal, and else writes a line
            there every ten seconds; `"html"`, `"rich"`, `"lines"`, `"none"`, or a Progress object.
    """

    def __init__(
        self,
        label: str,
        graph: ModelGraph,
        phases: Iterable[Phase] = (),
        *,
        callbacks: Iterable[Callback] = (),
        progress: Any = "auto",
    ) -> None:
        if not isinstance(graph, ModelGraph):
            raise PhaseError(f"experiment {label!r} was given {type(graph).__name__}", hint="give it a ModelGraph")
        self.label = check_label(label, "an experiment")
        self.graph = graph
        self.phases = tuple(self._checked(phase) for phase in phases)
        self.callbacks = tuple(callbacks)
        self.progress = progress
        self.history: list[Results] = []

    def __repr__(self) -> str:
        return f"Experiment({self.label!r}, {len(self.history)} runs)"

    def _repr_html_(self) -> str:
        return runs_html(self)

    @property
    def last_run(self) -> Results:
        """What the last run gave.

        Raises:
            ResultError: nothing has been run.
        """
        if not self.history:
            raise ResultError(f"experiment {self.label!r} has run nothing yet", hint="call run_phase(...)")
        return self.history[-1]

    def plan(self, phase: Phase) -> Plan:
        """The plan of a phase, without running it.

        Raises:
            AnyaccelError: whatever stands in the way.
        """
        return plan_of(self._checked(phase), self.graph)

    def _checked(self, phase: Any) -> Phase:
        if not isinstance(phase, Phase):
            raise PhaseError(
                f"experiment {self.label!r} cannot run {phase!r}", hint="give it a TrainPhase, EvalPhase or FitPhase"
            )
        return phase

    def run_phase(self, phase: Phase) -> Any:
        """Run a phase. What is complete is kept in `history`, also if the phase fails or is interrupted.

        Returns:
            TrainResults, EvalResults or FitResults.

        Raises:
            AnyaccelError: whatever stands in the way; before anything has moved, if it can be known then.
        """
        run = Run(self._checked(phase), self.graph, self.label)
        figures, started, began = None, datetime.now(UTC), time.perf_counter()
        try:
            figures = execute(run, self.callbacks, progress_for(self.progress))
        finally:
            ran: dict[str, Any] = {"number": len(self.history), "started": started}
            ran |= {"seconds": time.perf_counter() - began, "events": tuple(run.events)}
            self.history.append(self._results(run, figures or run.evaluation, ran))
        return self.history[-1]

    def _results(self, run: Run, figures: Any, ran: Mapping[str, Any]) -> Results:
        phase = run.phase
        if isinstance(phase, TrainPhase):
            return TrainResults(phase.label, tuple(run.history), run.plan, run.stop_reason, run.error, **ran)
        if isinstance(phase, FitPhase):
            return FitResults(phase.label, tuple(run.fitted), run.plan, run.error, **ran)
        targets = compared(phase, self.graph, figures.outputs if figures else ())
        return eval_results(
            phase.label, figures, run.plan, run.rows, run.error, targets, nodes=tuple(self.graph.nodes), **ran
        )

    def plot(self, figure: str = "loss", *, ax: Any = None) -> Any:
        """Draw one figure of every TrainPhase that was run, over the numbers of its epochs.

        Args:
            figure: name of a figure: `loss`, `val_loss`, `val_METRIC`, ...
            ax: matplotlib's Axes to draw on; a new figure if None.

        Returns:
            the Axes.

        Raises:
            ResultError: no run has it, or matplotlib is not installed.
        """
        runs = [one for one in self.history if isinstance(one, TrainResults)]
        found = {f"{one.number} {one.label}": one.curve(figure) for one in runs if figure in one.figures}
        if not found:
            there = dict.fromkeys(name for one in runs for name in one.figures)
            remedy = "use one of these names" if there else "run a TrainPhase first"
            raise absent(f"no run of experiment {self.label!r} has a figure {figure!r}", figure, there, remedy)
        return plots.curves(found, ax, title=self.label, xlabel="epoch", ylabel=figure)

    def compare(self, *figures: str) -> Comparison:
        """The runs side by side, in a table; see `anyaccel.compare`.

        Args:
            figures: names of those wanted; all that sum up by default.

        Raises:
            ResultError: nothing has been run, or no run has a figure of this name.
        """
        return compare(self.history, figures=figures)

    def run(self, *phases: Phase) -> list[Any]:
        """Run several phases, those of the experiment if none is given.

        Raises:
            PhaseError: there is none.
        """
        todo = tuple(self._checked(phase) for phase in phases) or self.phases
        if not todo:
            raise PhaseError(
                f"experiment {self.label!r} has no phases", hint="give Experiment(..., phases=[...]), or run(phase)"
            )
        return [self.run_phase(phase) for phase in todo]

    def get_config(self) -> dict[str, Any]:
        """The experiment as plain data, ready for JSON; results and callbacks are left out.

        Raises:
            ConfigError: something in it has no name.
        """
        return {
            "label": self.label,
            "graph": self.graph.get_config(),
            "phases": [phase.get_config() for phase in self.phases],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **given: Any) -> Experiment:
        """Read what `get_config` wrote.

        Args:
            config: the configuration.
            given: `feature_sets`, `models` and `allow`, as `ModelGraph.from_config` takes them.

        Raises:
            ConfigError: malformed, or it names what is not registered or was not given.
        """
        if not isinstance(config, Mapping) or set(config) - {"label", "graph", "phases"} or "graph" not in config:
            raise ConfigError(
                f"{config!r} is not the configuration of an experiment", available="keys label, graph and phases"
            )
        phases = config.get("phases", ())
        if not isinstance(phases, (list, tuple)):
            raise ConfigError(f"the phases of an experiment are {phases!r}", available="they are a list")
        graph = ModelGraph.from_config(config["graph"], **given)
        return cls(config.get("label", "experiment"), graph, [Phase.from_config(one) for one in phases])
