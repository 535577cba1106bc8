"""What a TrainPhase gave: figures per epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.graph import Plan
from anyaccel.phases import Epoch
from anyaccel.phases.events import Event
from anyaccel.results import formatting, plots
from anyaccel.results.formatting import ended, finite, shown, told, when
from anyaccel.results.notebook import train_html


@dataclass(frozen=True, slots=True, repr=False)
class TrainResults:
    """What a TrainPhase gave: one entry for each complete epoch.

    `error` is what ended the run, None if it ended well; `stop_reason` is why it was stopped early, `""` if it was not.
    `number` is its place in the history of its experiment, from 0; `started` when it began, in UTC, and `seconds` how
    long it took. `events` are what was decided while it ran, and where memory was short.
    """

    label: str
    epochs: tuple[Epoch, ...]
    plan: Plan | None
    stop_reason: str = ""
    error: BaseException | None = None
    number: int | None = None
    started: datetime | None = None
    seconds: float = math.nan
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        last = self.epochs[-1].figures if self.epochs else {}
        return f"TrainResults({self.label!r}, {len(self.epochs)} epochs{shown(last)}{ended(self.error, self.events)})"

    if not TYPE_CHECKING:  # for which there are the attributes above, and no others

        def __getattr__(self, name: str) -> Any:
            own = name.startswith("_") or name in TrainResults.__dataclass_fields__
            hint = "" if own or name not in self.figures else f"; it is a figure: figure({name!r})"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def _repr_html_(self) -> str:
        return train_html(self)

    @property
    def loss(self) -> np.ndarray:
        """The total training loss of each epoch, float64 [epochs]."""
        return np.array([epoch.loss for epoch in self.epochs], dtype=np.float64)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that epochs have: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ..."""
        return tuple(dict.fromkeys(name for epoch in self.epochs for name in epoch.figures))

    def losses(self, label: str | None = None) -> np.ndarray:
        """Loss of each epoch, float64 [epochs]: of one label (its node's, by default), or the total.

        Raises:
            ResultError: no loss has this label.
        """
        if label is None:
            return self.loss
        there = [name.removeprefix("loss.") for name in self.figures if name.startswith("loss.")]
        if label not in there and self.epochs:
            raise formatting.absent(
                f"run {self.label!r} has no loss {label!r}", label, there, "use one of these labels"
            )
        return self.figure(f"loss.{label}")

    def figure(self, name: str) -> np.ndarray:
        """A figure of each epoch, float64 [epochs]; NaN where an epoch does not have it.

        Raises:
            ResultError: no epoch has it.
        """
        if name not in self.figures:
            remedy = "use one of these names" if self.epochs else "run at least one epoch"
            there = self.figures or ("no complete epoch",)
            raise formatting.absent(f"run {self.label!r} has no figure {name!r}", name, there, remedy)
        return np.array([epoch.figures.get(name, np.nan) for epoch in self.epochs], dtype=np.float64)

    def curve(self, name: str) -> plots.Curve:
        """A figure over the numbers of the epochs, as lines are drawn.

        Raises:
            ResultError: no epoch has it.
        """
        return plots.Curve(np.array([epoch.number for epoch in self.epochs]), self.figure(name))

    def plot(self, *figures: str, ax: Any = None) -> Any:
        """Draw figures over the epochs.

        Args:
            figures: names; by default `loss` and `val_loss`, or where there are none all that sum up.
            ax: matplotlib's Axes to draw on; a new figure if None.

        Returns:
            the Axes.

        Raises:
            ResultError: no epoch has a figure of this name, or matplotlib is not installed.
        """
        names = plots.chosen(figures, self.figures, self.label, len(self.epochs))
        found = {name: self.curve(name) for name in names}
        return plots.curves(found, ax, title=self.label, xlabel="epoch", ylabel=plots.measure_of(names))

    def to_pandas(self) -> Any:
        """The table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())

    def to_arrow(self) -> Any:
        """A table with a row for each epoch: `epoch`, `steps`, `seconds`, and every figure."""
        import pyarrow as pa

        columns = {
            "epoch": np.array([epoch.number for epoch in self.epochs], dtype=np.int64),
            "steps": np.array([epoch.steps for epoch in self.epochs], dtype=np.int64),
            "seconds": np.array([epoch.seconds for epoch in self.epochs], dtype=np.float64),
        }
        return pa.table({**columns, **{name: self.figure(name) for name in self.figures}})

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data, ready for JSON, which has no NaN: what is not finite is None."""
        return {
            "label": self.label,
            "epochs": [
                {"epoch": e.number, "steps": e.steps, "seconds": e.seconds, **finite(e.figures)} for e in self.epochs
            ],
            "stop_reason": self.stop_reason,
            "error": told(self.error),
            "events": [event.to_dict() for event in self.events],
            **when(self.number, self.started, self.seconds),
        }
