"""The columns of `fit` for weights of rows, groups and strata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import FeatureSet, FeatureSetView
from anyaccel.data.readers.dataframes import check_order_of_rows
from anyaccel.data.roles import Names, listed, names_of, stamp
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.fitting.tables import (
    LABEL,
    TRAIN,
    VALIDATION,
    RowSplit,
    TrainingData,
    column_names,
    is_table,
    missing_column,
    named_pair,
    tag_table,
)
from anyaccel.graph import AppliedLoss

_CLASSES, _YES_OR_NO = "cross_entropy", "binary_cross_entropy"
_WEIGHTS, _BALANCED = "sample_weight", "balanced"


class RowColumns:
    """The columns of a table with the weights of rows, and with the rows that stay in one split.

    Args:
        sample_weight: Column with the weight of each row, or an array; None for equal weights.
        class_weights: `"balanced"`, weights by class, or a list with one weight per class in order; None for equal
            weights.
        group: Columns whose equal values stay in one split; they are not features.
        stratify: Columns whose values are spread evenly over the splits; True for the target.
    """

    def __init__(
        self,
        sample_weight: Any = None,
        class_weights: Any = None,
        group: Names = None,
        stratify: Names | Literal[True] = None,
    ) -> None:
        self._sample_weight, self._class_weights = sample_weight, class_weights
        self._group, self._stratify = group, stratify

    def read(self, data: Any, features: Names, target: Names) -> tuple[Any, Names, Names]:
        """Return the data with the names of the features, without the columns of weights and groups.

        Raises:
            ColumnError: A column is missing.
        """
        if is_table(data):
            data, features, target = named_pair(data, features, target)
        self._data, self._target = data, names_of(target)
        if isinstance(data, (FeatureSet, FeatureSetView)):
            there = [*data.columns]
        else:
            names = column_names(data)
            there = list(tag_table(data, ...).column_names) if names is None else names
        weights = (self._sample_weight,) if isinstance(self._sample_weight, str) else ()
        apart = (*weights, *names_of(self._group))
        for name in (*apart, *(names_of(self._stratify) if self._stratify is not True else ())):
            if name not in there:
                raise missing_column(data, name, there)
        wrong = [name for name in apart if name in self._target]
        if wrong:
            problem = f"column {wrong[0]!r} is the target, but is also named in sample_weight= or group="
            raise ColumnError(problem, hint="name another column")
        if apart:
            of_data = there if is_table(data) else data.features
            chosen = of_data if features is None else names_of(features)
            features = [name for name in chosen if name not in (*apart, *self._target)]
        return data, features, target

    def split(self, validation: Any, seed: int) -> Any:
        """Return a fraction of the rows as a RowSplit that preserves groups and strata; any other validation unchanged.

        Raises:
            PhaseError: The validation is not a fraction of the rows.
            SplitError: Groups or strata cannot be split like this.
        """
        if self._group is None and self._stratify is None:
            return validation
        if not isinstance(validation, Real) or isinstance(validation, bool) or not 0 < float(validation) < 1:
            name = "group" if self._stratify is None else "stratify"
            problem = f"fit has {name}= and validation={shown(validation)}, but no fraction of the rows to split off"
            raise PhaseError(problem, hint=f"write validation=0.2, or leave {name}= out")
        strata = self._target if self._stratify is True else names_of(self._stratify)
        if self._stratify is True and not strata:
            raise PhaseError("fit has stratify=True but no named target", hint="write stratify='COLUMN'")
        groups, data = names_of(self._group), self._data
        if is_table(data):
            names = list(dict.fromkeys((*strata, *groups)))
            rows: Any = FeatureSet(LABEL, stamp(tag_table(data, names), dict.fromkeys(names, "tag")))
        else:
            rows = data
        view, shares = rows.view(), {TRAIN: 1.0 - float(validation), VALIDATION: float(validation)}
        copy = FeatureSetView(view.feature_set.cast({}), view.name, view.rows)  # the copy gets the splits
        parts = copy.split_random(shares, seed, stratify_by=strata or None, group_by=groups or None)
        return RowSplit(parts[TRAIN].rows, parts[VALIDATION].rows)

    def weighted(self, prepared: TrainingData, losses: Sequence[AppliedLoss], validation_data: Any) -> TrainingData:
        """Return the data with the weights of their rows as a column, including the validation data.

        Args:
            prepared: Data of the fit.
            losses: Losses to weight.
            validation_data: Validation as passed to `fit`.

        Raises:
            PhaseError: The weights match neither the rows nor the classes.
        """
        data = prepared.data
        if not self._weighs or not isinstance(data, FeatureSet):
            return prepared
        train = data.split(prepared.train).rows
        by_class = self._by_class(data, train, losses)
        weights = self._of_rows(data, self._data, "the data") * self._of_classes(data, by_class)
        if not weights[train].any():
            raise PhaseError("fit: the weights of all training rows are 0", hint="set a positive weight for some rows")
        column = _WEIGHTS
        while column in data.columns:
            column += "_"
        self._weights = f"{data.label}.{column}"
        data, validation = data.with_tags({column: weights}), prepared.validation
        if isinstance(validation, Mapping):
            ((label, rows),) = validation.items()
            base = rows.view().feature_set
            of_rows = self._of_rows(base, validation_data, "the validation") * self._of_classes(base, by_class)
            base = base.with_tags({column: of_rows})
            is_view = isinstance(rows, FeatureSetView)
            validation = {label: FeatureSetView(base, rows.name, rows.rows) if is_view else base}
        return replace(prepared, data=data, validation=validation)

    def applied(self, losses: Sequence[AppliedLoss]) -> tuple[AppliedLoss, ...]:
        """Return the losses with the weights of the rows."""
        if not self._weighs:
            return tuple(losses)
        named = [loss for loss in losses if loss.sample_weight is not None]
        if named:
            problem = "fit has weights, but its loss also has sample_weight="
            raise PhaseError(problem, hint="set the weights in only one of them")
        return tuple(
            AppliedLoss(
                loss.loss,
                loss.on or None,
                loss.inputs,
                loss.weight,
                loss.label or None,
                sample_weight=self._weights,
                mask=loss.mask,
            )
            for loss in losses
        )

    @property
    def _weighs(self) -> bool:
        return self._sample_weight is not None or self._class_weights is not None

    def _of_rows(self, data: FeatureSet, weighted_rows: Any, what: str) -> np.ndarray:
        """Return the weight of each row, [n]."""
        weights: Any = self._sample_weight
        if weights is None:
            return np.ones(len(data))
        if isinstance(weights, str):
            where = f"column {weights!r}"
            rows = weighted_rows.view().feature_set if isinstance(weighted_rows, (FeatureSet, FeatureSetView)) else None
            column = tag_table(weighted_rows, [weights]).column(weights) if rows is None else rows.column(weights)
            values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
        else:
            where, values = "sample_weight=", np.asarray(weights)
            columns = weighted_rows if isinstance(weighted_rows, Mapping) else {"the table": weighted_rows}
            check_order_of_rows(LABEL, {**columns, "sample_weight": weights})
            if what != "the data":
                problem = "fit has sample_weight= as an array, but the weights of the other validation rows are missing"
                raise PhaseError(problem, hint="name a column that both have: sample_weight='COLUMN'")
        if values.shape != (len(data),):
            raise PhaseError(
                f"fit: {where} of shape {list(values.shape)} has no weight for each of {len(data)} rows",
                hint="pass one number per row",
            )
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise PhaseError(
                f"fit: {where} has weights that are not numbers", hint="use numbers of 0 or more"
            ) from error
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            row = int(wrong.argmax())
            raise PhaseError(
                f"fit: {where} has {int(wrong.sum())} weights of {what} that are negative, infinite or missing, the "
                f"first in row {row}: {values[row]}",
                hint="use numbers of 0 or more",
            )
        return values

    def _by_class(self, data: FeatureSet, train: np.ndarray, losses: Sequence[AppliedLoss]) -> np.ndarray | None:
        """Return the weight of each class, [classes]; None if they are equal."""
        asked: Any = self._class_weights
        if asked is None:
            return None
        loss = losses[0].loss if len(losses) == 1 else None
        is_classes = loss is not None and loss.own is None and loss.name in (_CLASSES, _YES_OR_NO)
        if not is_classes or len(data.targets) != 1 or data.array(data.targets[0]).ndim > 1:
            name = "several losses" if loss is None else f"the loss {loss.name!r}"
            raise PhaseError(
                f"fit has class_weights={shown(asked)}, but {name} has no classes",
                available=f"class_weights for one target and loss={_CLASSES!r} or {_YES_OR_NO!r}",
                hint="set the weight of each row instead: sample_weight='COLUMN'",
            )
        codes = class_codes(data)
        names = data.inverse(np.arange(max(2, int(codes.max()) + 1)), data.targets).tolist()
        counts = np.bincount(codes[train], minlength=len(names))
        if isinstance(asked, str):
            if asked != _BALANCED:
                problem = f"fit: class_weights={asked!r} is not a rule for weights"
                raise PhaseError(problem, available=repr(_BALANCED), hint=f"write class_weights={_BALANCED!r}")
            n_present = int((counts > 0).sum())
            return np.where(counts > 0, len(train) / (n_present * np.maximum(counts, 1)), 1.0)
        if isinstance(asked, Mapping):
            unknown = [name for name in asked if name not in names]
            if unknown:
                raise PhaseError(
                    f"fit: class_weights has a weight for {unknown[0]!r}, which is not a class of {data.targets[0]!r}",
                    available=listed(map(repr, names)),
                    hint="use the classes of the target: class_weights={CLASS: 2.0}",
                )
            values = [asked.get(name, 1.0) for name in names]
        else:
            values = list(
                asked.tolist() if hasattr(asked, "tolist") else asked if isinstance(asked, (list, tuple)) else ()
            )
            if len(values) != len(names):
                raise PhaseError(
                    f"fit: class_weights={shown(asked)} has no weight for each of {len(names)} classes",
                    available=f"classes in order: {listed(map(repr, names))}",
                    hint="pass a number for each, or class_weights={CLASS: 2.0}",
                )
        wrong = [value for value in values if not (isinstance(value, Real) and 0 <= float(value) < math.inf)]
        if wrong:
            problem = f"fit: class_weights has {shown(wrong[0])}, which is not a weight"
            raise PhaseError(problem, hint="use numbers of 0 or more")
        return np.array(values, np.float64)

    def _of_classes(self, data: FeatureSet, by_class: np.ndarray | None) -> np.ndarray:
        return np.ones(len(data)) if by_class is None else by_class[class_codes(data)]


def class_codes(data: FeatureSet) -> np.ndarray:
    """Return the class index of each row, [n], of the only target.

    Raises:
        PhaseError: The target does not hold classes.
    """
    values = data.array(data.targets[0])
    codes = values.astype(np.int64)
    if values.ndim != 1 or (codes != values).any() or codes.min() < 0:
        problem = f"fit has class_weights=, and the target {data.targets[0]!r} has values other than class numbers"
        raise PhaseError(problem, hint="set the weight of each row instead: sample_weight='COLUMN'")
    return codes
