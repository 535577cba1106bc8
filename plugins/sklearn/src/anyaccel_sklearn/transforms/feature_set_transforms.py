"""The transforms of a feature set: `FeatureSet.fit_transform` and `transform_like`, and reading saved transforms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import KINDS, is_numeric, padding_of
from anyaccel.data.feature_set import ALL, FeatureSet, FeatureSetView
from anyaccel.data.roles import ROLES, Names, listed
from anyaccel.data.rows import Rows
from anyaccel.data.transforms import Transforms, transform_columns
from anyaccel.errors import TransformError
from anyaccel_sklearn.transforms.fitted_transform import FittedTransform, read_transform
from anyaccel_sklearn.transforms.plain_state import TransformReader
from anyaccel_sklearn.transforms.sklearn_calls import check_transform, described
from anyaccel_sklearn.transforms.table_transform import TableTransform
from anyaccel_sklearn.transforms.transform_log import (
    AppliedTransform,
    FitRequest,
    apply,
    fit,
    log_of,
    put,
)


def fit_transform(
    rows: FeatureSet,
    transforms: Transforms,
    transform: Any,
    columns: Names,
    *,
    fit_on: str | FeatureSetView | None,
    role: str | None,
    into: str | None,
) -> tuple[Any, Transforms]:
    """Return a table with columns transformed, fitted to some rows and applied to all, and its transforms.

    See `FeatureSet.fit_transform` for the arguments.
    """
    if not isinstance(transform, TableTransform):
        check_transform(transform)
    names = transform_columns(rows, columns)
    what = described(transform, names, rows.label)
    if isinstance(fit_on, FeatureSetView) and fit_on.feature_set is rows:
        view = fit_on
    elif isinstance(fit_on, str):
        view = rows.split(fit_on)
    else:
        splits = [*rows.splits, ALL]
        what_was_passed = "a view of another feature set" if isinstance(fit_on, FeatureSetView) else repr(fit_on)
        missing = f"{what} needs fit_on=, the rows to fit it to"
        raise TransformError(
            missing if fit_on is None else f"{what} cannot be fitted on {what_was_passed}",
            available=f"splits: {listed(splits)}",
            hint=f"write fit_on={splits[0]!r}; 'all' would include the rows that you evaluate on",
        )
    # The padding of a row would be fitted as if it were data
    padded = next((name for name in names if padding_of(rows.schema.field(name)) is not None), None)
    if padded is not None:
        raise TransformError(
            f"{what}: the rows of {padded!r} differ in length, which transforms do not support",
            hint="transform the values before you create the FeatureSet",
        )
    table = rows.to_arrow()
    if role not in (None, *ROLES):
        raise TransformError(
            f"{what}: role={shown(role)} is not a role", available=listed(ROLES), hint="use one of these"
        )
    if into is None:
        result_role = role
    else:
        if not isinstance(into, str) or not into or into in rows.columns:
            raise TransformError(
                f"{what}: into={into!r} is not a name for a new column",
                available=f"columns: {listed(rows.columns)}",
                hint="choose another name, or leave into= out to replace the column",
            )
        roles = {rows.role(name) for name in names}
        if role is None and len(roles) > 1:
            raise TransformError(
                f"{what}: the role of {into!r} is ambiguous",
                available=listed(sorted(roles)),
                hint="write role='feature'",
            )
        result_role = role or roles.pop()
    request = FitRequest(
        transform=transform,
        columns=names,
        fit_on=fit_on if isinstance(fit_on, str) else view.name,
        fit_rows=view.rows,
        role=result_role,
        into=into,
        what=what,
    )
    fitted, output = fit(table, request)
    if role is None:
        texts = [name for name in names if rows.role(name) == "tag" and not is_numeric(rows.schema.field(name).type)]
        if texts and output.dtype.kind in KINDS:
            raise TransformError(
                f"{what} converts the tag {texts[0]!r} to numbers, but models cannot use a tag",
                available=f"role={listed(map(repr, ROLES))}",
                hint="write role='feature', or role='tag' to keep it a tag",
            )
    table, log = put(table, transforms.applied, fitted, output, what)
    return table, log_of(log)


def transform_like(rows: Rows, transforms: Transforms, wanted: Sequence[FittedTransform]) -> tuple[Any, Transforms]:
    """Return a table with fitted transforms applied, and its transforms; see `FeatureSet.transform_like`."""
    if set(wanted) & set(transforms.fitted):
        problem = f"{rows.label!r} already has these transforms"
        raise TransformError(problem, cause=listed(transforms.fitted), hint="apply them once")
    table, log = rows.to_arrow(), transforms.applied
    for fitted in wanted:
        what = described(fitted.transform, fitted.columns, rows.label)
        if _is_skipped(fitted, table, what):
            log = (*log, AppliedTransform(fitted, {}))
        else:
            table, log = put(table, log, fitted, apply(table, fitted, what), what)
    return table, log_of(log)


def _is_skipped(fitted: FittedTransform, table: Any, what: str) -> bool:
    """Return whether a transform of targets or tags is skipped because these are missing."""
    missing = [name for name in fitted.columns if name not in table.column_names]
    if not missing:
        return False
    if len(missing) == len(fitted.columns) and not fitted.makes_features:
        return True
    raise TransformError(
        f"{what} cannot be applied without {listed(missing)}",
        available=f"columns: {listed(table.column_names)}",
        hint="add these columns, or fit a separate transform to columns that may be missing",
    )


def read_transforms(configs: Sequence[Any], arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> Transforms:
    """Return the transforms from the results of their `get_config`; see `anyaccel.data.transforms.read_transforms`."""
    reader = TransformReader(arrays, allow)
    return log_of(tuple(AppliedTransform(read_transform(config, reader), {}) for config in configs))
