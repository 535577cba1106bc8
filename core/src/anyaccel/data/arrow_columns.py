"""Columns: NumPy arrays as Arrow columns of any shape per sample, and Arrow columns as arrays without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.errors import ColumnError
from anyaccel.segment import TensorSpec

KINDS = "biuf"
WIDEST = 8
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's words that are not NumPy's
_TEXTS = ("text", "string", "large_string", "<U", "dictionary<values=string", "dictionary<values=large_string")
_DTYPES = "bool, int8 to int64, uint8 to uint64, float16, float32, float64"


def column_spec(name: str, kind: Any) -> TensorSpec:
    """Shape per sample and dtype of a column of the Arrow type `kind`.

    Raises:
        ColumnError: the type holds no numbers, or its samples are of no size.
    """
    extents, axes, value = _layout(kind)
    if not _is_number(value):
        raise not_numbers(name, str(kind))
    if 0 in extents:
        raise empty_axis(name, extents)
    return TensorSpec(tuple(extents[axis] for axis in axes), _FLOATS.get(str(value), str(value)))


def is_numeric(kind: Any) -> bool:
    """Whether columns of the Arrow type `kind` can be read as arrays."""
    extents, _, value = _layout(kind)
    return _is_number(value) and 0 not in extents


def type_name(name: str, kind: Any) -> str:
    """The Arrow type `kind` of a column for people: numbers as dtype and shape, dictionaries as `category`."""
    if is_numeric(kind):
        return str(column_spec(name, kind))
    return "category" if pa.types.is_dictionary(kind) else str(kind)


def not_numbers(name: str, found: str) -> ColumnError:
    """The error for a column that holds no numbers."""
    encode = f"then fit_transform(OneHotEncoder(), {name!r}, fit_on='train', role='feature')"
    return ColumnError(
        f"column {name!r} cannot be read as numbers: it is of type {found}",
        available=f"features and targets are of {_DTYPES}, of one shape in all rows",
        hint=f"name it in tag_cols/tag_keys, {encode}; column() reads a tag as it is"
        if found.startswith(_TEXTS)
        else "make numbers of it first, or pass it as a tag and read it with column()",
    )


def empty_axis(name: str, shape: tuple[int, ...]) -> ColumnError:
    """The error for a column whose samples have an axis of length 0."""
    return ColumnError(f"column {name!r} has samples of shape {list(shape)}, which hold no number")


def missing_values(name: str, rows: np.ndarray, what: str = "nulls") -> ColumnError:
    """The error for a column with values missing; `rows` is bool [n], true where one is."""
    return ColumnError(
        f"column {name!r} has {what} in {int(rows.sum())} of {len(rows)} rows, the first in row {int(rows.argmax())}",
        available="a column that is read as an array has a number in every place",
        hint="fill these places or leave the rows out; a float column may hold NaN",
    )


def ragged(name: str, found: str = "") -> ColumnError:
    """The error for a column whose samples differ in shape."""
    return ColumnError(
        f"column {name!r} is ragged: its samples differ in shape",
        available=f"{found}{', but ' if found else ''}all samples of a column have one shape",
        hint="pad or cut the samples to one shape, or keep the column as a tag",
    )


def is_readable(column: Any) -> bool:
    """Whether an Arrow chunked column can be read as an array: numbers, and no null, not even inside a sample."""
    return is_numeric(column.type) and not any(map(_null_count, column.chunks))


def check_complete(name: str, column: Any) -> None:
    """Make sure that an Arrow chunked column has no null, neither a whole sample nor inside one.

    Raises:
        ColumnError: it has; the message names the column, how many rows and the first of them.
    """
    if any(_null_count(chunk) for chunk in column.chunks):
        raise missing_values(name, np.concatenate([_null_rows(chunk) for chunk in column.chunks]))


def check_numbers(name: str, column: Any) -> None:
    """Make sure that an Arrow chunked column can be read as an array.

    Raises:
        ColumnError: it holds no numbers, which is told first, or has a null.
    """
    if not pa.types.is_null(column.type):
        column_spec(name, column.type)
    check_complete(name, column)
    column_spec(name, column.type)


def contiguous(column: Any) -> Any:
    """One Arrow array for a chunked column: its only chunk as it is, or its chunks combined in a copy."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def to_arrow(array: np.ndarray) -> Any:
    """An Arrow array on the memory of a C-contiguous numeric `array` [n, *shape] with no empty axis.

    Scalars per sample become a primitive column, other shapes a fixed-shape tensor column. Bool is packed into bits,
    with a copy, and (Arrow has no tensors of bits) nested fixed-size lists where samples have a shape.
    """
    flat = pa.array(array.reshape(-1))
    shape = array.shape[1:]
    if array.dtype == np.bool_:
        for extent in reversed(shape):
            flat = pa.FixedSizeListArray.from_arrays(flat, extent)
        return flat
    if not shape:
        return flat
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(shape))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), storage)


def to_numpy(name: str, column: Any) -> np.ndarray:
    """The values of a contiguous Arrow array without nulls, [n, *shape], read-only for good.

    The memory is Arrow's own, except that bool is unpacked into a copy.

    Raises:
        ColumnError: the type holds no numbers.
    """
    column_spec(name, column.type)
    extents, axes, _ = _layout(column.type)
    flat = column
    while not _is_number(flat.type):
        flat = _storage(flat).flatten()
    values: np.ndarray = flat.to_numpy(zero_copy_only=not pa.types.is_boolean(flat.type))
    return read_only(values.reshape(len(column), *extents).transpose(0, *(axis + 1 for axis in axes)))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that cannot be made writable again; every array that it is a view of becomes read-only too."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return array.view()


def by_row(marks: np.ndarray) -> np.ndarray:
    """Which rows have a mark, bool [n], of marks [n, *shape]."""
    return np.asarray(marks.reshape(len(marks), -1).any(axis=1))


def _layout(kind: Any) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Extents of one sample as they lie in memory, the order in which they are read, and the type of a value."""
    extents: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    while isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind):
        inner = tuple(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else (kind.list_size,)
        order = getattr(kind, "permutation", None) or range(len(inner))
        axes += tuple(len(extents) + axis for axis in order)
        extents += inner
        kind = kind.value_type
    return extents, axes, kind


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _storage(array: Any) -> Any:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _null_count(array: Any) -> int:
    array = _storage(array)
    inside = _null_count(array.flatten()) if pa.types.is_fixed_size_list(array.type) else 0
    return int(array.null_count) + inside


def _null_rows(array: Any) -> np.ndarray:
    """Rows that are null, bool [n]; where no row is, those with a null inside (`flatten` leaves null rows out)."""
    array = _storage(array)
    missing: np.ndarray = array.is_null().to_numpy(zero_copy_only=False)
    if missing.any() or not pa.types.is_fixed_size_list(array.type) or not len(array):
        return missing
    return by_row(_null_rows(array.flatten()).reshape(len(array), -1))
