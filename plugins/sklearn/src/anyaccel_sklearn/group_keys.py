"""Rows grouped by the values of columns: the strata and the groups of a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_numeric
from anyaccel.data.roles import Names, names_of
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError, SplitError


@dataclass(frozen=True)
class GroupKeys:
    """Groups of rows with the same values in some columns.

    Attributes:
        codes: Group number of each row, int64 [n], from 0; rows with the same number have the same values.
        columns: Name of each column, its distinct values, and the index of the value for each code, int64 [len(self)].
    """

    codes: np.ndarray
    columns: tuple[tuple[str, Any, np.ndarray], ...]

    def __len__(self) -> int:
        return len(self.columns[0][2])

    def shown(self, code: int) -> str:
        """Return the values of a code for a message: `label=3, who='x'`."""
        return ", ".join(f"{name}={_shown(values[int(which[code])])}" for name, values, which in self.columns)


def group_keys(rows: Rows, by: Names, argument: str) -> GroupKeys:
    """Group rows by one or several columns, of any role and any type with scalar values.

    Args:
        rows: Rows with these columns.
        by: Name of the column, or several.
        argument: Argument with the names, for messages.
    """
    names = names_of(by)
    if not names:
        raise SplitError(f"{argument} of {rows.label!r} names no column", hint=f"name one, or leave {argument} out")
    encoded = [_encoded(rows, name, argument) for name in names]
    codes = np.zeros(len(rows), np.int64)
    for own, values in encoded:
        # Renumbered after each column, so that the product stays small.
        codes = np.unique(codes * len(values) + own, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # Numbered by first row, so that neither the order of the names nor that of the values matters.
    first = np.unique(codes, return_index=True)[1]
    turn = np.argsort(first)
    codes, first = np.argsort(turn)[codes], first[turn]
    columns = [(name, values, own[first]) for name, (own, values) in zip(names, encoded, strict=True)]
    return GroupKeys(codes, tuple(columns))


def _encoded(rows: Rows, name: str, argument: str) -> tuple[np.ndarray, Any]:
    """Return a code for each row, int64 [n], and the values by code."""
    rows.role(name)
    column = rows.column(name)
    _check_values(name, column.is_null().to_numpy(), argument)
    if not is_numeric(column.type):
        return _encoded_objects(name, contiguous(_decoded(column)), argument)
    if rows.spec(name).shape:
        raise _not_scalar(name, f"samples of shape {list(rows.spec(name).shape)}", argument)
    array = rows.array(name)
    _check_values(name, np.asarray(array != array), argument)
    values, codes = np.unique(array, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), values


def _encoded_objects(name: str, column: Any, argument: str) -> tuple[np.ndarray, Any]:
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        raise _not_scalar(name, f"values of type {column.type}", argument) from error
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _decoded(column: Any) -> Any:
    """Return the plain values of a dictionary or extension type, which Arrow does not encode."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column


def _check_values(name: str, missing: np.ndarray, argument: str) -> None:
    if missing.any():
        raise ColumnError(
            f"{argument} cannot use column {name!r}, which has no value in {int(missing.sum())} of {len(missing)} "
            f"rows, the first in row {int(missing.argmax())}",
            cause="a null or NaN does not assign the row to a group",
            hint="fill these places, or leave the rows out with filter() first",
        )


def _not_scalar(name: str, found: str, argument: str) -> ColumnError:
    return ColumnError(
        f"{argument} cannot use column {name!r}: it has {found}",
        cause="strata and groups must be scalars: numbers, text, dates and similar types",
        hint="add a column with one scalar per row, such as the name of a class",
    )


def _shown(value: Any) -> str:
    if not isinstance(value, pa.Scalar):
        return repr(value.item())
    try:
        return repr(value.as_py())
    except ValueError:  # nanoseconds, which Python's own times do not support
        return str(pa.array([value]).cast(pa.string())[0])
