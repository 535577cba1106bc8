"""Trackers: the base of plugins that send the figures of runs to an experiment tracker.

A plugin writes one class, a `Tracker`. A `TrackerSwitch` lets users turn it on for a process, by a call or an
environment variable; `anyaccel.phases.TrackerCallback` tracks single phases. The guide "Track experiments" has a whole
plugin. Stands on the kernel alone: a module with hooks is imported in every process.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from anyaccel.errors import ConfigError, PhaseError, PluginError
from anyaccel.hookspecs import hookimpl
from anyaccel.user_level import user_level


class Tracker(ABC):
    """A run in an experiment tracker, created in the main process when a phase begins.

    Figures have the names of the results: `loss`, `val_loss`, `val_accuracy` after each epoch of a TrainPhase;
    `LABEL_loss` and `LABEL_accuracy` at the end of an EvalPhase with that label.

    Args:
        run: The run of the phase, with `run.phase`, `run.graph` and `run.experiment`.
        target: Argument of `log_to` or of the callback, or value of the environment variable.

    Example:
        >>> from anyaccel.trackers import Tracker
        >>> class PrintTracker(Tracker):
        ...     def __init__(self, run, target):
        ...         print("start", run.phase.label, target)
        ...
        ...     def log(self, figures, step):
        ...         print(step, dict(figures))
        ...
        ...     def finish(self, error):
        ...         print("end")
    """

    @abstractmethod
    def __init__(self, run: Any, target: Any) -> None: ...

    @abstractmethod
    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Log numbers by name.

        Args:
            figures: Numbers by name.
            step: The epoch; at the end of an EvalPhase, the number of epochs that the graph was trained for.
        """

    @abstractmethod
    def finish(self, error: BaseException | None) -> None:
        """Close the run. `error` is the exception that ended the phase, or None."""

    def log_plan(self, plan: Any) -> None:
        """Log where each node runs, and why. Does nothing by default."""

    def log_epoch(self, run: Any) -> None:
        """Log the figures of the last epoch and its duration in seconds."""
        last = run.history[-1]
        self.log({**last.figures, "epoch_seconds": last.seconds}, last.number)

    def log_evaluation(self, run: Any) -> None:
        """Log the figures of an EvalPhase when it ends."""
        figures = {f"{run.phase.label}_{name}": value for name, value in run.evaluation.named.items()}
        self.log(figures, sum(run.graph.progress.values()))

    def log_model(self, folder: Path) -> None:
        """Log the folder that `ModelGraph.save` wrote, at the end of a TrainPhase if `saves_model` is true."""

    saves_model = False
    """Whether `log_model` is called."""


