"""What came out of runs: figures per epoch, metrics and predictions; to Arrow and to plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet, Rows
from anyaccel.errors import ResultError
from anyaccel.graph import Plan
from anyaccel.phases import Epoch, Figures


@dataclass(frozen=True, slots=True, repr=False)
class TrainResults:
    """What a TrainPhase gave: one entry for each complete epoch.

    `error` is what ended the run, None if it ended well; `stop_reason` is why it was stopped early, `""` if it was not.
    """

    label: str
    epochs: tuple[Epoch, ...]
    plan: Plan | None
    stop_reason: str = ""
    error: BaseException | None = None

    def __repr__(self) -> str:
        last = self.epochs[-1].figures if self.epochs else {}
        return f"TrainResults({self.label!r}, {len(self.epochs)} epochs{_shown(last)}{_ended(self.error)})"

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
        return self.loss if label is None else self.figure(f"loss.{label}")

    def figure(self, name: str) -> np.ndarray:
        """A figure of each epoch, float64 [epochs]; NaN where an epoch does not have it.

        Raises:
            ResultError: no epoch has it.
        """
        if name not in self.figures:
            raise ResultError(
                f"run {self.label!r} has no figure {name!r}",
                there=", ".join(self.figures) or "no complete epoch",
                remedy="use one of these names" if self.epochs else "run at least one epoch",
            )
        return np.array([epoch.figures.get(name, np.nan) for epoch in self.epochs], dtype=np.float64)

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
                {"epoch": e.number, "steps": e.steps, "seconds": e.seconds, **_finite(e.figures)} for e in self.epochs
            ],
            "stop_reason": self.stop_reason,
            "error": _told(self.error),
        }


@dataclass(frozen=True, slots=True, repr=False)
class EvalResults:
    """What an EvalPhase gave. Predictions are by node, or by `node.OUTPUT` where a node has several.

    `loss` is the weighted sum of `losses`, NaN where there are none. `error` is what ended the run, None if nothing.
    """

    label: str
    loss: float
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    predictions: Mapping[str, np.ndarray]
    plan: Plan | None
    rows: Mapping[str, Rows] = field(default_factory=dict, repr=False)
    error: BaseException | None = None

    def __repr__(self) -> str:
        losses = {"loss": self.loss} if self.losses else {}
        kept = f", predictions of {', '.join(self.predictions)}" if self.predictions else ""
        return f"EvalResults({self.label!r}{_shown({**losses, **self.metrics})}{kept}{_ended(self.error)})"

    def prediction(self, name: str) -> np.ndarray:
        """The predictions of a node, [n, *shape], in the order of the data.

        Raises:
            ResultError: none were kept for it.
        """
        if name not in self.predictions:
            raise ResultError(
                f"run {self.label!r} has no predictions of {name!r}",
                there=", ".join(self.predictions) or "none",
                remedy="name the node in EvalPhase(outputs=[...])",
            )
        return self.predictions[name]

    def to_arrow(self) -> Any:
        """A table with a row for each sample: the predictions, and the targets and tags that belong to them.

        Columns of predictions are called `prediction.NAME`, the others by their own name.
        """
        import pyarrow as pa

        arrays = {f"prediction.{name}": array for name, array in self.predictions.items()}
        if not arrays:
            raise ResultError(
                f"run {self.label!r} kept no predictions", remedy="name nodes in EvalPhase(outputs=[...])"
            )
        table = FeatureSet.from_dict("predictions", arrays, list(arrays)).to_arrow()
        for rows in self.rows.values():
            for name in (*rows.targets, *rows.tags):
                field_name = name if name not in table.column_names else f"{rows.label}.{name}"
                table = table.append_column(pa.field(field_name, rows.column(name).type), rows.column(name))
        return table

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data, ready for JSON; what is not finite is None, predictions are left out."""
        return {
            "label": self.label,
            **_finite({"loss": self.loss}),
            "losses": _finite(self.losses),
            "metrics": _finite(self.metrics),
            "error": _told(self.error),
        }


def eval_results(
    label: str, figures: Figures | None, plan: Plan | None, rows: Mapping[str, Rows], error: BaseException | None
) -> EvalResults:
    """Results of an EvalPhase, empty if it did not get to its end."""
    done = figures or Figures({}, math.nan, {}, {})
    loss = done.loss if done.losses else math.nan
    return EvalResults(label, loss, done.losses, done.metrics, done.outputs, plan, rows, error)


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _told(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _shown(figures: Mapping[str, float]) -> str:
    """The figures that sum up, for a line of text."""
    return "".join(f", {name} {value:.4g}" for name, value in figures.items() if "." not in name)


def _ended(error: BaseException | None) -> str:
    return f", ended by {type(error).__name__}" if error is not None else ""
