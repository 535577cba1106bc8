"""TableFeatures: from the columns of a table to features, classes and scaled targets; and metrics in their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import FeatureSet
from anyaccel.errors import PhaseError
from anyaccel.fitting.tables import LossOf, RawTable, treatment_in
from anyaccel.graph import AppliedLoss
from anyaccel.metrics import Metric
from anyaccel.specs import takes_classes
from anyaccel_sklearn.tables.plan import treatment_of
from anyaccel_sklearn.transforms.class_encoder import ClassEncoder
from anyaccel_sklearn.transforms.scalers import scaler_of

_SCALED_LOSSES = ("mse", "mae", "huber", "smooth_l1")
_SCALE_FREE = ("r2", "explained_variance")


class TableFeatures:
    """The features of a fit that are built from the columns of a table.

    Args:
        raw: The table.
        loss_of: Function that returns the named loss of a target, or None.
        seed: Seed of all random numbers.
    """

    def __init__(self, raw: RawTable, loss_of: LossOf, seed: int) -> None:
        self._raw, self._loss_of, self._seed = raw, loss_of, seed

    def with_class_names(self, data: FeatureSet) -> FeatureSet:
        """Replace integers that name classes by class indices.

        Raises:
            PhaseError: A target has only one class.
        """
        for name in data.targets:
            loss, values = self._loss_of(name), data.array(name)
            if loss is None or not takes_classes(loss):
                continue
            classes = np.unique(values).tolist()
            if values.ndim == 1 and len(classes) < 2:
                names = next((fitted.class_labels for fitted in data.transforms if name in fitted.results), classes)
                raise PhaseError(
                    f"the target {name!r} is {shown(names[0])} in all {len(values):,} "
                    f"{'row' if len(values) == 1 else 'rows'}: with one class there is "
                    "nothing to learn",
                    hint="pass rows of all classes",
                )
            if values.ndim == 1 and values.dtype.kind in "iu" and not np.array_equal(classes, np.arange(len(classes))):
                data = data.fit_transform(ClassEncoder(), name, fit_on="all")
        return data

    def with_features(self, data: FeatureSet, train: str) -> FeatureSet:
        """Return the data with one feature, which is built from all feature columns; and with scaled targets."""
        rows, how = data.split(train), self._raw.how
        target = data.array(data.targets[0])[rows.rows] if len(data.targets) == 1 else None
        target = None if target is None or target.ndim > 1 else target
        treatment: Any = treatment_of(
            how.preprocess,
            rows.to_arrow().select(list(self._raw.features)),
            target,
            as_categories=how.categories,
            embed=how.embed,
            embeds=how.embeds,
            seed=self._seed,
        )
        into = "features"
        while into in data.columns:
            into += "_"
        data = data.fit_transform(treatment, treatment.names, fit_on=train, role="feature", into=into)
        data = data.select(features=into)
        for name in data.targets:
            loss = self._loss_of(name)
            if loss is not None and loss.name in _SCALED_LOSSES:
                data = data.fit_transform(scaler_of("standard"), name, fit_on=train)
        return data

    @staticmethod
    def metrics_in_units(metrics: Any, data: FeatureSet, losses: Sequence[AppliedLoss]) -> Any:
        """Return metrics of values in the units of the targets that are scaled; others unchanged.

        Args:
            metrics: Metrics as an EvalPhase takes them.
            data: Data with the targets.
            losses: Losses on the model; a metric without a target compares what the first of them compares.
        """
        treated = [treatment_in(fitted) is not None for fitted in data.transforms]
        later = data.transforms[treated.index(True) :] if any(treated) else ()
        scaled = {name for fitted in later for name in fitted.results if name in data.targets}
        if isinstance(metrics, Mapping) or not scaled:  # EvalPhase refuses a mapping
            return metrics
        several: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
        usual = next((name for loss in losses for name in loss.inputs[1:]), "targets")
        return [_in_units(item if isinstance(item, Metric) else Metric(item), data, scaled, usual) for item in several]


class MetricInUnits:
    """A metric of scaled targets, computed in the units of the targets.

    Args:
        metric: Metric to compute.
        data: Data with the targets.
        columns: Targets that it compares.
    """

    def __init__(self, metric: Metric, data: FeatureSet, columns: Sequence[str]) -> None:
        self.metric, self._data, self._columns = metric, data, columns
        self.__name__ = metric.label

    def __call__(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Return the metric of outputs and targets after their scaling is undone."""
        return self.metric.compute(*(self._data.inverse(values, self._columns) for values in (outputs, targets)))


def _in_units(metric: Metric, data: FeatureSet, scaled: set[str], usual: str) -> Metric:
    compared = usual if metric.targets == "targets" else metric.targets
    columns = data.targets if compared == "targets" else (compared.partition(".")[2],)
    if metric.name in _SCALE_FREE or not scaled & set(columns):
        return metric
    in_units = MetricInUnits(metric, data, columns)
    return Metric(in_units, on=metric.on, targets=metric.targets, label=metric.label, mask=metric.mask)
