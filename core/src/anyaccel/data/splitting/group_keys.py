"""Keys: rows told apart by the values of columns, as the strata and the groups of a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import contiguous, is_numeric
from anyaccel.data.roles import Names, names_of
from anyaccel.errors import ColumnError, SplitError

if TYPE_CHECKING:
    from anyaccel.data.rows import Rows


@dataclass(frozen=True)
class Keys:
    """Which rows have the same values in some columns.

    Attributes:
        codes: int64 [n], a number for each row, from 0 on; rows of one number have the same values.
        columns: for each column its name, its values, and by code which of them, int64 [len(self)].
    """

    codes: np.ndarray
    columns: tuple[tuple[str, Any, np.ndarray], ...]

    def __len__(self) -> int:
        return len(self.columns[0][2])

    def shown(self, code: int) -> str:
        """The values behind a code, for a message: `label=3, who='x'`."""
        return ", ".join(f"{name}={_shown(values[int(which[code])])}" for name, values, which in self.columns)


def keys_of(rows: Rows, by: Names, asked: str) -> Keys:
    """LogEvent rows apart by one column or several, of any role and any type whose values are scalars.

    Args:
        rows: whose columns they are.
        by: name of the column, or several.
        asked: the argument that named them, for messages.

    Raises:
        SplitError: no column is named.
        ColumnError: there is no such column, or it has a row without a value (null or NaN), a shape per sample, or
            values that cannot be compared.
    """
    names = names_of(by)
    if not names:
        raise SplitError(f"{asked} of {rows.label!r} names no column", hint=f"name one, or leave {asked} out")
    encoded = [_encoded(rows, name, asked) for name in names]
    codes = np.zeros(len(rows), np.int64)
    for own, values in encoded:
        # Numbered anew after each column, so that the product stays small.
        codes = np.unique(codes * len(values) + own, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # Numbered by first row, so that neither the order of the names nor that of the values tells.
    first = np.unique(codes, return_index=True)[1]
    turn = np.argsort(first)
    codes, first = np.argsort(turn)[codes], first[turn]
    columns = [(name, values, own[first]) for name, (own, values) in zip(names, encoded, strict=True)]
    return Keys(codes, tuple(columns))


def _encoded(rows: Rows, name: str, asked: str) -> tuple[np.ndarray, Any]:
    """A code for each row, int64 [n], and the values by code."""
    rows.role(name)
    column = rows.column(name)
    _check_values(name, column.is_null().to_numpy(), asked)
    if not is_numeric(column.type):
        return _encoded_objects(name, contiguous(_decoded(column)), asked)
    if rows.spec(name).shape:
        raise _not_scalar(name, f"samples of shape {list(rows.spec(name).shape)}", asked)
    array = rows.array(name)
    _check_values(name, np.asarray(array != array), asked)
    values, codes = np.unique(array, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), values


def _encoded_objects(name: str, column: Any, asked: str) -> tuple[np.ndarray, Any]:
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        raise _not_scalar(name, f"values of type {column.type}", asked) from error
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _decoded(column: Any) -> Any:
    """Plain values for a dictionary or an extension type, which Arrow does not number."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column


def _check_values(name: str, missing: np.ndarray, asked: str) -> None:
    if missing.any():
        raise ColumnError(
            f"{asked} cannot use column {name!r}, which has no value in {int(missing.sum())} of {len(missing)} rows, "
            f"the first in row {int(missing.argmax())}",
            available="a null or NaN does not tell which rows belong together",
            hint="fill these places, or leave the rows out with filter() first",
        )


def _not_scalar(name: str, found: str, asked: str) -> ColumnError:
    return ColumnError(
        f"{asked} cannot use column {name!r}: it has {found}",
        available="strata and groups are told apart by scalars: numbers, text, dates and the like",
        hint="make a column with one scalar per row, such as the name of a class",
    )


def _shown(value: Any) -> str:
    if not isinstance(value, pa.Scalar):
        return repr(value.item())
    try:
        return repr(value.as_py())
    except ValueError:  # nanoseconds, which Python's own times do not have
        return str(pa.array([value]).cast(pa.string())[0])