class RunTrackers:
    """Pass the events of phases on to the trackers of any number of runs, which may be in several threads.

    A PhaseError of a tracker ends the phase. After any other error you get a warning, and the training continues
    untracked: a network, a server or a disk that fails must not cost a training.

    Args:
        make: Function that takes the run and the target when a phase begins, and returns a `Tracker`.
        name: Name of the tracker, for messages.
    """

    def __init__(self, make: Callable[[Any, Any], Tracker], name: str) -> None:
        self._make, self._name = make, name
        self._trackers: dict[Any, Tracker] = {}
        self._failed: set[Any] = set()

    def start(self, run: Any, target: Any) -> None:
        """Open the run, in the main process only.

        Raises:
            PhaseError: The run is tracked by this callback already, or the tracker cannot be started.
        """
        phase = run.phase
        if not run.is_main_process or (phase.kind == "eval" and not phase.losses and not phase.metrics):
            return  # predictions have no figures
        if run in self._trackers:
            raise PhaseError(
                f"phase {phase.label!r} has the same {self._name} callback twice",
                hint="pass it to the experiment or to the phase, not to both",
            )
        self._trackers[run] = self._make(run, target)

    @hookimpl
    def plan(self, run: Any) -> None:
        """Log the plan once it exists."""
        self.call(run, lambda tracker: tracker.log_plan(run.plan))

    @hookimpl
    def epoch(self, run: Any) -> None:
        """Log the figures of the last epoch."""
        self.call(run, lambda tracker: tracker.log_epoch(run))

    @hookimpl
    def end(self, run: Any, error: BaseException | None) -> None:
        """Log the figures of an evaluation and the model, and close the run."""

        def log_model(tracker: Tracker) -> None:
            if tracker.saves_model:
                with tempfile.TemporaryDirectory() as folder:
                    run.graph.save(Path(folder, "model"))
                    tracker.log_model(Path(folder, "model"))

        try:
            if run.evaluation is not None:
                self.call(run, lambda tracker: tracker.log_evaluation(run))
            if error is None and run.phase.kind == "train":
                self.call(run, log_model)
        finally:
            self._failed.discard(run)  # a run that failed is closed, too
            try:
                self.call(run, lambda tracker: tracker.finish(error))
            finally:
                self._failed.discard(run)
                self._trackers.pop(run, None)

    def call(self, run: Any, function: Callable[[Any], None]) -> None:
        """Call a function with the tracker of a run, if the run is tracked and no call has failed."""
        if run not in self._trackers or run in self._failed:
            return
        try:
            function(self._trackers[run])
        except PhaseError:
            raise
        except Exception as error:
            self._failed.add(run)
            what = f"{self._name} could not log phase {run.phase.label!r}, which continues untracked"
            warnings.warn(f"{what}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=user_level())


class TrackingScope:
    """The result of `log_to`: in effect from the call on; as a context manager, until the end of the block.

    Attributes:
        target: Target of the runs; None turns logging off.
    """

    def __init__(self, target: Any, kept: Any, calls: list[TrackingScope]) -> None:
        self.target, self._given, self._calls = target, kept, calls
        self._before = calls[-1] if calls else None
        calls[:] = [self]

    def __repr__(self) -> str:
        return f"log_to({None if self._given is None else str(self._given)!r})"

    def __enter__(self) -> TrackingScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return to the setting before the call; runs that have begun are logged to their end."""
        self._calls[:] = [self._before] if self._before else []


class TrackerSwitch(RunTrackers):
    """Trackers of a plugin, which `log_to` or an environment variable turns on. Its methods are the plugin's hooks::

        phase_start, before_placement, epoch_end, phase_end = switch.phase_start, switch.plan, switch.epoch, switch.end

    Args:
        module: Module with the hooks, which the plugin's entry point names.
        name: Name of the tracker, for messages.
        make: See `RunTrackers`.
        variable: Environment variable that names the target.
        check: Function of the user's target and the name of the setting that returns the target, or raises ConfigError.
        callback: How users write the callback, for messages, such as `"TensorBoard(folder)"`.
    """

    def __init__(
        self,
        module: str,
        name: str,
        make: Callable[[Any, Any], Tracker],
        variable: str,
        check: Callable[..., Any],
        callback: str,
    ) -> None:
        super().__init__(make, name)
        self._module, self._variable, self._check, self._callback = module, variable, check, callback
        self._calls: list[TrackingScope] = []

    def log_to(self, target: Any, **settings: Any) -> TrackingScope:
        """Track every phase that begins from now on in this process; as a context manager, those of the block.

        Args:
            target: Target in the plugin's sense; None turns tracking off, regardless of the environment.
            settings: Additional settings for `check`.

        Raises:
            ConfigError: The target is not valid.
            PluginError: The plugin is not loaded, so no phase would be tracked.
        """
        from anyaccel.registry import registry  # imports NumPy

        checked = None if target is None else self._check(target, "log_to", **settings)
        plugin = self._module.removeprefix("anyaccel_")
        if checked is not None and not registry().hooks.is_registered(import_module(self._module)):
            plugins = {each.name: each for each in registry().plugins}
            if plugin in plugins and plugins[plugin].error is None:
                raise PluginError(
                    f"log_to() has no effect: the entry point {plugin!r} names another module than its TrackerSwitch, "
                    f"{self._module!r}",
                    hint="name the module with the hooks in both",
                )
            raise PluginError(
                f"log_to() has no effect: the plugin {plugin!r} is not loaded",
                available=", ".join(plugins),
                hint=f"add it to ANYACCEL_PLUGINS: ANYACCEL_PLUGINS={plugin}; or add to phases "
                f"the callback {self._callback}",
            )
        return TrackingScope(checked, target, self._calls)

    def target(self) -> Any:
        """Return the target for a phase that begins now, or None where tracking is off.

        Raises:
            ConfigError: The environment variable does not name a target.
        """
        if self._calls:
            return self._calls[-1].target
        text = os.environ.get(self._variable, "").strip()
        return self._check(text, self._variable) if text else None

    @hookimpl
    def phase_start(self, run: Any) -> None:
        """Open a run if tracking is on.

        Raises:
            PhaseError: See `RunTrackers.start`.
        """
        target = self.target()
        if target is not None:
            self.start(run, target)


def settings_of(run: Any) -> dict[str, Any]:
    """Return the settings of an experiment, a graph and a phase as plain data.

    An object without a configuration is represented by its class and the `repr` of its attributes.
    """
    graph = run.graph
    optimizer = None if graph.optimizer is None else _config(graph.optimizer)
    return {
        "experiment": run.experiment,
        "graph": {"label": graph.label, "seed": graph.seed, "optimizer": optimizer},
        "phase": _config(run.phase),
    }


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted names, such as `graph.optimizer.lr`; lists as JSON.

    Example:
        >>> from anyaccel.trackers import flat
        >>> flat({"graph": {"seed": 0, "nodes": ["a", "b"]}})
        {'graph.seed': 0, 'graph.nodes': '["a", "b"]'}
    """
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            is_plain = value is None or isinstance(value, (str, int, float, bool))
            values[f"{prefix}{name}"] = value if is_plain else json.dumps(value, default=repr)
    return values


def _config(obj: Any) -> Any:
    """Return settings as plain data; where an object has no configuration, the `repr` of its attributes."""
    try:
        return obj.get_config()
    except ConfigError:
        names = [name for cls in type(obj).__mro__ for name in getattr(cls, "__slots__", ())]
        names = names or [name for name in vars(obj) if not name.startswith("_")]
        return {"type": type(obj).__name__, **{name: repr(getattr(obj, name)) for name in names}}
