"""Callback: hooks of one phase, and EarlyStopping."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import NaNWarning, PhaseError, StateError
from anyaccel.metrics import is_higher_better
from anyaccel.printable import printable
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

if TYPE_CHECKING:
    from anyaccel.graph.plan import Plan
    from anyaccel.phases.loop_extension import LoopExtension
    from anyaccel.phases.run import FinishedSteps, Run


class Callback:
    """Base class of callbacks: override the hooks you need.

    The hooks are those of `anyaccel.hookspecs`; the hooks of plugins are called first. A method may leave out arguments
    that it does not use: `def phase_end(self, error)`. `phase` is the TrainPhase, EvalPhase or FitPhase.

    In `epoch_start` and `epoch_end`, the models of the graph have their current values. In `step_end` and `steps_done`,
    models of JAX and TensorFlow have the values of the last epoch; call `run.model(label)` to get the current ones.

    You can change a Python value that a loss or a model reads (to anneal it) in `epoch_start` and `epoch_end`: compiled
    code is then dropped, and an event reports it. With `compile="off"` you can also change it in `step_end` and
    `steps_done`.

    A callback with `get_config()`, which returns its arguments as plain data, is saved with an experiment.

    Attributes:
        every_n_steps: Call `step_end` after every n steps of an epoch. With 1, the default, each step is a separate
            call, unless the program reports each step (torch, uncompiled); with 50, the cost is negligible. Steps left
            over at the end of an epoch are not reported. `steps_done` receives all steps and costs as little.

    Raises:
        PhaseError: when you derive a class with a public method whose name is close to a hook (`epoch_ends`) or is the
            same hook in another library (`on_epoch_end`), because it would never be called; or with a hook that
            requires other arguments than it receives.

    Example:
        >>> import anyaccel as aa
        >>> class StopBelow(aa.Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...     def epoch_end(self, run):
        ...         if run.history[-1].loss < self.loss:
        ...             run.stop("the loss is low enough")
        >>> phase = aa.TrainPhase("train", data="train", callbacks=[StopBelow(0.1)])
    """

    every_n_steps: int = 1

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        # Refuse methods that look like a hook which the class does not override; it may have both.
        overridden = {name for name in HOOK_NAMES if getattr(cls, name) is not getattr(Callback, name)}
        names = {name for base in cls.__mro__ if base not in Callback.__mro__ for name in vars(base)} - {*HOOK_NAMES}
        for name in sorted(names):
            meant = _hook_meant(name) if inspect.isfunction(getattr(cls, name)) else None
            if meant is not None and meant not in overridden:
                raise PhaseError(
                    f"{cls.__name__}.{name} is not a hook of callbacks and would never be called",
                    available=", ".join(HOOK_NAMES),
                    hint=f"rename it to {meant!r}; if it is a helper rather than a hook, begin its name with an "
                    "underscore",
                )
        for name in sorted(overridden):
            method = getattr(cls, name)
            received = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
            required = _required_arguments(method) if inspect.isfunction(method) else []
            unknown = [argument for argument in required if argument not in received]
            if unknown:
                raise PhaseError(
                    f"{cls.__name__}.{name} requires the argument {unknown[0]!r}, which this hook does not receive",
                    available=", ".join(received),
                    hint=f"write def {name}(self, {', '.join(received)})",
                )

    def phase_start(self, phase: Any, run: Run) -> None:
        """Run code when the phase starts; nothing is decided or moved yet."""

    def before_placement(self, phase: Any, plan: Plan, run: Run) -> None:
        """Run code when the plan is made and nothing has moved yet."""

    def after_placement(self, phase: Any, plan: Plan, run: Run) -> None:
        """Run code when every model is on the device that the plan names."""

    def after_loading(self, phase: Any, plan: Plan, run: Run) -> None:
        """Run code when the data are loaded and the programs are built."""

    def epoch_start(self, run: Run) -> None:
        """Run code when an epoch starts."""

    def step_end(self, run: Run) -> None:
        """Run code after a training step, number `run.step` of its epoch; see `every_n_steps`."""

    def steps_done(self, run: Run, steps: FinishedSteps) -> None:
        """Run code after some training steps, `steps.numbers` of the epoch; `steps.losses()` returns the loss of each.

        Unlike `step_end`, this hook leaves many steps in a single call: it is called after about a fifth of a second of
        steps and at the end of an epoch. `run.step` is the last step. It is called again for steps that are repeated
        after memory ran out.
        """

    def epoch_end(self, run: Run) -> None:
        """Run code after an epoch; `run.history[-1]` holds its losses."""

    def phase_end(self, phase: Any, plan: Plan | None, run: Run, error: BaseException | None) -> None:
        """Run code when the phase has ended, with or without an error."""

    def loop_extensions(self, programs: Any) -> Sequence[LoopExtension]:
        """Return features that act in the training loop at more moments than hooks have; by default none.

        Args:
            programs: Everything that the run computes with, `PhasePrograms`.
        """
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores: numbers, text and NumPy arrays by name; by default nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state_dict` from an earlier run that is resumed; called after `after_loading`."""


_NO_HOOKS = ("loop_extensions", "state_dict", "load_state_dict")
HOOK_NAMES = tuple(
    name
    for name, value in vars(Callback).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in _NO_HOOKS
)
"""Names of the hooks that a Callback may override."""
_OF_OTHER_LIBRARIES = {
    **dict.fromkeys(("train_begin", "train_start", "fit_start", "setup"), "phase_start"),
    **dict.fromkeys(("train_end", "fit_end", "teardown"), "phase_end"),
    **dict.fromkeys(("epoch_begin", "train_epoch_start"), "epoch_start"),
    **dict.fromkeys(("train_epoch_end", "validation_end", "validation_epoch_end"), "epoch_end"),
    **dict.fromkeys(("batch_end", "train_batch_end"), "step_end"),
}


def _required_arguments(method: Any) -> list[str]:
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [it.name for it in parameters if it.default is it.empty and it.kind not in starred]


def _hook_meant(name: str) -> str | None:
    """Return the hook that a method is almost called like, in the words of other libraries too."""
    if name.startswith("_"):
        return None
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    bare = plain.removeprefix("on_")
    if bare in _OF_OTHER_LIBRARIES and (plain != bare or bare not in ("setup", "teardown")):
        return _OF_OTHER_LIBRARIES[bare]
    return next(iter(difflib.get_close_matches(bare, HOOK_NAMES, n=1, cutoff=0.85)), None)


def mode_of(monitor: str, mode: str, where: str) -> str:
    """Return `"min"` or `"max"`; for `"auto"` the mode of this value, or `""` if it is not known.

    Raises:
        PhaseError: another mode.
    """
    if mode not in ("auto", "min", "max"):
        available, hint = "'auto', 'min', 'max'", "write mode='min'"
        raise PhaseError(f"{where}unknown mode={shown(mode)}", available=available, hint=hint)
    higher = is_higher_better(monitor)
    direction = "" if higher is None else "max" if higher else "min"
    return direction if mode == "auto" else mode


def unknown_mode(monitor: str, where: str) -> PhaseError:
    """Create the error for a value of unknown direction (higher or lower is better)."""
    problem = f"{where}cannot tell whether a high or a low {monitor!r} is better"
    return PhaseError(problem, hint="write mode='max', or mode='min'")


def check_callback_state(kind: str, state: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Check that a state has the same entries as another, with numbers in the same places.

    Raises:
        StateError: entries are missing, unknown or of another type.
    """
    hint = "pass the result of state_dict() of the same kind of callback"
    if not isinstance(state, Mapping) or set(state) != set(like):
        names = ", ".join(map(str, state)) if isinstance(state, Mapping) else shown(state)
        problem = f"this is not the state of a {kind}: it has {names or 'nothing'}"
        raise StateError(problem, available=", ".join(like), hint=hint)
    for name, value in like.items():
        if not isinstance(value, (int, float)):
            continue
        saved, is_like = state[name], type(state[name]) is type(value)
        if isinstance(value, float):  # an int that a float can hold is a number, too
            is_like = isinstance(saved, float) or (type(saved) is int and abs(saved) < 2**1000)
        if not is_like:
            problem = f"this is not the state of a {kind}: {name} is {shown(state[name])}"
            raise StateError(problem, available="a count" if isinstance(value, int) else "a number", hint=hint)


@constructor_hints
class EarlyStopping(Callback):
    """Stop the run when a monitored value has stopped improving.

    An epoch with a NaN value does not count as an improvement, and a NaNWarning reports the first one. `best`
    is the best value so far, NaN at the beginning; `best_epoch` is its epoch within the run, or -1.

    Args:
        monitor: Name of a value of an epoch: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ...
        patience: Number of epochs without improvement after which the run stops.
        min_delta: Smallest change that counts as an improvement.
        mode: `"min"` or `"max"`: which values are better. `"auto"` knows this for losses and for metrics by name.
        restore_best: Restore the parameters and optimizer state of the best epoch when the run stops or ends.

    Raises:
        PhaseError: a setting out of range; or, when a phase is created with it, a value that its epochs do not have.

    Example:
        >>> import anyaccel as aa
        >>> stop = aa.EarlyStopping("val_loss", patience=5, restore_best=True)
        >>> phase = aa.TrainPhase("train", data="train", validation="val", callbacks=[stop])
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
    ) -> None:
        where = "EarlyStopping: "
        self.monitor = arguments.text(PhaseError, where, "monitor", monitor, "the name of a value", "'val_loss'")
        self.patience = arguments.integer(PhaseError, where, "patience", patience, 1, 5)
        wanted = "a number of 0 or more"
        delta = arguments.number(PhaseError, where, "min_delta", min_delta, lambda it: it >= 0, wanted, 0.0)
        self.min_delta = float(delta)
        self.sign = {"min": 1.0, "max": -1.0, "": 0.0}[mode_of(self.monitor, mode, where)]
        self.restore_best = arguments.flag(PhaseError, where, "restore_best", restore_best)
        self._reset()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data."""
        mode = {1.0: "min", -1.0: "max"}.get(self.sign, "auto")
        stopping = {"monitor": self.monitor, "patience": self.patience, "min_delta": self.min_delta}
        return {**stopping, "mode": mode, "restore_best": self.restore_best}

    def _reset(self) -> None:
        self.best, self.best_epoch, self.waited = math.nan, -1, 0

    def after_loading(self, phase: Any, plan: Plan, run: Run) -> None:
        """Reset the state, so that the callback can be used in several phases."""
        self._reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its epoch, and the number of epochs since."""
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these values.

        Raises:
            StateError: they do not have the form that `state_dict` returns.
        """
        check_callback_state("EarlyStopping", state, self.state_dict())
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]

    def epoch_end(self, run: Run) -> None:
        """Compare the value with the best one, and stop the run if patience is exhausted."""
        value = monitored_value("EarlyStopping", self.monitor, run)
        if value is None:
            return
        if not self.sign:
            raise unknown_mode(self.monitor, "EarlyStopping: ")
        if math.isnan(self.best):
            is_better = not math.isnan(value)
        else:
            is_better = self.sign * value < self.sign * self.best - self.min_delta
        if is_better:
            self.best, self.best_epoch, self.waited = value, run.epoch, 0
            if self.restore_best:
                run.return_to(run.snapshot())
            return
        self.waited += 1
        if self.waited >= self.patience:
            now = " and is NaN now" if math.isnan(value) else ""
            run.stop(f"{self.monitor} has not improved for {self.patience} epochs{now}")


# -- Monitoring: the value of an epoch that a callback watches, by its name --------------------------------------------


def monitored_value(who: str, name: str, run: Run) -> float | None:
    """Return the value of the last epoch; None if it belongs to a validation that did not run after this epoch.

    Args:
        who: The object that monitors it, for messages.
        name: Name of the value: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, or a figure of a custom step.
        run: The run with the epochs.

    Raises:
        PhaseError: epochs have no value with this name.
    """
    epoch = run.history[-1]
    if name in epoch.figures:
        value = epoch.figures[name]
        if math.isnan(value) and not any(math.isnan(before.figures.get(name, 0.0)) for before in run.history[:-1]):
            message = (
                f"{who} monitors {name!r}, which is NaN in epoch {run.epoch + 1}; an epoch with NaN is never the best"
            )
            run.log_event("metric", message)
            if run.phase.on_nan != "ignore":
                warnings.warn(printable(f"phase {run.phase.label!r}: {message}"), NaNWarning, stacklevel=user_level())
        return value
    if run.phase.validation is not None and name.startswith("val_") and not epoch.validated:
        return None
    validates = run.phase.validation is not None
    raise unknown_value(who, name, run.phase.label, list(epoch.figures), validates=validates)


def unknown_value(who: str, name: str, phase: str, values: Sequence[str], *, validates: bool) -> PhaseError:
    """Create the error for a value that the epochs of a phase do not have.

    Args:
        who: The object that monitors it.
        name: Name of the value.
        phase: Label of the phase.
        values: Names of the values that its epochs have.
        validates: Whether the phase has a validation.
    """
    hint = did_you_mean(name, values, "monitor one of these, or add a metric to the validation", cutoff=0.75)
    if name.startswith("val_") and not validates:
        hint = "add a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics"
    problem = f"{who} monitors {name!r}, but the epochs of {phase!r} have no such value"
    return PhaseError(problem, available=", ".join(values), hint=hint)
