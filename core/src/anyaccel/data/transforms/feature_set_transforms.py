"""The transforms of a feature set: what `FeatureSet.fit_transform`, `transform_like` and `inverse` do.

Each function takes the rows and the log of their transforms; those that change columns return a new Arrow table with
the new log, from which a feature set is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import KINDS, is_numeric
from anyaccel.data.padding import padding_of
from anyaccel.data.roles import ROLES, Names, listed, names_of, no_column
from anyaccel.data.rows import Rows
from anyaccel.data.transforms.fitted_transform import FittedTransform, join, relevant_transforms, split_joined
from anyaccel.data.transforms.sklearn_calls import described
from anyaccel.data.transforms.transform_log import AppliedTransform, FitRequest, Log, apply, fit, put
from anyaccel.errors import TransformError


def fitted_transforms(log: Log) -> tuple[FittedTransform, ...]:
    """The transforms of a log, the oldest first."""
    return tuple(applied.fitted for applied in log)


def transform_columns(rows: Rows, columns: Names, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the columns of a transform; those in `more` are allowed besides the columns of the rows."""
    names = names_of(columns)
    for name in names:
        if name not in rows.columns and name not in more:
            raise no_column(rows.label, name, rows.columns)
    if not names or len(set(names)) < len(names):
        raise TransformError(
            f"columns={columns!r} of {rows.label!r} names {'a column twice' if names else 'no column'}",
            available=listed(rows.columns),
            hint="name each column once",
        )
    return names


def fit_transform(rows: Rows, log: Log, request: FitRequest) -> tuple[Any, Log]:
    """A table with the columns of a request transformed: fitted to its rows, applied to all."""
    # What fills the places behind a row would be fitted as if it were data
    padded = next((name for name in request.columns if padding_of(rows.schema.field(name)) is not None), None)
    if padded is not None:
        raise TransformError(
            f"{request.what}: the rows of {padded!r} differ in length, which transforms do not take",
            available="columns of one shape per sample",
            hint="transform the values before they are given to the FeatureSet",
        )
    role = _result_role(rows, request)
    table = rows.to_arrow()
    fitted, output = fit(table, replace(request, role=role))
    if request.role is None:
        _check_tags(rows, request.columns, output, request.what)
    return put(table, log, fitted, output, request.what)


def _result_role(rows: Rows, request: FitRequest) -> str | None:
    """The requested role, or for a new column that of its sources; None if each column keeps its own."""
    role, into, what = request.role, request.into, request.what
    if role not in (None, *ROLES):
        raise TransformError(
            f"{what}: role={shown(role)} is not a role", available=listed(ROLES), hint="name one of these"
        )
    if into is None:
        return role
    if not isinstance(into, str) or not into or into in rows.columns:
        raise TransformError(
            f"{what}: into={into!r} is not a name for a new column",
            available=f"columns: {listed(rows.columns)}",
            hint="choose another name, or leave into= out to replace the column",
        )
    roles = {rows.role(name) for name in request.columns}
    if role is None and len(roles) > 1:
        raise TransformError(
            f"{what}: the role of {into!r} is not clear", available=listed(sorted(roles)), hint="write role='feature'"
        )
    return role or roles.pop()


def _check_tags(rows: Rows, names: Sequence[str], output: np.ndarray, what: str) -> None:
    """Numbers made of a text tag are mostly meant as a feature; as a tag no model would ever see them."""
    texts = [name for name in names if rows.role(name) == "tag" and not is_numeric(rows.schema.field(name).type)]
    if texts and output.dtype.kind in KINDS:
        raise TransformError(
            f"{what} makes numbers of the tag {texts[0]!r}, which would stay a tag that no model takes",
            available=f"role={listed(map(repr, ROLES))}",
            hint="write role='feature', or role='tag' to keep it a tag",
        )


