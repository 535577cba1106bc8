"""Arrow columns of any shape per sample: from NumPy arrays, and back to arrays without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.errors import ColumnError
from anyaccel.segment import TensorSpec

KINDS = "biuf"
WIDEST = 8
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names that differ from NumPy's
_TEXTS = ("text", "string", "large_string", "<U", "dictionary<values=string", "dictionary<values=large_string")
_DTYPES = "bool, int8 to int64, uint8 to uint64, float16, float32, float64"


def column_spec(name: str, arrow_type: Any) -> TensorSpec:
    """Return the shape per sample and the dtype of a column of an Arrow type."""
    extents, axes, value_type = _layout(arrow_type)
    if not _is_number(value_type):
        raise not_numbers(name, str(arrow_type))
    if 0 in extents:
        raise empty_axis(name, extents)
    return TensorSpec(tuple(extents[axis] for axis in axes), _FLOATS.get(str(value_type), str(value_type)))


def is_numeric(arrow_type: Any) -> bool:
    """Whether columns of an Arrow type can be read as arrays."""
    extents, _, value_type = _layout(arrow_type)
    return _is_number(value_type) and 0 not in extents


def type_name(name: str, arrow_type: Any) -> str:
    """Return the human-readable type of a column: numbers as dtype and shape, dictionaries as `category`."""
    if is_numeric(arrow_type):
        return str(column_spec(name, arrow_type))
    return "category" if pa.types.is_dictionary(arrow_type) else str(arrow_type)


def is_list(arrow_type: Any) -> bool:
    """Whether values of an Arrow type are lists of any length."""
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))


def list_leaf(arrow_type: Any) -> Any:
    """Return the type of the values in (nested) lists; any other type unchanged."""
    return list_leaf(arrow_type.value_type) if is_list(arrow_type) else arrow_type


def not_numbers(name: str, found_type: str) -> ColumnError:
    """Create the error for a column that is not numeric."""
    encode = f"then fit_transform(OneHotEncoder(), {name!r}, fit_on='train', role='feature'), or role='target'"
    if found_type.startswith("complex"):
        return ColumnError(
            f"column {name!r} cannot be read as numbers: it is of type {found_type}",
            cause=f"features and targets must be {_DTYPES}, with the same shape in all rows",
            hint="make a column of each part, values.real and values.imag",
        )
    return ColumnError(
        f"column {name!r} cannot be read as numbers: it is of type {found_type}",
        cause=f"features and targets must be {_DTYPES}, with the same shape in all rows",
        hint=f"name it in tags, {encode}; for texts, store token ids; column() reads a tag unchanged"
        if found_type.startswith(_TEXTS)
        else "convert it to numbers first, or pass it as a tag and read it with column()",
    )


def empty_axis(name: str, shape: tuple[int, ...]) -> ColumnError:
    """Create the error for a column whose samples have an axis of length 0."""
    return ColumnError(f"column {name!r} has samples of shape {list(shape)}, which are empty")


def missing_values(name: str, missing: np.ndarray, what: str = "nulls") -> ColumnError:
    """Create the error for a column with missing values; `missing` is bool [n]."""
    return ColumnError(
        f"column {name!r} has {what} in {int(missing.sum())} of {len(missing)} rows, the first in row "
        f"{int(missing.argmax())}",
        cause="an array column needs a number in every place",
        hint="fill these places or leave the rows out; a float column may hold NaN",
    )


def ragged(name: str, lengths: str = "") -> ColumnError:
    """Create the error for a column whose samples differ in shape."""
    return ColumnError(
        f"column {name!r} is ragged: its samples differ in shape",
        cause=f"{lengths}{', but ' if lengths else ''}all samples of a column have one shape",
        hint=f"in a FeatureSet, choose a padding value with pad={{{name!r}: 0}}; or pad or cut the samples to "
        "one shape, or keep the column as a tag",
    )


def is_readable(column: Any) -> bool:
    """Whether an Arrow chunked column can be read as an array: numeric, and without nulls, also inside samples."""
    return is_numeric(column.type) and not any(map(_null_count, column.chunks))


def check_complete(name: str, column: Any) -> None:
    """Check that an Arrow chunked column has no nulls, neither whole samples nor values inside one."""
    if any(map(_null_count, column.chunks)):
        raise missing_values(name, np.concatenate([_null_rows(chunk) for chunk in column.chunks]))


def check_numbers(name: str, column: Any) -> None:
    """Check that an Arrow chunked column can be read as an array."""
    if not pa.types.is_null(column.type):
        column_spec(name, column.type)
    check_complete(name, column)
    column_spec(name, column.type)


def contiguous(column: Any) -> Any:
    """Return a chunked column as one Arrow array: its only chunk, or several combined in a copy."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def to_arrow(array: np.ndarray) -> Any:
    """Return an Arrow array on the memory of a C-contiguous numeric `array` [n, *shape] without empty axes.

    Scalars per sample become a primitive column, other shapes a fixed-shape tensor column. Bool is packed into bits,
    with a copy; with a shape it becomes nested fixed-size lists, as Arrow has no tensors of bits.
    """
    shape = array.shape[1:]
    if array.dtype == np.bool_ or not shape:
        return fixed_lists(array)
    flat = pa.array(array.reshape(-1))
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(shape))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), storage)


