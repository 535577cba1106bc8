"""ReduceLROnPlateau: a schedule that lowers the learning rate when a monitored value has stopped improving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.phases.callbacks import Callback, check_callback_state, mode_of, monitored_value, unknown_mode

if TYPE_CHECKING:
    from anyaccel.graph import ModelGraph
    from anyaccel.phases.run import Run


@constructor_hints
class ReduceLROnPlateau(Callback):
    """Lower the learning rate when a monitored value has stopped improving.

    Pass it to the optimizer only: `Optimizer("adam", schedule=ReduceLROnPlateau("val_loss"))`. Phases call it after
    each epoch, so you do not call `step` as with PyTorch's scheduler. In the callbacks of a phase it is an error, as it
    would change no rate there. The reduced rate also applies in later phases.
    Use a separate object for each optimizer and for each new training.

    An epoch with a NaN value does not count as an improvement, and a NaNWarning reports the first one.
    `current` is the current factor, `best` the best value so far.

    Args:
        monitor: Name of a value of an epoch: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ...
        factor: Multiplier of the learning rate, in (0, 1).
        patience: Number of epochs without improvement to accept; the next one lowers the rate.
        threshold: Smallest change that counts as an improvement, as a fraction of the best value.
        threshold_mode: `"rel"`; or `"abs"` for a threshold that is a difference.
        cooldown: Number of epochs after a reduction that are not counted.
        min_factor: Smallest factor of all reductions together.
        mode: `"min"` or `"max"`: which values are better. `"auto"` knows this for losses and for metrics by name.

    Raises:
        PhaseError: a setting out of range; or, when a phase begins, a value that its epochs will not have, or a
            callback that is the schedule of no optimizer.

    Example:
        >>> import anyaccel as aa
        >>> schedule = aa.ReduceLROnPlateau("val_loss", factor=0.5, patience=3)
        >>> optimizer = aa.Optimizer("adam", lr=1e-3, schedule=schedule)
        >>> optimizer.rate(0)
        0.001
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
        mode: str = "auto",
    ) -> None:
        where = "ReduceLROnPlateau: "
        if threshold_mode not in ("rel", "abs"):
            available, hint = "'rel', 'abs'", "write threshold_mode='rel'"
            raise PhaseError(f"{where}unknown threshold_mode={shown(threshold_mode)}", available=available, hint=hint)
        self.monitor = arguments.text(PhaseError, where, "monitor", monitor, "the name of a value", "'val_loss'")
        self.patience = arguments.integer(PhaseError, where, "patience", patience, 0, 10)
        self.cooldown = arguments.integer(PhaseError, where, "cooldown", cooldown, 0, 5)
        self.factor = _number(where, "factor", factor, 0.1, below_one=True)
        self.threshold = _number(where, "threshold", threshold, 1e-4)
        self.min_factor = _number(where, "min_factor", min_factor, 0.0)
        self.mode, self.threshold_mode = mode_of(self.monitor, mode, where), threshold_mode
        self.current, self.best = 1.0, -math.inf if self.mode == "max" else math.inf
        self._bad, self._cooling = 0, 0

    def __call__(self, step: int) -> float:
        """Return the current factor, for any step."""
        return self.current

    def state_dict(self) -> dict[str, Any]:
        """Return the factor, the best value and the epoch counters."""
        return {"current": self.current, "best": self.best, "bad": self._bad, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these values.

        Raises:
            StateError: they do not have the form that `state_dict` returns.
        """
        check_callback_state("ReduceLROnPlateau", state, self.state_dict())
        self.current, self.best = float(state["current"]), float(state["best"])
        self._bad, self._cooling = int(state["bad"]), int(state["cooling"])

    def epoch_end(self, run: Run) -> None:
        """Compare the value with the best one, and lower the factor if patience is exhausted."""
        value = monitored_value("ReduceLROnPlateau", self.monitor, run)
        if value is None:
            return
        if not self.mode:
            raise unknown_mode(self.monitor, "ReduceLROnPlateau: ")
        sign, is_relative = 1.0 if self.mode == "min" else -1.0, self.threshold_mode == "rel"
        margin = self.threshold * (self.best if is_relative and math.isfinite(self.best) else 1.0)
        if sign * value < sign * self.best - margin:
            self.best, self._bad = value, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            self.current = max(self.current * self.factor, self.min_factor)
            self._cooling, self._bad = self.cooldown, 0
            reason = f"{self.monitor} has not improved for {self.patience + 1} epochs"
            run.log_event("rate", f"the learning rate is multiplied by {self.current:g} from now on: {reason}")


def _number(where: str, name: str, value: Any, example: float, *, below_one: bool = False) -> float:
    wanted = "a number in (0, 1)" if below_one else "a number of 0 or more"
    fits = (lambda it: 0 < it < 1) if below_one else (lambda it: it >= 0)
    return float(arguments.number(PhaseError, where, name, value, fits, wanted, example))


def listening_schedules(graph: ModelGraph, callbacks: Iterable[Callback]) -> list[Callback]:
    """Return the schedules of a graph's optimizers that listen to epochs, without duplicates and those already called.

    Raises:
        PhaseError: a plateau that changes no rate: it is only a callback, and no schedule is a function that could
            read it.
    """
    schedules: list[Any] = []
    for owner in (graph, *graph.nodes.values()):
        optimizer = getattr(owner, "optimizer", None)
        if optimizer is not None and optimizer.schedule.own is not None:
            schedules.append(optimizer.schedule.own)
    if not schedules:
        for callback in callbacks:
            if isinstance(callback, ReduceLROnPlateau) and type(callback).epoch_end is ReduceLROnPlateau.epoch_end:
                raise PhaseError(
                    "ReduceLROnPlateau is a callback here, which changes no learning rate: it is the schedule of no "
                    "optimizer",
                    hint="pass it to the optimizer: "
                    f"Optimizer('adam', schedule=ReduceLROnPlateau({callback.monitor!r}))",
                )
        return []
    listeners = {id(callback) for callback in callbacks}
    listening = {id(schedule): schedule for schedule in schedules if isinstance(schedule, Callback)}
    return [schedule for key, schedule in listening.items() if key not in listeners]
