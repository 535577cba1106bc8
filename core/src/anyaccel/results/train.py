"""Results of a TrainPhase: losses and metrics per epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints
from anyaccel.results import formatting
from anyaccel.results.base import PhaseResults, saved_as
from anyaccel.results.notebook import train_html
from anyaccel.results.records import Epoch

if TYPE_CHECKING:
    from anyaccel.results import plots


@class_hints
@saved_as("train")
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TrainResults(PhaseResults):
    """Results of a TrainPhase: one entry of `epochs` for each complete epoch.

    `stop_reason` is the reason for stopping the run early, or `""`. The other fields are the same as in PhaseResults.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
        >>> phase = aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse"), epochs=5)
        >>> results = graph.run(phase, progress="none")
        >>> results.loss.shape, results.figures
        ((5,), ('loss', 'loss.net'))
    """

    epochs: tuple[Epoch, ...]
    stop_reason: str = ""

    def __repr__(self) -> str:
        last = formatting.summary(self.epochs[-1].figures) if self.epochs else ""
        ended = formatting.ended(self.error, self.events)
        return f"TrainResults({self.label!r}, {len(self.epochs)} epochs{last}{ended})"

    if not TYPE_CHECKING:  # type checkers are to know the fields alone

        def __getattr__(self, name: str) -> Any:
            is_own = name.startswith("_") or hasattr(TrainResults, name)
            if is_own or name not in self.figures:
                return AttributeHints.__getattr__(self, name)
            hint = f"; it is a figure: figure({name!r})"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def _repr_html_(self) -> str:
        return train_html(self)

    @property
    def loss(self) -> np.ndarray:
        """Total training loss per epoch, float64 [epochs]."""
        return np.array([epoch.loss for epoch in self.epochs], dtype=np.float64)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the values that epochs have: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, ..."""
        return tuple(dict.fromkeys(name for epoch in self.epochs for name in epoch.figures))

    def losses(self, label: str | None = None) -> np.ndarray:
        """Return a loss per epoch, float64 [epochs].

        Args:
            label: Label of a loss (by default the label of its node); None for the total.

        Raises:
            ResultError: no loss has this label.
        """
        if label is None:
            return self.loss
        labels = [name.removeprefix("loss.") for name in self.figures if name.startswith("loss.")]
        if label not in labels and self.epochs:
            problem = f"run {self.label!r} has no loss {label!r}"
            raise formatting.unknown_name(problem, label, labels, "use one of these labels")
        return self.figure(f"loss.{label}")

    def figure(self, name: str) -> np.ndarray:
        """Return a value per epoch, float64 [epochs]; NaN for epochs without it.

        Raises:
            ResultError: no epoch has it.
        """
        if name not in self.figures:
            hint = "use one of these names" if self.epochs else "run at least one epoch"
            validated = any(figure.startswith("val_") for figure in self.figures)
            if self.epochs and not validated and str(name).startswith("val_"):
                hint = "add a validation to the phase: TrainPhase(..., validation='val')"
                raise formatting.unknown_name(f"run {self.label!r} has no figure {name!r}", "", self.figures, hint)
            raise formatting.unknown_name(f"run {self.label!r} has no figure {name!r}", name, self.figures, hint)
        return np.array([epoch.figures.get(name, np.nan) for epoch in self.epochs], dtype=np.float64)

    def curve(self, name: str) -> plots.Curve:
        """Return a value over the epoch numbers, for plotting.

        Raises:
            ResultError: no epoch has it.
        """
        from anyaccel.results import plots

        return plots.Curve(np.array([epoch.number for epoch in self.epochs]), self.figure(name))

    def plot(self, *figures: str, ax: Any = None) -> Any:
        """Plot values over the epochs.

        Args:
            figures: Names; by default `loss` and `val_loss`, or every total if these do not exist.
            ax: Matplotlib Axes to draw on; None creates a new figure.

        Returns:
            The Axes.

        Raises:
            ResultError: no epoch has a value with this name, or matplotlib is not installed.
        """
        from anyaccel.results import plots

        names = plots.figures_to_plot(figures, self.figures, self.label, len(self.epochs))
        curves = {name: self.curve(name) for name in names}
        return plots.line_plot(curves, ax, title=self.label, xlabel="epoch", ylabel=plots.y_label(names))

    def to_arrow(self) -> Any:
        """Return a table with a row per epoch: `epoch`, `steps`, `seconds`, and a column for each value."""
        import pyarrow as pa

        columns = {
            "epoch": np.array([epoch.number for epoch in self.epochs], dtype=np.int64),
            "steps": np.array([epoch.steps for epoch in self.epochs], dtype=np.int64),
            "seconds": np.array([epoch.seconds for epoch in self.epochs], dtype=np.float64),
        }
        return pa.table({**columns, **{name: self.figure(name) for name in self.figures}})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON; values that are not finite are None."""
        epochs = [
            {"epoch": epoch.number, "steps": epoch.steps, "seconds": epoch.seconds, **formatting.finite(epoch.figures)}
            for epoch in self.epochs
        ]
        return {"label": self.label, "epochs": epochs, "stop_reason": self.stop_reason, **self.run_record()}
