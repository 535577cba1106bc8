"""Transforms applied to Arrow tables, and the log that undoes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from anyaccel.data.arrow_columns import (
    check_complete,
    column_spec,
    contiguous,
    is_numeric,
    is_readable,
    to_numpy,
)
from anyaccel.data.joined_columns import join
from anyaccel.data.readers.array_conversion import number_column, tag_column
from anyaccel.data.roles import Names, listed, read_roles, stamp
from anyaccel.data.rows import Rows
from anyaccel.data.transforms import Transforms, relevant_transforms, transform_columns
from anyaccel.errors import ColumnError, TransformError
from anyaccel_sklearn.transforms.fitted_transform import (
    FittedTransform,
    fillers_of,
    result_layout,
    split_flat,
    split_joined,
)
from anyaccel_sklearn.transforms.sklearn_calls import fitted_copy, narrowed, transformed
from anyaccel_sklearn.transforms.table_transform import TableTransform


@dataclass(frozen=True, slots=True, eq=False)
class AppliedTransform:
    """A fitted transform that was applied to a table.

    Attributes:
        fitted: The transform.
        sources: Arrow field and earlier values of each column that it took; empty if it was skipped.
    """

    fitted: FittedTransform
    sources: Mapping[str, tuple[Any, Any]]

    def undone(self, table: Any) -> Any:
        """Return the earlier table; columns removed since then stay removed, unless only `into=` preserved them."""
        if self.fitted.results == self.fitted.columns:
            for name in self.sources:
                if name in table.column_names:
                    table = table.set_column(table.schema.get_field_index(name), *self.sources[name])
            return table
        (result,) = self.fitted.results
        if result not in table.column_names:
            return table
        index = table.schema.get_field_index(result)
        table = table.remove_column(index)
        absent = [source for name, source in self.sources.items() if name not in table.column_names]
        for field, column in reversed(absent):
            table = table.add_column(index, field, column)
        return table


Log = tuple[AppliedTransform, ...]
"""Applied transforms, oldest first."""


@dataclass(frozen=True, eq=False)
class TransformLog(Transforms):
    """The transforms of a feature set, at least one, and the columns before each."""

    applied: Log = ()

    def undone(self, rows: Rows, count: int | None = None) -> tuple[Any, Transforms]:
        """Return the Arrow table of `rows` without the last `count` (None: all) transforms, and those that remain."""
        kept = 0 if count is None else len(self.applied) - count
        table = rows.to_arrow()
        for applied in reversed(self.applied[kept:]):
            table = applied.undone(table)
        return table, log_of(self.applied[:kept])

    def inverse(self, rows: Rows, values: Any, columns: Names) -> np.ndarray:
        """Return values of columns of `rows` in the units before all transforms; see `FeatureSet.inverse`."""
        names = transform_columns(rows, columns, [name for fitted in self.fitted for name in fitted.results])
        array = np.asarray(values)
        relevant = relevant_transforms([applied.fitted for applied in self.applied], names)
        if not relevant:
            return array
        parts = split_joined(array, [self._current_shape(rows, name) for name in names], listed(names))
        pieces = dict(zip(names, parts, strict=True))
        for fitted in relevant:
            pieces = fitted.undo(pieces, rows.label)
        joined = join([pieces[name] for name in names if name in pieces] or list(pieces.values()))
        return joined.reshape(array.shape) if joined.size == array.size and set(pieces) == set(names) else joined

    def _current_shape(self, rows: Rows, name: str) -> tuple[int, ...]:
        for applied in reversed(self.applied):
            if name in applied.fitted.results:
                return applied.fitted.result_shapes[applied.fitted.results.index(name)]
        return rows.spec(name).shape


def log_of(applied: Log) -> Transforms:
    """Return the log of applied transforms."""
    return TransformLog(tuple(transform.fitted for transform in applied), applied) if applied else Transforms()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """A request to fit a transform.

    Attributes:
        transform: The user's object; a copy of it is fitted.
        columns: Names of its input columns.
        fit_on: Name of the rows used for fitting.
        fit_rows: Numbers of these rows, int64 [k].
        role: Role of the results; None keeps the role of each column.
        into: Name of one new column for the result; None replaces the columns.
        what: Beginning of messages.
    """

    transform: Any
    columns: tuple[str, ...]
    fit_on: str
    fit_rows: np.ndarray
    role: str | None
    into: str | None
    what: str


def fit(table: Any, request: FitRequest) -> tuple[FittedTransform, np.ndarray]:
    """Return a fitted copy of a transform, and its output for all rows of a table."""
    names, what = request.columns, request.what
    if isinstance(request.transform, TableTransform):
        copied = copy.deepcopy(request.transform)
        output = copied.fit_table(table.select(list(names)), request.fit_rows)
    else:
        x = _matrix(table, names, request.transform)
        copied = fitted_copy(request.transform, x[request.fit_rows], what, request.columns)
        output = transformed(copied, x, _owners(table, names), what)
    shapes = tuple(_sample_shape(table, name) for name in names)
    results, result_shapes = result_layout(names, shapes, output.shape[1], request.into, what)
    if isinstance(copied, TableTransform):
        result_shapes = ((output.shape[1],),)  # even a matrix of one column
    roles = {request.role} if request.role else {read_roles("", table.schema)[name] for name in names}
    fitted = FittedTransform(
        transform=copied,
        columns=names,
        results=results,
        fit_on=request.fit_on,
        role=request.role,
        makes_features="feature" in roles,
        shapes=shapes,
        result_shapes=result_shapes,
        fillers=fillers_of(output[request.fit_rows] if len(results) > 1 else output[:1]),
    )
    return fitted, output


def apply(table: Any, fitted: FittedTransform, what: str) -> np.ndarray:
    """Return the output of a fitted transform for all rows of another table."""
    new = [name for name in fitted.results if name not in fitted.columns and name in table.column_names]
    if new:
        raise TransformError(
            f"{what} creates the column {new[0]!r}, which already exists",
            available=f"columns: {listed(table.column_names)}",
            hint="leave this column out, or rename it",
        )
    for name, shape in zip(fitted.columns, fitted.shapes, strict=True):
        if _sample_shape(table, name) != shape:
            raise TransformError(
                f"{what}: column {name!r} has samples of shape {list(_sample_shape(table, name))}",
                cause=f"in fitting they had {list(shape)}",
                hint="pass data with the same columns",
            )
    names = fitted.columns
    if isinstance(fitted.transform, TableTransform):
        output = fitted.transform.transform_table(table.select(list(names)))
    else:
        output = transformed(fitted.transform, _matrix(table, names, fitted.transform), _owners(table, names), what)
    if output.shape[1] != fitted.width:
        raise TransformError(f"{what} returns rows of width {output.shape[1]}", cause=f"in fitting: {fitted.width}")
    return output


def put(table: Any, log: Log, fitted: FittedTransform, output: np.ndarray, what: str) -> tuple[Any, Log]:
    """Return the table with the output of a transform as columns, and the log with this transform."""
    roles = read_roles("", table.schema)
    sources = {name: (table.schema.field(name), table.column(name)) for name in fitted.columns}
    dtypes = [_dtype(table, name) for name in fitted.columns]
    common = np.result_type(*dtypes) if None not in dtypes else None
    in_place = fitted.results == fitted.columns
    for index, (name, values) in enumerate(zip(fitted.results, split_flat(output, fitted.result_shapes), strict=True)):
        roles[name] = fitted.role or roles[name]
        column = _column(name, narrowed(values, dtypes[index] if in_place else common), roles[name], what)
        if name in table.column_names:
            field = table.schema.field(name).with_type(column.type)
            table = table.set_column(table.schema.get_field_index(name), field, column)
        else:
            table = table.append_column(pa.field(name, column.type), column)
    return stamp(table, roles), (*log, AppliedTransform(fitted, sources))


def _column(name: str, values: np.ndarray, role: str, what: str) -> Any:
    if role == "tag":
        return tag_column(name, values)
    try:
        return number_column(name, values)
    except ColumnError as error:
        raise TransformError(
            f"{what} does not return numbers for {name!r}: {error.problem}", hint="use role='tag'"
        ) from error


def _matrix(table: Any, names: Sequence[str], transform: Any) -> np.ndarray:
    """Return columns side by side as transforms take them, [n, numbers], in new memory; objects if one is not numeric.

    Missing values are NaN, as in a pandas data frame, or None if the transform requires that.
    """
    missing = None if _asks_for_none(transform) else math.nan
    parts = [_flat(name, table.column(name), missing) for name in names]
    has_objects = any(part.dtype == np.object_ for part in parts)
    return np.concatenate([part.astype(object) for part in parts] if has_objects else parts, axis=1)


def _asks_for_none(transform: Any) -> bool:
    """Return whether a transform, or a part of it, has `missing_values=None`, or was fitted to None."""
    categories = getattr(transform, "categories_", None) or ()
    if getattr(transform, "missing_values", math.nan) is None or any(
        any(value is None for value in list(seen)[-2:]) for seen in categories
    ):
        return True
    parts = [
        part
        for name in ("steps", "transformers", "transformer_list")
        for _, part, *_ in getattr(transform, name, None) or ()
    ]
    return any(map(_asks_for_none, parts))


def _flat(name: str, column: Any, missing: float | None) -> np.ndarray:
    if is_readable(column):
        return to_numpy(name, contiguous(column)).reshape(len(column), -1)
    if is_numeric(column.type):
        is_integer = pa.types.is_integer(column.type)
        if column_spec(name, column.type).shape or (is_integer and not _is_exact(column)):
            check_complete(name, column)
    if is_numeric(column.type) and not pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy()).reshape(-1, 1)  # floats, NaN where it is null
    values = (missing if value is None else value for value in column.to_pylist())
    return np.fromiter(values, dtype=object, count=len(column)).reshape(-1, 1)


def _is_exact(column: Any) -> bool:
    """Return whether float64 represents all integers of a column exactly."""
    least, most = compute.min_max(column).as_py().values()
    return least is None or max(abs(least), abs(most)) <= 2**53


def _sample_shape(table: Any, name: str) -> tuple[int, ...]:
    arrow_type = table.schema.field(name).type
    return column_spec(name, arrow_type).shape if is_numeric(arrow_type) else ()


def _dtype(table: Any, name: str) -> str | None:
    arrow_type = table.schema.field(name).type
    return column_spec(name, arrow_type).dtype if is_numeric(arrow_type) else None


def _owners(table: Any, names: Sequence[str]) -> list[str]:
    """Return the column of each number of `_matrix`."""
    return [name for name in names for _ in range(math.prod(_sample_shape(table, name)))]
