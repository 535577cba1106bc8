"""Metrics in the units of a target that `fit` has scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet
from anyaccel.fitting.tables import treatment_in
from anyaccel.metrics import Metric

_SCALE_FREE = ("r2", "explained_variance")


class MetricInUnits:
    """A metric of a scaled target, computed in the target's units.

    Args:
        metric: Metric to compute.
        data: Data whose only target is scaled.
    """

    def __init__(self, metric: Metric, data: FeatureSet) -> None:
        self.metric, self._data = metric, data
        self.__name__ = metric.label

    def __call__(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Return the metric of outputs and targets after their scaling is undone."""
        return self.metric.compute(*(self._data.inverse(values, self._data.targets) for values in (outputs, targets)))


def metrics_in_units(metrics: Any, data: Any) -> Any:
    """Return metrics of values in the units of the only target if `fit` has scaled it; otherwise unchanged."""
    is_list = not isinstance(metrics, Mapping)  # which EvalPhase refuses
    if not is_list or not isinstance(data, FeatureSet) or len(data.targets) != 1 or not _is_scaled(data):
        return metrics
    several: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    return [_in_units(item if isinstance(item, Metric) else Metric(item), data) for item in several]


def _is_scaled(data: FeatureSet) -> bool:
    """Return whether the target was transformed after features were built from a table, which only `fit` does."""
    treated = [treatment_in(fitted) is not None for fitted in data.transforms]
    later = data.transforms[treated.index(True) :] if any(treated) else ()
    return any(fitted.results == data.targets for fitted in later)


def _in_units(metric: Metric, data: FeatureSet) -> Metric:
    if metric.name in _SCALE_FREE or metric.targets != "targets" or metric.mask is not None:
        return metric
    return Metric(MetricInUnits(metric, data), on=metric.on, label=metric.label)
