"""Training data: from what was given to `fit` to a feature set with encoded targets, splits and scaled features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.data import FeatureSet, FeatureSetView, Source
from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.fitting.tables import (
    columns_before_transforms,
    feature_set_of,
    is_table,
    named_pair,
    new_rows,
    source_of,
    transformed_like,
)
from anyaccel.formulas import LOSSES
from anyaccel.specs import Loss, takes_classes

TRAIN, VALIDATION = "train", "validation"
_ROLES = "say so where the feature set is made: FeatureSet.from_dict(..., feature_keys=[...], target_keys=[...])"


@dataclass(frozen=True)
class TrainingData:
    """The data of a fit.

    Attributes:
        data: what the graph is wired to.
        train: the data of its TrainPhase.
        validation: the data of its validation; None for none.
    """

    data: FeatureSet | Source
    train: Any
    validation: Any


def training_data(
    given: Any, *, features: Names, target: Names, loss: Loss, validation: Any, scaler: Any, seed: int
) -> TrainingData:
    """Data from the arguments of `fit`.

    Raises:
        PhaseError: a validation that does not fit the data, or no target.
        DataError, ColumnError, SplitError, TransformError: see `fit`.
    """
    if scaler is not None:
        scaler = load(SETTINGS, "fit.scaler")(scaler)
    if not (is_table(given) or isinstance(given, (FeatureSet, FeatureSetView))):
        return _streamed(given, features, target, validation, scaler)
    if is_table(given):
        given, features, target = named_pair(given, features, target)
        if target is None:
            raise PhaseError("fit needs the name of the target", hint="write fit(model, table, target='COLUMN', ...)")
        data, rows = feature_set_of(given, ... if features is None else features, target), None
    else:
        data, rows = _selected(given, features, target)
        validation = _own_split(validation, given, data)
    if not data.targets and not _texts(data, target):
        texts = [f"target={name!r}" for name in data.tags if _texts(data, name)]
        raise PhaseError(
            f"{data.label!r} has no target",
            available=", ".join(texts),
            hint="write target='COLUMN'" if texts else _ROLES,
        )
    data = _with_numeric_targets(data, target, loss)
    train, split = _splits(data, rows, validation, seed)
    if scaler is not None:
        data = data.fit_transform(scaler, data.features, fit_on=train)
    return TrainingData(data, train, split if split or validation is None else {data.label: _other(validation, data)})


def _streamed(given: Any, features: Names, target: Names, validation: Any, scaler: Any) -> TrainingData:
    source = source_of(given, features, target)
    if scaler is not None:
        raise PhaseError("a source of batches is not scaled", hint="scale its rows before, or give a table")
    if isinstance(validation, (Real, str)):
        raise PhaseError(
            f"validation={validation!r} of a source of batches, which cannot be split",
            hint="give the source of the validation: validation=other_loader",
        )
    return TrainingData(source, source, validation)


def _selected(given: FeatureSet | FeatureSetView, features: Names, target: Names) -> tuple[FeatureSet, Any]:
    """A copy of a feature set, which gets splits of its own, and the rows of a view of it."""
    base = given if isinstance(given, FeatureSet) else given.feature_set
    texts = _texts(base, target)
    numeric = None if target is None else [name for name in names_of(target) if name not in texts]
    for role, names, there in (("feature", names_of(features), base.features), ("target", numeric or (), base.targets)):
        wrong = next((name for name in names if name in base.columns and name not in there), None)
        if wrong is not None:
            problem = f"fit: column {wrong!r} of {base.label!r} is not a {role} of it"
            raise ColumnError(problem, available=listed(there), hint=_ROLES)
    return base.select(features, numeric), None if isinstance(given, FeatureSet) else given.rows


def _texts(data: FeatureSet, target: Names) -> list[str]:
    """The targets that are not numbers; they are tags as long as they are not encoded."""
    names = names_of(target)
    return [name for name in names if name in data.columns and not is_numeric(data.schema.field(name).type)]


def _with_numeric_targets(data: FeatureSet, target: Names, loss: Loss) -> FeatureSet:
    """Text as indices of classes, and integers as floats where the loss compares floats."""
    rule = None if loss.own is not None else LOSSES.get(loss.name)
    for name in _texts(data, target):
        if rule is not None and not rule.takes_classes and not rule.takes_logits:
            raise _no_number(data, name, loss.name)
        data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all", role="target")
        classes = len(np.unique(data.array(name)))
        if loss.own is None and loss.name == "binary_cross_entropy" and classes > 2:
            raise PhaseError(
                f"the target {name!r} has {classes} classes, and {loss.name} compares two",
                hint="write loss='cross_entropy', with one output of the model for each class",
            )
    elementwise = loss.own is None and loss.name in LOSSES and not takes_classes(loss)
    for name in data.targets:
        is_bool = data.spec(name).dtype == "bool"
        if takes_classes(loss) and is_bool:
            data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all")
        elif elementwise and "float" not in data.spec(name).dtype:
            data = data.cast({name: "float64"})
    return data


def _no_number(data: FeatureSet, name: str, loss: str) -> PhaseError:
    """The error for a target that a loss of numbers cannot compare; indices of its texts would mean nothing."""
    column = data.to_arrow().column(name)
    values = enumerate(column.to_pylist())
    row, value = next((pair for pair in values if not _is_number(pair[1])), (0, column[0].as_py()))
    return PhaseError(
        f"the target {name!r} is {column.type}, and the loss {loss!r} compares numbers",
        cause=f"row {row} has {shown(value)}",
        hint="make the column numbers before (pandas: to_numeric(table[COLUMN])); for classes the loss is "
        "'cross_entropy'",
    )


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _splits(data: FeatureSet, rows: Any, validation: Any, seed: int) -> tuple[str, str | None]:
    """Names of the splits to train on and to validate on; None for a validation on other data, or none."""
    if isinstance(validation, str):
        data.split(validation)
        if rows is None and TRAIN not in data:
            raise PhaseError(
                f"validation={validation!r} is a split of {data.label!r}, which has no split {TRAIN!r} to train on",
                available=listed(data.splits),
                hint="give the rows to train on: fit(model, data['SPLIT'], ...)",
            )
        return (TRAIN if rows is None else _registered(data, rows)), validation
    if isinstance(validation, Real) and not isinstance(validation, bool):
        wanted = "a share of the rows"
        share = float(arguments.number(PhaseError, "", "validation", validation, lambda it: 0 < it < 1, wanted, 0.2))
        if {TRAIN, VALIDATION} & set(data.splits):
            raise PhaseError(
                f"{data.label!r} has splits, and validation={share} would make others of the same name",
                available=listed(data.splits),
                hint="name the split: validation='SPLIT'",
            )
        whole = data.view() if rows is None else FeatureSetView(data, "given", rows)
        whole.split_random({TRAIN: 1.0 - share, VALIDATION: share}, seed)
        return TRAIN, VALIDATION
    if rows is None and data.splits:
        raise PhaseError(
            f"{data.label!r} has splits, and without a validation fit would train on all its rows",
            available=listed(data.splits),
            hint=f"say which: fit(model, data[{next(iter(data.splits))!r}], ...), or data.view() for all",
        )
    return ("all" if rows is None else _registered(data, rows)), None


def _registered(data: FeatureSet, rows: Any, usual: str = "given") -> str:
    """The name of a split with these rows."""
    name = next((name for name, view in data.splits.items() if view.rows.tolist() == rows.tolist()), usual)
    data.add_split(name, rows)
    return name


def _own_split(given: Any, data: FeatureSet | FeatureSetView, copy: FeatureSet) -> Any:
    """The name of the split with the rows of a view of the given data; any other validation as it is."""
    if isinstance(given, FeatureSetView) and given.feature_set is data.view().feature_set:
        return _registered(copy, given.rows, VALIDATION)
    return given


def _other(given: Any, data: FeatureSet) -> FeatureSet | FeatureSetView:
    """Rows of another table to validate on, transformed as the data are."""
    if isinstance(given, (FeatureSet, FeatureSetView)):
        return transformed_like(given, data)
    if not is_table(given):
        problem = f"validation={shown(given)} does not fit a table"
        raise PhaseError(problem, hint="give a share of the rows, the name of a split, or another table")
    return transformed_like(new_rows(given, columns_before_transforms(data)), data)
