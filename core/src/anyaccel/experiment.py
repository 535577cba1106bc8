"""Experiment: runs phases over one graph and keeps their results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from anyaccel import saved_folder
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints
from anyaccel.distributions import SAVED, load, saved_names
from anyaccel.errors import ConfigError, PhaseError, ResultError
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.graph import checked_runnable
from anyaccel.graph.nodes import check_label
from anyaccel.graph.serialization import checked_classes, class_name, versions_of
from anyaccel.graph.weight_loading import Change, Names
from anyaccel.phases import Callback, EarlyStopping, FrameworkSettings, Phase, plan_for
from anyaccel.phases.progress.selection import checked_progress
from anyaccel.phases.runner import run_in_order
from anyaccel.phases.settings import checked_callbacks
from anyaccel.results import (
    Comparison,
    Results,
    TrainResults,
    compare,
    runs_html,
)
from anyaccel.results.base import check_replaceable, read_results, results_parts
from anyaccel.results.formatting import unknown_name

__all__ = ["Experiment", "ModelGraph"]

_PART, _RUN = "experiment", "run"


@class_hints
class Experiment(AttributeHints):
    """Run phases over one graph and keep their results in `history`.

    Args:
        label: Name of the experiment. You can leave it out: `Experiment(graph)` takes the label of the graph.
        graph: The ModelGraph.
        phases: The phases that `run()` runs, in order.
        callbacks: Callbacks for every phase; they are called before the callbacks of the phase.
        progress: `"auto"`, `"html"`, `"rich"`, `"lines"`, `"none"` or a Progress object. `"auto"` shows HTML in a
            notebook and bars in a terminal; otherwise it writes a line to standard error every ten seconds.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
        >>> experiment = aa.Experiment("line", graph, progress="none")
        >>> results = experiment.run_phase(aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse")))
        >>> experiment.last_run is results
        True
    """

    def __init__(
        self,
        label: str | ModelGraph,
        graph: ModelGraph | None = None,
        phases: Iterable[Phase] = (),
        *,
        callbacks: Iterable[Callback] = (),
        progress: Any = "auto",
    ) -> None:
        if isinstance(label, ModelGraph) and graph is None:
            graph, label = label, label.label
        if not isinstance(graph, ModelGraph):
            raise PhaseError(
                f"experiment {label!r}: graph must be a ModelGraph, got {type(graph).__name__}",
                hint="Experiment(label, ModelGraph([...]))",
            )
        self.label = check_label(label, "an experiment")
        self.graph = graph
        if not isinstance(phases, Iterable) or isinstance(phases, str):
            problem = f"experiment {label!r}: phases must be a list, got {shown(phases)}"
            raise PhaseError(problem, hint="write phases=[TrainPhase(...)]")
        self.phases = tuple(phases)
        for phase in self.phases:
            checked_runnable(phase, f"experiment {self.label!r}")
        self.callbacks = checked_callbacks(f"experiment {label!r}", callbacks)
        self.progress = checked_progress(progress)
        self.history: list[Results] = []

    attribute_hints: ClassVar[Mapping[str, str]] = {
        "fit train": "use run(TrainPhase('train', data='train', losses=[...]))",
        "evaluate eval test score": "use run_phase(EvalPhase('test', data='all', metrics=['mse']))",
        "predict transform": "use run_phase(EvalPhase('predict', data='all')).prediction('NODE')",
        "results runs losses metrics": "use experiment.history, or last_run for the last run",
        "model net nodes": "use experiment.graph, and experiment.graph['NODE'].model",
        "state state_dict": "use experiment.graph.state(), or save(folder)",
        "load_state load_state_dict": "use experiment.graph.load_state(state), or Experiment.load(folder)",
        "add add_phase append": "pass phases to run(phase, ...)",
        "to cuda device": "set it on a phase: TrainPhase(..., accelerator='cpu')",
        "start execute launch run_phases run_all": "use run(phase, ...)",
        "lr_find find_lr tune": "use anyaccel.find_learning_rate(experiment.graph, phase)",
        "summary": "use plan(phase), or experiment.graph.summary()",
    }

    @classmethod
    def from_active_context(cls, *args: Any, **settings: Any) -> Experiment:
        """Raise a ConfigError: an experiment takes its graph as an argument. Kept for users who know it from ModularML.

        Raises:
            ConfigError: Always, with the replacement.
        """
        raise ConfigError(
            "Experiment.from_active_context does not exist: there is no active context",
            hint="write Experiment(label, graph), with the ModelGraph to run",
        )

    def __repr__(self) -> str:
        return f"Experiment({self.label!r}, {len(self.history)} runs)"

    def _repr_html_(self) -> str:
        return runs_html(self)

    @property
    def last_run(self) -> Results:
        """The results of the last run.

        Raises:
            ResultError: nothing has been run.
        """
        if not self.history:
            raise ResultError(f"experiment {self.label!r} has not run yet", hint="call run_phase(...)")
        return self.history[-1]

    def plan(self, phase: Phase, inventory: Any = None) -> Plan:
        """Plan a phase without running it: where each node goes and why, what is copied between devices, and the
        memory.

        Args:
            phase: The phase to plan.
            inventory: Another machine, as an Inventory or as text such as `"8x H100-80GB"`; None for this machine.

        Raises:
            AnyaccelError: the phase cannot run.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
            >>> plan = aa.Experiment("line", graph).plan(aa.EvalPhase("eval", data=data, accelerator="cpu"))
            >>> plan.device("net"), plan.fits
            (Device(kind='cpu', index=0), True)
        """
        checked_runnable(phase, f"experiment {self.label!r}")
        return plan_for(phase, self.graph, inventory)

    def run_phase(self, phase: Phase, *, resume: str = "never") -> Any:
        """Run a phase. Its results are added to `history`, even if it fails or is interrupted.

        Args:
            phase: The phase to run.
            resume: `"auto"` resumes a TrainPhase with a `checkpoint` from the newest checkpoint in its folder, or
                starts from scratch without a checkpoint; the results then cover the whole run. `"never"` requires an
                empty folder.

        Returns:
            TrainResults, EvalResults or FitResults.

        Raises:
            AnyaccelError: the phase cannot run. It is raised before anything moves if the reason can be known then.
        """
        checked_runnable(phase, f"experiment {self.label!r}")
        return phase.run_once(self.graph, self.label, self.callbacks, self.progress, resume, self.history)

    def plot(self, figure: str = "loss", *, ax: Any = None) -> Any:
        """Plot one value of every TrainPhase in `history` against its epoch numbers.

        Args:
            figure: `loss`, `val_loss`, `val_METRIC`, ...
            ax: Matplotlib Axes to draw on; None creates a new figure.

        Returns:
            The Axes.

        Raises:
            ResultError: no run has the value, or matplotlib is not installed.
        """
        runs = [results for results in self.history if isinstance(results, TrainResults)]
        curves = {
            f"{results.number} {results.label}": results.curve(figure) for results in runs if figure in results.figures
        }
        if not curves:
            names = dict.fromkeys(name for results in runs for name in results.figures)
            hint = "use one of these names" if names else "run a TrainPhase first"
            raise unknown_name(f"no run of experiment {self.label!r} has a figure {figure!r}", figure, names, hint)
        from anyaccel.results import plots

        return plots.line_plot(curves, ax, title=self.label, xlabel="epoch", ylabel=figure)

    def compare(self, *figures: str) -> Comparison:
        """Compare the runs in a table; see `anyaccel.compare`.

        Args:
            figures: Names of values. By default, the table has every value except the losses of single nodes.

        Raises:
            ResultError: nothing has been run, or no run has a value with this name.
        """
        return compare(self.history, figures=figures)

    def run(self, *phases: Phase, resume: str = "never") -> list[Any]:
        """Run the given phases in order, or the phases of the experiment.

        Phases are checked before the first one starts. The check ends at a phase that fits estimators, because their
        outputs are unknown before, or that has a custom callback, which may change the graph.

        Args:
            phases: The phases to run.
            resume: See `run_phase`; it applies to phases with a `checkpoint`. The other phases run from scratch.

        Returns:
            A list of results.

        Raises:
            AnyaccelError: neither the call nor the experiment has phases, or one of them cannot run.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
            >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
            >>> train = aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse"))
            >>> test = aa.EvalPhase("test", data=data)
            >>> experiment = aa.Experiment("line", graph, phases=[train, test], progress="none")
            >>> trained, tested = experiment.run()
            >>> len(experiment.history)
            2
        """
        for phase in phases:
            checked_runnable(phase, f"experiment {self.label!r}")
        to_run = phases or self.phases
        if not to_run:
            raise PhaseError(
                f"experiment {self.label!r} has no phases", hint="write Experiment(..., phases=[...]), or run(phase)"
            )
        return run_in_order(to_run, self.graph, self.callbacks, resume, self.run_phase)

    def get_config(self) -> dict[str, Any]:
        """Return the experiment as plain data, ready for JSON, without results and callbacks.

        Raises:
            ConfigError: a part of it has no registered name.
        """
        return {
            "label": self.label,
            "graph": self.graph.get_config(),
            "phases": [phase.get_config() for phase in self.phases],
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **given: Any) -> Experiment:
        """Rebuild an experiment from the output of `get_config`.

        Args:
            config: The configuration.
            given: `feature_sets`, `models` and `allow`; see `ModelGraph.from_config`.

        Raises:
            ConfigError: malformed, or it names an object that is neither registered nor given.
        """
        if not isinstance(config, Mapping) or set(config) - {"label", "graph", "phases"} or "graph" not in config:
            raise ConfigError(
                f"{shown(config)} is not the configuration of an experiment",
                available="keys label, graph and phases",
                hint="pass the dict from get_config()",
            )
        phases = config.get("phases", ())
        if not isinstance(phases, (list, tuple)):
            problem = f"phases must be a list of phase configurations, got {shown(phases)}"
            raise ConfigError(problem, hint="pass the dict from get_config()")
        graph = ModelGraph.from_config(config["graph"], **given)
        read: list[Any] = [Phase.from_config(phase) for phase in phases]
        return cls(config.get("label", "experiment"), graph, read)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write graph, phases, callbacks and all results into a folder, without pickle. `ModelGraph.load` reads it,
        too.

        A phase or callback without a configuration (custom steps or losses, data without a name) is only named in the
        folder; pass it to `load` again. The state of callbacks is not written.

        Args:
            folder: See `ModelGraph.save`. Anything that this method wrote there earlier is replaced atomically.

        Raises:
            ConfigError, StateError: `ModelGraph.save` would raise it, or the folder holds something else.
            ResultError: a run has predictions that are neither numbers nor text.
        """
        check_replaceable(folder, _PART)
        arrays: dict[str, np.ndarray] = {}
        phases: list[dict[str, Any]] = []
        for phase in self.phases:  # one without a configuration has the reason
            config, reason = None, ""
            if type(phase) is not Phase.kinds[phase.kind]:
                reason = f"it has a custom class, {type(phase).__name__}"
            else:
                try:
                    config = phase.get_config()
                except ConfigError as error:
                    reason = error.problem
            callbacks = _callback_parts(phase.callbacks)
            phases.append({"label": phase.label, "config": config, "reason": reason, "callbacks": callbacks})
        part = {
            "label": self.label,
            "phases": phases,
            "callbacks": _callback_parts(self.callbacks),
            "results": [results_parts(results, arrays, f"{i}/") for i, results in enumerate(self.history)],
        }
        parts, versions = (
            {_PART: part, "graph": self.graph.saved_config()},
            versions_of(self.graph.shapes.backends.values()),
        )
        saved_folder.write(folder, parts, self.graph.state(copy=False), arrays, versions=versions)

    @classmethod
    def load(  # noqa: PLR0913 - keywords, each documented
        cls,
        folder: str | os.PathLike[str],
        *,
        models: Mapping[str, Any] | None = None,
        feature_sets: Iterable[Any] = (),
        optimizer: Any = None,
        phases: Iterable[Phase] | None = None,
        callbacks: Iterable[Callback] | None = None,
        allow: Iterable[type] = (),
        progress: Any = "auto",
        names: Names = None,
        change: Change | None = None,
        strict: bool = True,
    ) -> Experiment:
        """Load the experiment that `save` wrote: its graph with its state, on the CPU, and its results.

        Args:
            folder: A folder that `save` wrote, or its URL.
            models, feature_sets, optimizer, names, change, strict: See `ModelGraph.load`.
            phases: Phases to use instead of the saved ones. Required if one of them has no configuration.
            callbacks: Callbacks to use instead of the saved ones. Required if one of them has no configuration.
            allow: Classes of models, transforms and callbacks that the folder may name in addition to the known ones.
            progress: `"auto"`, `"html"`, `"rich"`, `"lines"`, `"none"` or a Progress object.

        Raises:
            ConfigError: `ModelGraph.load` would raise it, or a phase or callback must be given.
            StateError: `ModelGraph.load` would raise it.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0).build()
            >>> experiment = aa.Experiment("line", graph, phases=[aa.EvalPhase("eval", data="all")], progress="none")
            >>> experiment.save("saved")
            >>> aa.Experiment.load("saved", feature_sets=[data]).phases[0].label
            'eval'
        """
        classes = checked_classes(allow)
        manifest, arrays = saved_folder.read(folder, _PART, _RUN)
        part, lists = manifest[_PART], ("phases", "callbacks", "results")
        is_saved = isinstance(part, Mapping) and "label" in part
        if not is_saved or not all(isinstance(part.get(name), list) for name in lists):
            raise ConfigError(f"{shown(part)} is not a saved experiment", hint=_HINT)
        objects: dict[str, Any] = {"models": models, "feature_sets": feature_sets, "optimizer": optimizer}
        graph = ModelGraph.load(folder, **objects, allow=classes, names=names, change=change, strict=strict)
        hint = "pass them: load(folder, callbacks=[...]), or callbacks=[] for none"
        if phases is None:
            read_phases: list[Any] = []
            for saved in part["phases"]:
                if not isinstance(saved, Mapping) or not {"label", "config", "reason", "callbacks"} <= set(saved):
                    raise ConfigError(f"{shown(saved)} is not a saved phase", hint=_HINT)
                where, written = f"phase {saved['label']!r}", f"TrainPhase({saved['label']!r}, ...)"
                of_phases = f"pass the phases: load(folder, phases=[{written}]), or phases=[] for none"
                if saved["config"] is None:
                    raise ConfigError(f"{where} was not saved: {saved['reason']}", hint=of_phases)
                phase = Phase.from_config(saved["config"])
                phase.callbacks = _read_callbacks(saved["callbacks"], classes, where, of_phases)
                read_phases.append(phase)
            phases = read_phases
        if callbacks is None:
            callbacks = _read_callbacks(part["callbacks"], classes, f"experiment {part['label']!r}", hint)
        experiment = cls(part["label"], graph, phases, callbacks=callbacks, progress=progress)
        read: Iterable[Any] = (read_results(saved, arrays, classes) for saved in part["results"])
        experiment.history.extend(read)
        return experiment


_KNOWN: dict[str, type[Callback]] = {
    "EarlyStopping": EarlyStopping,
    "FrameworkSettings": FrameworkSettings,
}
_HINT = "pass the folder that save() wrote"


def _callback_parts(callbacks: Iterable[Callback]) -> list[dict[str, Any]]:
    """Return callbacks as plain data: the class, and the result of its `get_config`, or None."""
    parts = []
    for callback in callbacks:
        cls = type(callback)
        known = _KNOWN.get(cls.__name__)
        if cls.__name__ in saved_names("callback"):
            known = load(SAVED, f"callback.{cls.__name__}")
        name = cls.__name__ if known is cls else class_name(cls)
        parts.append({"class": name, "config": callback.get_config() if hasattr(callback, "get_config") else None})
    return parts


def _read_callbacks(entries: Any, allow: Iterable[type], where: str, hint: str) -> tuple[Callback, ...]:
    """Return the callbacks of `callback_parts`; nothing is imported but what an installed distribution offers.

    Args:
        entries: The list.
        allow: Classes that it may name in addition to those of this library.
        where: Beginning of messages.
        hint: Hint for a callback without a configuration.

    Raises:
        ConfigError: malformed; or a callback without a configuration, or of a class that is not allowed.
        MissingDistributionError: a distribution that is not installed offers a callback.
    """
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"{where}: {shown(entries)} are not saved callbacks", hint=_HINT)
    classes: dict[str, type] = {**{class_name(cls): cls for cls in allow}, **_KNOWN}
    callbacks: list[Callback] = []
    for entry in entries:
        name, config = entry.get("class"), entry.get("config")
        if config is None:
            problem = f"{where}: the callback {name} was not saved: it has no get_config()"
            raise ConfigError(problem, hint=hint)
        cls: type[Any] | None = classes.get(str(name)) or load(SAVED, f"callback.{name}")
        if cls is None or not issubclass(cls, Callback):
            raise ConfigError(
                f"{where}: the callback {name} has an unknown class; nothing was imported",
                available=", ".join(classes),
                hint=f"if you trust it, import it and pass allow=[{str(name).rpartition(':')[2]}]",
            )
        try:
            callbacks.append(cls(**config))
        except TypeError as error:
            reason = getattr(error, "problem", error)
            problem = f"{where}: the callback {name} does not accept its configuration: {reason}"
            raise ConfigError(problem, hint="return the arguments of the class from get_config()") from error
    return tuple(callbacks)
