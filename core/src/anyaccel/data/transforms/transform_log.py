"""Steps: transforms at work on Arrow tables, and what is remembered to take them back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import check_complete, column_spec, contiguous, is_numeric, to_numpy
from anyaccel.data.readers.array_conversion import number_column, tag_column
from anyaccel.data.roles import listed, read_roles, stamp
from anyaccel.data.transforms.fitted_transform import FittedTransform, cut, fillers_of, result_layout
from anyaccel.data.transforms.sklearn_calls import fitted_copy, narrowed, transformed
from anyaccel.errors import ColumnError, TransformError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A transform that was applied, and the Arrow field and column of each column that it took (none: it took none)."""

    fitted: FittedTransform
    sources: Mapping[str, tuple[Any, Any]]

    def undone(self, table: Any) -> Any:
        """A table as it was before; columns that were left out since stay out, unless this made the only trace."""
        if self.fitted.results == self.fitted.columns:
            there = [name for name in self.sources if name in table.column_names]
            for name in there:
                table = table.set_column(table.schema.get_field_index(name), *self.sources[name])
            return table
        (made,) = self.fitted.results
        if made not in table.column_names:
            return table
        index = table.schema.get_field_index(made)
        table = table.remove_column(index)
        absent = [pair for name, pair in self.sources.items() if name not in table.column_names]
        for field, column in reversed(absent):
            table = table.add_column(index, field, column)
        return table


def matrix(table: Any, names: Sequence[str]) -> np.ndarray:
    """Columns side by side, [n, numbers], in memory of their own; of objects if one of them is not of numbers.

    Raises:
        ColumnError: a column has nulls among numbers.
    """
    parts = [_flat(name, table.column(name)) for name in names]
    texts = any(part.dtype == np.object_ for part in parts)
    return np.concatenate([part.astype(object) for part in parts] if texts else parts, axis=1)


def _flat(name: str, column: Any) -> np.ndarray:
    if not is_numeric(column.type):
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column)).reshape(-1, 1)
    check_complete(name, column)
    return to_numpy(name, contiguous(column)).reshape(len(column), -1)


def sample_shape(table: Any, name: str) -> tuple[int, ...]:
    """Shape per sample of a column; `()` if it is not of numbers."""
    kind = table.schema.field(name).type
    return column_spec(name, kind).shape if is_numeric(kind) else ()


def _dtype(table: Any, name: str) -> str | None:
    kind = table.schema.field(name).type
    return column_spec(name, kind).dtype if is_numeric(kind) else None


def owners(table: Any, names: Sequence[str]) -> list[str]:
    """The column of each number of `matrix`."""
    return [name for name in names for _ in range(math.prod(sample_shape(table, name)))]


def check_fits(table: Any, fitted: FittedTransform, what: str) -> None:
    """Make sure that a fitted transform can work on a table: its columns are alike, and there is room for a new one.

    Raises:
        TransformError: a column has another shape, or the new one is there already.
    """
    new = [name for name in fitted.results if name not in fitted.columns and name in table.column_names]
    if new:
        raise TransformError(
            f"{what} makes the column {new[0]!r}, which is there already",
            available=f"columns: {listed(table.column_names)}",
            hint="leave this column out, or give it another name",
        )
    for name, shape in zip(fitted.columns, fitted.shapes, strict=True):
        if sample_shape(table, name) != shape:
            raise TransformError(
                f"{what}: column {name!r} has samples of shape {list(sample_shape(table, name))}",
                available=f"in fitting they had {list(shape)}",
                hint="give data of the same columns",
            )


def fit(
    table: Any,
    transform: Any,
    names: tuple[str, ...],
    fit_on: tuple[str, np.ndarray],
    role: str | None,
    into: str | None,
    what: str,
) -> tuple[FittedTransform, np.ndarray]:
    """A copy of a transform fitted to some rows (their name and numbers) of columns, and what it makes of all rows.

    Raises:
        TransformError: it cannot be fitted or applied, or gives what cannot be.
        ColumnError: a column has nulls among numbers.
    """
    fit_name, rows = fit_on
    x = matrix(table, names)
    own = fitted_copy(transform, x[rows], what)
    made = transformed(own, x, owners(table, names), what)
    shapes = tuple(sample_shape(table, name) for name in names)
    results, result_shapes = result_layout(names, shapes, made.shape[1], into, what)
    roles = {role} if role else {read_roles("", table.schema)[name] for name in names}
    fillers = fillers_of(made[rows] if len(results) > 1 else made[:1])
    fitted = FittedTransform(own, names, results, fit_name, role, "feature" in roles, shapes, result_shapes, fillers)
    return fitted, made


def put(
    table: Any, steps: tuple[Step, ...], fitted: FittedTransform, made: np.ndarray, what: str
) -> tuple[Any, tuple[Step, ...]]:
    """The table with the results of a transform in their places, and the steps with this one.

    Raises:
        TransformError: a feature or target would not be of numbers.
    """
    roles = read_roles("", table.schema)
    sources = {name: (table.schema.field(name), table.column(name)) for name in fitted.columns}
    dtypes = [_dtype(table, name) for name in fitted.columns]
    floats = np.result_type(*dtypes) if None not in dtypes else None
    in_place = fitted.results == fitted.columns
    for index, (name, values) in enumerate(zip(fitted.results, cut(made, fitted.result_shapes), strict=True)):
        role = fitted.role or roles[name]
        column = _column(name, narrowed(values, dtypes[index] if in_place else floats), role, what)
        roles[name] = role
        if name in table.column_names:
            field = table.schema.field(name).with_type(column.type)
            table = table.set_column(table.schema.get_field_index(name), field, column)
        else:
            table = table.append_column(pa.field(name, column.type), column)
    return stamp(table, roles), (*steps, Step(fitted, sources))


def _column(name: str, values: np.ndarray, role: str, what: str) -> Any:
    if role == "tag":
        return tag_column(name, values)
    try:
        return number_column(name, values)
    except ColumnError as error:
        raise TransformError(
            f"{what} does not give numbers for {name!r}: {error.problem}", hint="give it role='tag'"
        ) from error
