"""Compared: the values of a column as conditions between rows compare them."""

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
class Compared:
    """What a relation compares: `values` [n], where they are `missing`, bool [n], and the values that numbers stand
    for, where it compares these."""

    values: np.ndarray
    missing: np.ndarray
    distinct: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> Compared:
        """The same of some rows."""
        return Compared(self.values[rows], self.missing[rows], self.distinct)


def column_of(asked: object, name: str, rows: Mapping[str, Rows]) -> tuple[Rows, str]:
    """Whose column is meant by a name: that of the only feature set that has it, or `"FEATURE_SET.COLUMN"`.

    Args:
        asked: by what, for messages.
        name: the name.
        rows: the feature sets, by label.

    Raises:
        ColumnError: no feature set has it.
        SamplerError: several have it.
    """
    found = [its for its in rows.values() if name in its.columns]
    if len(found) == 1:
        return found[0], name
    label, _, rest = name.partition(".")
    if label in rows and rest in rows[label].columns:
        return rows[label], rest
    if found:
        raise SamplerError(
            f"{asked} names a column of several feature sets",
            available=listed(its.label for its in found),
            hint=f"write {f'{found[0].label}.{name}'!r}",
        )
    raise no_column(" and ".join(rows), name, dict.fromkeys(one for its in rows.values() for one in its.columns))


def single(rows: Rows, name: str) -> np.ndarray:
    """The numbers of a column, one for each row.

    Raises:
        SamplerError: there are several for each.
    """
    array = rows.array(name)
    if math.prod(array.shape[1:]) != 1:
        raise SamplerError(
            f"{name!r} of {rows.label!r} has {list(array.shape[1:])} numbers in a row",
            available="rows are compared by one value each",
            hint="make a column of what is to be compared",
        )
    return array.reshape(len(array))


def coded(rows: Rows, name: str) -> Compared:
    """A number for each different value of a column, int64 [n].

    Raises:
        SamplerError: Arrow cannot say which are equal.
    """
    column = rows.column(name)
    if is_numeric(column.type) and not column.null_count:
        values = single(rows, name)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
        return Compared(np.unique(values, return_inverse=True)[1].reshape(-1), missing)
    try:
        encoded = column.combine_chunks().dictionary_encode()
    except NotImplementedError:  # Arrow's own error is one of these
        raise SamplerError(
            f"{name!r} of {rows.label!r} is {column.type}, of which Arrow cannot say what is equal",
            hint=f"make a column of text or numbers of it, or use Where({name!r}, function)",
        ) from None
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_floating(encoded.dictionary.type):  # Arrow tells 0.0 from -0.0, and takes NaN for a value
        distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
        merged = np.where(np.isnan(distinct), -1, np.unique(distinct, return_inverse=True)[1].reshape(-1))
        codes = np.append(merged, -1)[codes]
    return Compared(codes, codes < 0)


def objects(column: Any) -> np.ndarray:
    """The values of an Arrow column, as they are in Python."""
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    return values


def key_of(value: Any) -> Any:
    """What tells values apart; lists and mappings cannot be keys."""
    return str(value) if isinstance(value, (list, dict)) else value