def transform_like(rows: Rows, log: Log, other: Any) -> tuple[Any, Log]:
    """A table to which the transforms of another feature set or view are applied, as they were fitted there."""
    source = other.base if isinstance(other, Rows) else None
    transforms: tuple[FittedTransform, ...] = getattr(source, "transforms", ())
    if not transforms:
        raise TransformError(
            f"{rows.label!r} cannot be transformed like {other!r}",
            cause="it has no transforms",
            hint="give the feature set that fit_transform returned; the one that it was called on stays as it is",
        )
    own = fitted_transforms(log)
    if set(transforms) & set(own):
        raise TransformError(f"{rows.label!r} has these transforms already", cause=listed(own), hint="apply them once")
    table = rows.to_arrow()
    for fitted in transforms:
        what = described(fitted.transform, fitted.columns, rows.label)
        if _is_skipped(fitted, table, what):
            log = (*log, AppliedTransform(fitted, {}))
        else:
            table, log = put(table, log, fitted, apply(table, fitted, what), what)
    return table, log


def _is_skipped(fitted: FittedTransform, table: Any, what: str) -> bool:
    """Whether a transform of targets or tags is skipped because these are missing."""
    missing = [name for name in fitted.columns if name not in table.column_names]
    if not missing:
        return False
    if len(missing) == len(fitted.columns) and not fitted.makes_features:
        return True
    raise TransformError(
        f"{what} cannot be applied without {listed(missing)}",
        available=f"columns: {listed(table.column_names)}",
        hint="give these columns, or fit a transform of their own to those that may be missing",
    )


def undo_transforms(rows: Rows, log: Log, count: int | None = None) -> tuple[Any, Log]:
    """A table without the last `count` transforms; None for all."""
    if not log:
        raise TransformError(
            f"{rows.label!r} has no transform to undo",
            cause="its columns are as they came",
            hint="undo each transform once; predictions come back with inverse() or prediction(..., undo=True)",
        )
    kept = 0 if count is None else len(log) - count
    table = rows.to_arrow()
    for applied in reversed(log[kept:]):
        table = applied.undone(table)
    return table, log[:kept]


def no_fit_rows(fit_on: Any, splits: Sequence[str], what: str) -> TransformError:
    """The error where `fit_on` is neither the name of a split nor a view of the feature set.

    Args:
        fit_on: what was given; None for nothing.
        splits: names that would do.
        what: is to be fitted.
    """
    is_view = isinstance(fit_on, Rows) and fit_on.base is not fit_on
    given = "a view of another feature set" if is_view else repr(fit_on)
    missing = f"{what} needs fit_on=, the rows that it is fitted to"
    return TransformError(
        missing if fit_on is None else f"{what} cannot be fitted on {given}",
        available=f"splits: {listed(splits)}",
        hint=f"write fit_on={splits[0]!r}; 'all' also takes the rows that you evaluate on",
    )


def inverse(rows: Rows, log: Log, values: Any, columns: Names) -> np.ndarray:
    """Values of transformed columns in the units before all transforms; see `FeatureSet.inverse`."""
    transforms = fitted_transforms(log)
    names = transform_columns(rows, columns, [name for fitted in transforms for name in fitted.results])
    array = np.asarray(values)
    relevant = relevant_transforms(transforms, names)
    if not relevant:
        return array
    parts = split_joined(array, [_current_shape(rows, transforms, name) for name in names], listed(names))
    pieces = dict(zip(names, parts, strict=True))
    for fitted in relevant:
        pieces = fitted.undo(pieces, rows.label)
    joined = join([pieces[name] for name in names if name in pieces] or list(pieces.values()))
    return joined.reshape(array.shape) if joined.size == array.size and set(pieces) == set(names) else joined


def _current_shape(rows: Rows, transforms: Sequence[FittedTransform], name: str) -> tuple[int, ...]:
    for fitted in reversed(transforms):
        if name in fitted.results:
            return fitted.result_shapes[fitted.results.index(name)]
    return rows.spec(name).shape
