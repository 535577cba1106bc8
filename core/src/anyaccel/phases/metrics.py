"""Metrics: named measures and functions over all predictions, in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, SpecError
from anyaccel.specs import LOSS_ALIASES, LOSSES
from anyaccel.suggestions import did_you_mean

Measure = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Fraction of samples classified correctly.

    Outputs are scores [n, classes] with class indices [n] or [n, 1] or probabilities [n, classes] as targets; or
    logits [n] or [n, 1] of class 1 with targets of 0 and 1; or integer classes.
    """
    if outputs.dtype.kind not in "fc":
        return float(np.mean(outputs == _aligned(targets, outputs)))
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        classes = targets.argmax(axis=1) if targets.shape == outputs.shape else _indices(targets, outputs)
        return float(np.mean(outputs.argmax(axis=1) == classes))
    classes = _aligned(targets, outputs)
    if not np.isin(classes, (0, 1)).all():
        raise SpecError(
            f"accuracy takes a single output as the logit of class 1, but the targets have {len(np.unique(classes))} "
            "values, not 0 and 1 alone",
            hint="give the model one output per class",
        )
    return float(np.mean((outputs > 0) == (classes == 1)))


def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over all elements."""
    return float(np.mean((_float(outputs) - _float(targets, outputs)) ** 2))


def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Square root of the mean squared error."""
    return float(np.sqrt(mse(outputs, targets)))


def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error over all elements."""
    return float(np.mean(np.abs(_float(outputs) - _float(targets, outputs))))


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Coefficient of determination over all elements; NaN if the targets are constant."""
    predicted, truth = _float(outputs), _float(targets, outputs)
    variation = float(np.sum((truth - truth.mean()) ** 2))
    return float("nan") if variation == 0 else 1.0 - float(np.sum((predicted - truth) ** 2)) / variation


METRICS: Mapping[str, Measure] = {"accuracy": accuracy, "mse": mse, "rmse": rmse, "mae": mae, "r2": r2}
HIGHER_IS_BETTER = frozenset({"accuracy", "r2"})
"""Names in METRICS of which the highest value is the best; of the others it is the lowest."""


@dataclass(frozen=True, slots=True, init=False)
class Metric:
    """A metric, computed once over all predictions of a phase.

    Args:
        measure: a name (accuracy, mse, rmse, mae, r2), or a function of outputs and targets (NumPy arrays, samples
            along the first axis; copies of its own) that returns a number.
        on: label of the node whose output it measures; None for every node with a loss in the phase, else the output
            nodes of the graph.
        targets: what outputs are compared with: `"targets"` as for losses, or `"FEATURE_SET.COLUMN"`.
        label: name in results; by default that of the measure.

    Raises:
        SpecError: an unknown name, or something that cannot be called.
    """

    measure: Measure
    on: str | None
    targets: str
    label: str

    def __init__(self, measure: Any, on: str | None = None, targets: str = "targets", label: str | None = None) -> None:
        if isinstance(measure, str) and measure not in METRICS:
            raise SpecError(
                f"no metric is called {shown(measure)}", available=", ".join(METRICS), hint=_hint(measure.lower())
            )
        if isinstance(measure, type) or not (isinstance(measure, str) or callable(measure)):
            hint = f"create one: {measure.__name__}()" if isinstance(measure, type) else "give a name or a function"
            raise SpecError(f"{shown(measure)} is not a metric", available=", ".join(METRICS), hint=hint)
        for name, value in (("on", on), ("targets", targets), ("label", label)):
            if value is not None or name == "targets":
                arguments.text(SpecError, "Metric: ", name, value)
        object.__setattr__(self, "measure", METRICS[measure] if isinstance(measure, str) else measure)
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(
            self, "label", label or (measure if isinstance(measure, str) else getattr(measure, "__name__", "metric"))
        )

    def get_config(self) -> dict[str, Any]:
        """The metric as plain data.

        Raises:
            ConfigError: the measure is a function of your own.
        """
        name = next((name for name, measure in METRICS.items() if measure is self.measure), None)
        if name is None:
            raise ConfigError(
                f"metric {self.label!r} is a function, which cannot be saved as configuration",
                hint="use a named metric: " + ", ".join(METRICS),
            )
        return {"measure": name, "on": self.on, "targets": self.targets, "label": self.label}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Metric:
        """A metric from its configuration.

        Raises:
            ConfigError: malformed.
        """
        known = ("measure", "on", "targets", "label")
        if not isinstance(config, Mapping) or not isinstance(config.get("measure"), str) or set(config) - set(known):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a metric",
                available=f"keys: {', '.join(known)}",
                hint="write {'measure': 'accuracy'}",
            )
        return cls(**dict(config))


_ALIASES = {
    "acc": "accuracy",
    "mean_squared_error": "mse",
    "root_mean_squared_error": "rmse",
    "mean_absolute_error": "mae",
    "r2_score": "r2",
}


def _hint(name: str) -> str:
    loss = LOSS_ALIASES.get(name, name)
    if loss in LOSSES and loss not in METRICS:
        return f"{loss} is a loss: write losses=[AppliedLoss({loss!r}, on='NODE')]"
    return did_you_mean(_ALIASES.get(name, name), METRICS, "use one of these, or give a function")


def _indices(targets: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Class indices [n] for scores [n, classes]."""
    indices, count = _aligned(targets, scores[:, 0]), scores.shape[1]
    out_of_range = indices[(indices < 0) | (indices >= count)]
    if out_of_range.size:
        raise SpecError(
            f"accuracy: the targets have class index {out_of_range[0]}, but there are {count} scores per sample",
            available=f"0 to {count - 1}",
            hint="number the classes from 0, or pass a function as metric",
        )
    return indices


def _float(values: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """In float64, and in the shape of `like` if that differs only in axes of size 1."""
    array = values.astype(np.float64, copy=False)
    return array if like is None else _aligned(array, like)


def _aligned(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Targets in the shape of the outputs if that differs only in axes of size 1; anything else would broadcast."""
    axes, wanted = ([size for size in array.shape[1:] if size != 1] for array in (targets, outputs))
    if axes != wanted or len(targets) != len(outputs):
        raise SpecError(
            f"a metric cannot compare outputs {list(outputs.shape)} with targets {list(targets.shape)}",
            hint="name other targets in Metric(..., targets='FEATURE_SET.COLUMN'), or pass a function as metric",
        )
    return targets.reshape(outputs.shape)
