"""The values of a column as codes and numbers that conditions between rows compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.roles import listed, no_column
from anyaccel.data.rows import Rows
from anyaccel.errors import SamplerError


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """The values of a column that a condition compares.

    Attributes:
        values: Numbers or codes [n].
        missing: Whether a value is missing, bool [n].
        distinct: Values of the codes if the condition compares codes, or None.
    """

    values: np.ndarray
    missing: np.ndarray
    distinct: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> ComparedColumn:
        """Return the values of some rows."""
        return ComparedColumn(self.values[rows], self.missing[rows], self.distinct)


def find_column(condition: object, name: str, rows: Mapping[str, Rows]) -> tuple[Rows, str]:
    """Return the rows and the column of a name: the only feature set that has it, or `"FEATURE_SET.COLUMN"`.

    Args:
        condition: Condition that names it, for messages.
        name: The name.
        rows: The feature sets, by label.
    """
    matches = [source for source in rows.values() if name in source.columns]
    if len(matches) == 1:
        return matches[0], name
    label, _, rest = name.partition(".")
    if label in rows and rest in rows[label].columns:
        return rows[label], rest
    if matches:
        raise SamplerError(
            f"{condition} names a column of several feature sets",
            available=listed(source.label for source in matches),
            hint=f"write {f'{matches[0].label}.{name}'!r}",
        )
    columns = dict.fromkeys(column for source in rows.values() for column in source.columns)
    raise no_column(" and ".join(rows), name, columns)


def single_values(rows: Rows, name: str) -> np.ndarray:
    """Return the numbers of a column, one for each row."""
    array = rows.array(name)
    if math.prod(array.shape[1:]) != 1:
        raise SamplerError(
            f"{name!r} of {rows.label!r} has {list(array.shape[1:])} numbers in a row",
            cause="rows are compared by one value per row",
            hint="add a column with the values to compare",
        )
    return array.reshape(len(array))


def encoded(rows: Rows, name: str) -> ComparedColumn:
    """Return a code for each different value of a column, int64 [n]."""
    column = rows.column(name)
    if is_numeric(column.type) and not column.null_count:
        values = single_values(rows, name)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
        return ComparedColumn(np.unique(values, return_inverse=True)[1].reshape(-1), missing)
    try:
        dictionary = column.combine_chunks().dictionary_encode()
    except NotImplementedError:  # the base of Arrow's own error
        raise SamplerError(
            f"{name!r} of {rows.label!r} is {column.type}, which Arrow cannot compare",
            hint=f"convert it to a column of text or numbers, or use Where({name!r}, function)",
        ) from None
    codes = dictionary.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_floating(dictionary.dictionary.type):  # Arrow distinguishes 0.0 from -0.0, and treats NaN as a value
        distinct = dictionary.dictionary.to_numpy(zero_copy_only=False)
        merged = np.where(np.isnan(distinct), -1, np.unique(distinct, return_inverse=True)[1].reshape(-1))
        codes = np.append(merged, -1)[codes]
    return ComparedColumn(codes, codes < 0)


def python_values(column: Any) -> np.ndarray:
    """Return the values of an Arrow column as Python objects, an object array [n]."""
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    return values


def hashable(value: Any) -> Any:
    """Return a value as a key of a dict; lists and mappings, which cannot be keys, as text."""
    return str(value) if isinstance(value, (list, dict)) else value
