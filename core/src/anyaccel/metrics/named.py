"""The metrics that have a name: scikit-learn's names and short ones. Distributions add more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from anyaccel.distributions import METRICS as GROUP
from anyaccel.distributions import OFFERED, entry_points, load, named
from anyaccel.metrics import classification, regression

Measure = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric that has a name. A distribution adds one by an entry point of the group `anyaccel.named_metrics`.

    Attributes:
        measure: Function of outputs and targets, samples along the first axis.
        of_classes: Whether it measures classes, their scores or probabilities; positions are then flattened.
        higher_is_better: Whether the highest value is the best; otherwise the lowest is.
    """

    measure: Measure
    of_classes: bool = False
    higher_is_better: bool = False


def _of_classes(measure: Measure) -> NamedMetric:
    return NamedMetric(measure, of_classes=True, higher_is_better=True)


METRICS: Mapping[str, NamedMetric] = {
    "accuracy": _of_classes(classification.accuracy),
    "f1": _of_classes(classification.f1),
    **{
        f"f1_{average}": _of_classes(partial(classification.f1_average, average)) for average in classification.AVERAGES
    },
    "mse": NamedMetric(regression.mse),
    "rmse": NamedMetric(regression.rmse),
    "mae": NamedMetric(regression.mae),
    "r2": NamedMetric(regression.r2, higher_is_better=True),
}
"""Those of core."""

SYNONYMS: Mapping[str, str] = {
    **{f"{name}_score": name for name in ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "jaccard")},
    **{f"{name}_score": name for name in ("cohen_kappa", "roc_auc", "average_precision", "r2", "explained_variance")},
    "top_k_accuracy_score": "top_k_accuracy",
    "brier_score_loss": "brier_score",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "sparse_categorical_accuracy": "accuracy",
}
"""Names of scikit-learn's functions where metrics have those of its scorers, or shorter ones; and one of Keras."""


def metric_names() -> list[str]:
    """Return the names of all installed metrics.

    Example:
        >>> from anyaccel.metrics import metric_names
        >>> "accuracy" in metric_names()
        True
    """
    return [*METRICS, *(entry.name for entry in entry_points(GROUP))]


def known_names() -> list[str]:
    """Return the names of all installed metrics and of the metrics of anyaccel's own distributions."""
    return list(dict.fromkeys([*metric_names(), *" ".join(OFFERED.get(GROUP, {}).values()).split()]))


def find_metric(name: str) -> NamedMetric | None:
    """Return the metric with a name in `known_names`, or None.

    Raises:
        MissingDistributionError: its distribution is not installed.
    """
    return METRICS.get(name) or load(GROUP, name)


def name_of(measure: object) -> str | None:
    """Return the name of a function of core's named metrics; None for any other object."""
    return next((name for name, metric in METRICS.items() if metric.measure is measure), None)


def is_higher_better(figure: str) -> bool | None:
    """Return whether a higher value of an epoch (`loss`, `loss.LABEL`, `val_METRIC`) is better; None if unknown.

    Example:
        >>> from anyaccel.metrics import is_higher_better
        >>> is_higher_better("val_accuracy"), is_higher_better("loss")
        (True, False)
    """
    plain = figure.removeprefix("val_")
    label = plain.rpartition(".")[2]
    if label == "loss" or plain.startswith("loss."):
        return False
    name = SYNONYMS.get(label, label)
    # Without its distribution a name is the label of a metric of the user's, or of results that were loaded
    metric = find_metric(name) if name in METRICS or named(GROUP, name) else None
    return metric.higher_is_better if metric else None