def fixed_lists(values: np.ndarray) -> Any:
    """Return values [n, *shape] as an Arrow array of nested fixed-size lists, which Arrow can gather in lists."""
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for extent in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, extent)
    return array


# -- columns of lists of one length, as other writers of tables store vectors, read as samples of one shape ------------


def fixed_size_lists(name: str, column: Any) -> Any:
    """Return a chunked column of lists of numbers as fixed-size lists on the same memory; any other column unchanged.

    Lists may be nested. Chunks are kept, except that empty ones are dropped.
    """
    if not is_list(column.type) or not is_numeric(list_leaf(column.type)) or not len(column):
        return column
    return pa.chunked_array(_fixed(name, [chunk for chunk in column.chunks if len(chunk)]))


def inner_fixed(name: str, array: Any) -> Any:
    """Return an Arrow array of lists of numbers as fixed-size lists on the same memory; any other array unchanged."""
    return pa.concat_arrays(_fixed(name, [array])) if is_list(array.type) and len(array) else array


def _fixed(name: str, chunks: list[Any]) -> list[Any]:
    if any(chunk.null_count for chunk in chunks):
        raise missing_values(name, np.concatenate([chunk.is_null().to_numpy(zero_copy_only=False) for chunk in chunks]))
    lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
    if lengths.min() != lengths.max():
        raise ragged(name, f"lists of {int(lengths.min())} to {int(lengths.max())} entries")
    if not lengths[0]:
        raise empty_axis(name, (0,))
    values = [chunk.flatten() for chunk in chunks]
    values = _fixed(name, values) if is_list(values[0].type) else values
    return [pa.FixedSizeListArray.from_arrays(part, int(lengths[0])) for part in values]


# -- arrays ------------------------------------------------------------------------------------------------------------


def to_numpy(name: str, column: Any) -> np.ndarray:
    """The values of a contiguous Arrow array without nulls, [n, *shape], permanently read-only.

    The memory is Arrow's own, except for bool, which is unpacked into a copy.
    """
    column_spec(name, column.type)
    extents, axes, _ = _layout(column.type)
    flat = column
    while not _is_number(flat.type):
        flat = _storage(flat).flatten()
    values: np.ndarray = flat.to_numpy(zero_copy_only=not pa.types.is_boolean(flat.type))
    return read_only(values.reshape(len(column), *extents).transpose(0, *(axis + 1 for axis in axes)))


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of `array` that cannot be made writable again; the arrays that it views become read-only, too."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return array.view()


def any_by_row(mask: np.ndarray) -> np.ndarray:
    """Return which rows of a mask [n, *shape] have a true value, bool [n]."""
    return np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def _layout(arrow_type: Any) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Return the extents of one sample in memory order, the order of its axes, and the type of a value."""
    extents: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    while isinstance(arrow_type, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(arrow_type):
        is_tensor = isinstance(arrow_type, pa.FixedShapeTensorType)
        inner = tuple(arrow_type.shape) if is_tensor else (arrow_type.list_size,)
        order = getattr(arrow_type, "permutation", None) or range(len(inner))
        axes += tuple(len(extents) + axis for axis in order)
        extents += inner
        arrow_type = arrow_type.value_type
    return extents, axes, arrow_type


def _is_number(arrow_type: Any) -> bool:
    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type))


def _storage(array: Any) -> Any:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _null_count(array: Any) -> int:
    array = _storage(array)
    inside = _null_count(array.flatten()) if pa.types.is_fixed_size_list(array.type) else 0
    return int(array.null_count) + inside


def _null_rows(array: Any) -> np.ndarray:
    """Return the rows that are null, bool [n], or the rows with a null inside if no row is null (`flatten` drops null
    rows).
    """
    array = _storage(array)
    missing: np.ndarray = array.is_null().to_numpy(zero_copy_only=False)
    if missing.any() or not pa.types.is_fixed_size_list(array.type) or not len(array):
        return missing
    return any_by_row(_null_rows(array.flatten()).reshape(len(array), -1))
