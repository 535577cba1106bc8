"""Columns in Arrow memory: of one shape per sample, or of rows that differ in length; checked, read as arrays, cast and
padded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ColumnError
from anyaccel.segment import TensorSpec

KINDS = "biuf"
WIDEST = 8
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names that differ from NumPy's
_TEXTS = ("text", "string", "large_string", "<U", "dictionary<values=string", "dictionary<values=large_string")
_DTYPES = "bool, int8 to int64, uint8 to uint64, float16, float32, float64"


def column_spec(name: str, arrow_type: Any) -> TensorSpec:
    """Return the shape per sample and the dtype of a column of an Arrow type."""
    shape, extents, _, dtype = _layout(arrow_type)
    if dtype is None:
        raise not_numbers(name, str(arrow_type))
    if 0 in shape:
        raise empty_axis(name, tuple(extents))
    return TensorSpec(tuple(shape), dtype)


def is_numeric(arrow_type: Any) -> bool:
    """Whether columns of an Arrow type can be read as arrays."""
    shape, _, _, dtype = _layout(arrow_type)
    return dtype is not None and 0 not in shape


def type_name(field: Any) -> str:
    """Return the human-readable type of a column: numbers as dtype and shape, dictionaries as `category`."""
    if padding_of(field):
        return up_to(field_spec(field))
    if is_numeric(field.type):
        return str(field_spec(field))
    return "category" if pa.types.is_dictionary(field.type) else str(field.type)


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


def check_column(name: str, column: Any, field: Any = None) -> None:
    """Check that an Arrow chunked column can be read as an array, or as its field says: of numbers, complete, no row
    too long.

    Raises:
        ColumnError: it cannot.
    """
    padding = None if field is None else padding_of(field)
    if padding is None:
        if pa.types.is_null(column.type):  # the rows that have nulls say more than the type
            check_complete(name, column)
        column_spec(name, column.type)
        check_complete(name, column)
        return
    if not is_list(column.type):
        raise not_numbers(name, str(column.type))
    check_complete(name, column)
    lists = contiguous(column)
    inner = lists.flatten()
    column_spec(name, inner.type)
    if not is_readable(pa.chunked_array([inner])):
        nulls = [any(value is None for value in row) for row in column.to_pylist()]
        raise missing_values(name, np.array(nulls))
    _check_longest(name, int(np.diff(lists.offsets.to_numpy()).max(initial=0)), padding)


def check_joinable(label: str, fields: Sequence[Any], names: str) -> None:
    """Check that columns of a feature set can be joined with each other: that no batch of one has its own length.

    Args:
        label: Label of the feature set.
        fields: Fields of the columns.
        names: Their names, for messages.
    """
    for field in fields:
        padding = padding_of(field)
        if padding is not None and not padding.fixed:
            raise ColumnError(
                f"column {field.name!r} of {label!r} cannot be joined with others because its rows differ in length",
                available=f"columns: {names}",
                hint=f"use separate references as separate inputs: {label}.reference({field.name!r})",
            )


def _check_longest(name: str, longest: int, padding: Padding) -> None:
    if longest > padding.longest:
        raise ColumnError(
            f"column {name!r} has a row of {longest} entries",
            cause=f"it is padded to {padding.longest}",
            hint=f"set a length that holds all rows: pad={{{name!r}: Pad(..., length={longest})}}, or cut the rows",
        )


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
    _, extents, axes, _ = _layout(column.type)
    flat = column
    while not pa.types.is_primitive(flat.type):
        flat = getattr(flat, "storage", flat).flatten()
    values: np.ndarray = flat.to_numpy(zero_copy_only=not pa.types.is_boolean(flat.type))
    return read_only(values.reshape(len(column), *extents).transpose(axes))


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


def _layout(arrow_type: Any) -> tuple[list[int], list[int], list[int], str | None]:
    """Return the shape of one sample, its extents in memory order, the axes of an array of rows with these extents in
    the order of the shape, and the dtype of a value; None for values that are not numbers.
    """
    shape: list[int] = []
    extents: list[int] = []
    axes = [0]
    while isinstance(arrow_type, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(arrow_type):
        is_tensor = isinstance(arrow_type, pa.FixedShapeTensorType)
        inner = list(arrow_type.shape) if is_tensor else [arrow_type.list_size]
        for axis in getattr(arrow_type, "permutation", None) or range(len(inner)):
            shape.append(inner[axis])
            axes.append(1 + len(extents) + axis)
        extents += inner
        arrow_type = arrow_type.value_type
    is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)
    return shape, extents, axes, _FLOATS.get(str(arrow_type), str(arrow_type)) if is_number else None


def _null_count(array: Any) -> int:
    array = getattr(array, "storage", array)  # of an extension type
    inside = _null_count(array.flatten()) if pa.types.is_fixed_size_list(array.type) else 0
    return int(array.null_count) + inside


def _null_rows(array: Any) -> np.ndarray:
    """Return the rows that are null, bool [n], or the rows with a null inside if no row is null (`flatten` drops null
    rows).
    """
    array = getattr(array, "storage", array)  # of an extension type
    missing: np.ndarray = array.is_null().to_numpy(zero_copy_only=False)
    if missing.any() or not pa.types.is_fixed_size_list(array.type) or not len(array):
        return missing
    return any_by_row(_null_rows(array.flatten()).reshape(len(array), -1))


# -- casts to another dtype, refused where a value would not survive ---------------------------------------------------


def cast_array(name: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    """Return `array` [n, *shape] in another dtype, C-contiguous, always a copy.

    Floats may be rounded to a narrower float; everything else keeps its value.
    """
    try:
        target: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise not_numbers(name, repr(dtype)) from error
    if dtype is None or target.kind not in KINDS or target.itemsize > WIDEST:
        raise not_numbers(name, repr(dtype) if dtype is None else str(target))
    fits = _representable(array, target)
    if not fits.all():
        row, value = _first_false(array, fits)
        raise ColumnError(
            f"column {name!r} cannot be cast from {array.dtype} to {target}: row {row} holds {value}",
            cause=f"{int((~fits).sum())} values cannot be represented in {target}",
            hint="choose a wider dtype, or round or clip the values first",
        )
    return array.astype(target, order="C", copy=True)


def widened(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a float32 copy if its floats have a dtype that NumPy itself lacks (bfloat16, float8).

    Such dtypes are narrower than float32, so no value changes; NumPy's own functions and Arrow accept the copy.
    """
    return array.astype(np.float32) if array.dtype.name.startswith(("bfloat", "float8")) else array


def first_unrepresentable(array: np.ndarray, dtype: np.dtype[Any]) -> tuple[int, Any] | None:
    """Return row and value of the first number of `array` [n, *shape] that `dtype` cannot represent, or None."""
    fits = _representable(array, dtype)
    return None if fits.all() else _first_false(array, fits)


def _first_false(array: np.ndarray, fits: np.ndarray) -> tuple[int, Any]:
    row = int(any_by_row(~fits).argmax())
    return row, array[row][~fits[row]].flat[0]


def _representable(array: np.ndarray, target: np.dtype[Any]) -> np.ndarray:
    """Return which values keep their meaning in `target`, bool of the shape of `array`."""
    if target == array.dtype or array.dtype.kind == "b":
        return np.ones(array.shape, dtype=bool)
    if target.kind == array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(np.isfinite(array.astype(target)) | ~np.isfinite(array))
    if target.kind == "f":
        limits, exact = np.iinfo(array.dtype), 2 ** (np.finfo(target).nmant + 1)
        return np.asarray((array >= max(-exact, limits.min)) & (array <= min(exact, limits.max)))
    low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
    if array.dtype.kind == "f":
        wide = array.astype(np.float64)
        # high + 1 is a power of two and thus exact in float64, which high itself need not be.
        return np.asarray((wide == np.trunc(wide)) & (wide >= float(low)) & (wide < float(high + 1)))
    limits = np.iinfo(array.dtype)
    return np.asarray((array >= max(low, limits.min)) & (array <= min(high, limits.max)))


# -- ragged columns: rows of different length as flat values, and as arrays that are padded to one length --------------


_KEY = b"anyaccel.pad"
_LARGEST_ROW = 2**24  # elements of what a saved column of lists has per entry


@constructor_hints
@dataclass(frozen=True, slots=True)
class Pad:
    """Set how a column whose rows differ in length is padded: after each row, to the longest of its batch.

    Args:
        value: Padding value: a number that the column's dtype can hold.
        multiple_of: Round the length of a batch up to a multiple of it. If each new length is compiled again, as in
            JAX, this limits the number of compilations.
        length: Length of all batches, instead of that of their longest row; longer rows are an error.
        mask: Name of a feature to add, which is 1 at the values of a row and 0 at its padding: int64 for a column of 8
            bytes per value, otherwise int32.

    Raises:
        ColumnError: a value that is not a number, or a length that is not a positive integer.

    Example:
        >>> import anyaccel as aa
        >>> pad = {"tokens": aa.Pad(0, multiple_of=4, mask="mask")}
        >>> data = aa.FeatureSet.from_dict("text", {"tokens": [[5, 3], [8, 1, 2]]}, ["tokens"], pad=pad)
        >>> data.array("mask")
        array([[1, 1, 0, 0],
               [1, 1, 1, 0]])
    """

    value: float = 0
    multiple_of: int = 1
    length: int | None = None
    mask: str | None = None

    def __post_init__(self) -> None:
        is_number = isinstance(self.value, (int, float)) or getattr(self.value, "shape", None) == ()
        if not is_number:
            raise ColumnError(f"Pad: value={shown(self.value)} is not a number", hint="write Pad(0)")
        object.__setattr__(self, "value", self.value.item() if hasattr(self.value, "item") else self.value)
        for name in ("multiple_of", "length"):
            value = getattr(self, name)
            if value is None and name == "length":
                continue
            if not is_integer(value) or value < 1:
                raise ColumnError(f"Pad: {name}={shown(value)} is not 1 or more", hint=f"write Pad(0, {name}=8)")
            object.__setattr__(self, name, int(value))
        if self.mask is not None and (not isinstance(self.mask, str) or not self.mask):
            raise ColumnError(f"Pad: mask={shown(self.mask)} is not a name", hint="write Pad(0, mask='mask')")
        if self.length is not None and self.length % self.multiple_of:
            raise ColumnError(
                f"Pad: length={self.length} is not a multiple of {self.multiple_of}", hint="leave multiple_of out"
            )


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of a column in a table.

    Attributes:
        value: Padding value.
        multiple_of: Lengths are rounded up to a multiple of it.
        longest: Length of the longest row, rounded up; or the length of all batches, if they have one length.
        fixed: Whether all batches have one length.
        mask: Name of its mask, if any.
    """

    value: float
    multiple_of: int
    longest: int
    fixed: bool
    mask: str | None = None

    def rounded(self, length: int) -> int:
        """Return the padded length of rows with at most `length` entries, at least 1."""
        if self.fixed:
            return self.longest
        return max(1, math.ceil(length / self.multiple_of)) * self.multiple_of

    def as_pad(self) -> Pad:
        """Return the Pad that a user would write for it."""
        return Pad(self.value, self.multiple_of, self.longest if self.fixed else None, self.mask)

    def stamped(self, field: Any) -> Any:
        """Return an Arrow field with this padding in its metadata."""
        return field.with_metadata({**(field.metadata or {}), _KEY: json.dumps(asdict(self)).encode()})


def up_to(spec: TensorSpec) -> str:
    """Return the human-readable spec of a ragged column: `int64[<=18]`, if the longest row has 18 entries."""
    return f"{spec.dtype}[{', '.join([f'<={spec.shape[0]}', *map(str, spec.shape[1:])])}]"


def mask_dtype(dtype: np.dtype[Any]) -> type[np.integer[Any]]:
    """Return the dtype of the mask of a column: int64 for a column of 8 bytes per value, otherwise int32."""
    return np.int64 if dtype.itemsize == 8 else np.int32


def padding_of(field: Any) -> Padding | None:
    """Return the padding in the metadata of an Arrow field; None for a column whose rows have one shape."""
    text = (field.metadata or {}).get(_KEY)
    return None if text is None else Padding(**json.loads(text))


def pads_of(schema: Any) -> dict[str, Pad]:
    """Return the padding of the columns of a schema as a user would write it, by name."""
    return {field.name: padding.as_pad() for field in schema if (padding := padding_of(field)) is not None}


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """Rows of different length.

    Attributes:
        values: Values of all rows in sequence, [total, *shape].
        starts: Start of each row in `values`, int64 [n].
        lengths: Length of each row, int64 [n].
        padding: Their padding.
    """

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    padding: Padding

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes

    def width(self, rows: np.ndarray | slice) -> int:
        """Return the padded length of a batch of these rows."""
        return self.padding.rounded(int(self.lengths[rows].max(initial=0)))

    def fill(self, rows: np.ndarray | slice, out: np.ndarray) -> None:
        """Write some rows to `out` [k, width, *shape], padded."""
        out[...] = self.padding.value
        values = self.values
        pairs = zip(self.starts[rows].tolist(), self.lengths[rows].tolist(), strict=True)
        for row, (start, length) in enumerate(pairs):
            out[row, :length] = values[start : start + length]

    def padded(self) -> np.ndarray:
        """Return all rows in one array [n, longest, *shape]."""
        out = np.empty((len(self), self.padding.longest, *self.values.shape[1:]), self.dtype)
        self.fill(slice(None), out)
        return out

    def astype(self, dtype: Any) -> RaggedColumn:
        """Return the same rows in another dtype; values that are too large raise as NumPy does."""
        return self if self.dtype == dtype else replace(self, values=self.values.astype(dtype))

    def used_values(self) -> np.ndarray:
        """Return the values of these rows and the padding value, [m, *shape]."""
        parts = [self.values[start : start + n] for start, n in zip(self.starts, self.lengths, strict=True)]
        return np.concatenate([*parts, np.full((1, *self.values.shape[1:]), self.padding.value, self.dtype)])


def field_spec(field: Any) -> TensorSpec:
    """Return the shape per sample and the dtype of an Arrow field; for a ragged one, of its longest row padded."""
    padding = padding_of(field)
    if padding is None:
        return column_spec(field.name, field.type)
    inner = column_spec(field.name, field.type.value_type)
    return replace(inner, shape=(padding.longest, *inner.shape))


def flat_column(field: Any, column: Any, rows: np.ndarray | None = None) -> RaggedColumn | None:
    """Return rows of a chunked column, None for all, on its flat values; None if its field has no padding."""
    padding = padding_of(field)
    if padding is None:
        return None
    lists = contiguous(column)
    offsets = lists.offsets.to_numpy().astype(np.int64, copy=False)
    starts, lengths = (offsets[:-1], np.diff(offsets)) if rows is None else (offsets[rows], np.diff(offsets)[rows])
    return RaggedColumn(to_numpy(field.name, lists.values), starts, lengths, padding)


def array_of(field: Any, column: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the values of a chunked column, [n, *shape], read-only; one whose rows differ in length is padded.

    Args:
        field: The field of the column.
        column: The column.
        rows: Of a column of lists, the numbers of the rows to read; None for all.

    Raises:
        ColumnError: it is not numeric or has nulls.
    """
    ragged = flat_column(field, column, rows)
    if ragged is not None:
        return read_only(ragged.padded())
    column_spec(field.name, field.type)
    check_complete(field.name, column)
    return to_numpy(field.name, contiguous(column))


def cast_column(field: Any, column: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the field and column of a column in another dtype.

    Raises:
        ColumnError: a value, or the padding value, cannot be represented.
    """
    ragged, name = flat_column(field, column), field.name
    if ragged is None:
        cast = to_arrow(cast_array(name, array_of(field, column), dtype))
        return field.with_type(cast.type), pa.chunked_array([cast])
    values = fixed_lists(cast_array(name, ragged.values, dtype))
    offsets = np.append(ragged.starts, ragged.starts[-1] + ragged.lengths[-1])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), values)
    value = cast_array(name, np.array([ragged.padding.value]), dtype)[0].item()
    return replace(ragged.padding, value=value).stamped(field.with_type(lists.type)), pa.chunked_array([lists])


def field_config(field: Any) -> dict[str, Any]:
    """Return the dtype, shape and padding of a column of numbers as plain data; of any other column nothing."""
    padding = padding_of(field)
    if not (padding or is_numeric(field.type)):
        return {}
    spec = field_spec(field)
    return {"dtype": spec.dtype, "shape": list(spec.shape), **({"padding": asdict(padding)} if padding else {})}


def empty_column(name: str, saved: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an Arrow field and a column of it without rows, from the output of `field_config`.

    Raises:
        ValueError: rows of an impossible shape.
        KeyError, TypeError, OverflowError, MemoryError: it is malformed.
    """
    if "dtype" not in saved:
        return pa.field(name, pa.null()), pa.chunked_array([pa.array([], pa.null())])
    dtype, shape = np.dtype(saved["dtype"]), tuple(saved["shape"])
    if "padding" not in saved:
        column = pa.chunked_array([to_arrow(np.zeros((0, *shape), dtype=dtype))])
        return pa.field(name, column.type), column
    if not shape or math.prod(shape[1:]) > _LARGEST_ROW:
        raise ValueError(f"{name!r} has rows of shape {shape}")
    # One row, as short as can be: the shape may be of somebody else's file.
    column = pa.chunked_array([lists_of(np.zeros((1, *shape[1:]), dtype=dtype), np.ones(1, np.int64))]).slice(0, 0)
    return Padding(**saved["padding"]).stamped(pa.field(name, column.type)), column


def shaped_table(table: Any, pads: Mapping[str, Pad]) -> Any:
    """Return a table of columns with roles whose features and targets of lists can be read as arrays.

    Those in `pads` become ragged columns, whose masks are added as features at the end; all others need lists of one
    length, except for those that are marked as ragged already.
    """
    masks: dict[str, Any] = {}
    for index, field in enumerate(table.schema):
        name, column = field.name, table.column(index)
        if field.metadata[b"anyaccel.role"] == b"tag":
            continue
        if name not in pads:
            if padding_of(field) is None and (converted := fixed_size_lists(name, column)) is not column:
                table = table.set_column(index, field.with_type(converted.type), converted)
            continue
        pad, lists = pads[name], contiguous(column)
        if is_numeric(lists.type) and column_spec(name, lists.type).shape:
            array = to_numpy(name, lists)
            lists = lists_of(array.reshape(-1, *array.shape[2:]), np.full(len(array), array.shape[1]))
        else:
            if not is_list(lists.type):
                raise _not_lists(name, lists.type)
            if lists.null_count:
                raise missing_values(name, lists.is_null().to_numpy(zero_copy_only=False))
            values = lists.flatten()
            if is_list(values.type) and len(values):
                values = pa.concat_arrays(_fixed(name, [values]))
            if not is_numeric(values.type):
                raise not_numbers(name, f"lists of {values.type}")
            offsets = lists.offsets.to_numpy().astype(np.int64)
            lists = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), values)
        longest = int(np.diff(lists.offsets.to_numpy()).max(initial=0))
        dtype = np.dtype(column_spec(name, lists.type.value_type).dtype)
        if dtype != np.dtype(bool) and first_unrepresentable(np.array([pad.value]), dtype) is not None:
            raise ColumnError(
                f"column {name!r} is of {dtype}, which cannot hold the padding value {pad.value!r}",
                hint=f"choose a {dtype} value, or convert the column first",
            )
        padding = Padding(dtype.type(pad.value).item(), pad.multiple_of, longest, fixed=False, mask=pad.mask)
        if pad.length is None:
            padding = replace(padding, longest=padding.rounded(longest))
        else:
            padding = replace(padding, longest=pad.length, fixed=True)
            _check_longest(name, longest, padding)
        stamped = padding.stamped(field.with_type(lists.type))
        check_column(name, pa.chunked_array([lists]), stamped)
        table = table.set_column(index, stamped, pa.chunked_array([lists]))
        if pad.mask is not None:
            padding = replace(padding, value=0, mask=None)
            dtype_of_mask = mask_dtype(np.dtype(column_spec(pad.mask, lists.type.value_type).dtype))
            ones = pa.array(np.ones(len(lists.values), dtype_of_mask))
            mask = pa.LargeListArray.from_arrays(lists.offsets, ones)
            mask_field = pa.field(pad.mask, mask.type, metadata={b"anyaccel.role": b"feature"})
            masks[name] = padding.stamped(mask_field), pa.chunked_array([mask])
    for name in filter(masks.__contains__, pads):
        table = table.append_column(*masks[name])
    return table


def _not_lists(name: str, dtype: Any) -> ColumnError:
    return ColumnError(
        f"column {name!r} is of {dtype}, but pad= is for rows of different length",
        available="lists, or arrays, one for each row",
        hint="leave it out of pad=",
    )


def _not_rows(name: str, problem: str) -> ColumnError:
    return ColumnError(
        f"the rows of column {name!r} cannot be padded: {problem}",
        cause="rows may differ in their first axis only, and at least one must have values",
        hint="pass each row as a list of numbers or an array [length, *shape]",
    )


def list_column(name: str, rows: Any) -> Any:
    """Return rows of different length, each readable by NumPy as an array, as an Arrow column of lists."""
    try:
        arrays = [np.asarray(row) for row in rows]
    except ValueError as error:  # a row that is a list of lists of different length
        raise _not_rows(name, str(error)) from error
    if arrays and all(array.ndim == 0 for array in arrays):
        raise _not_lists(name, arrays[0].dtype)
    filled = [array for array in arrays if array.size]
    shapes = {array.shape[1:] if array.ndim else None for array in filled}
    if not filled or len(shapes) > 1 or None in shapes or any(array.ndim == 0 for array in arrays):
        different = list(dict.fromkeys(str(list(array.shape)) for array in arrays))
        more = ", ..." if len(different) > 4 else ""
        raise _not_rows(name, f"they have the shapes {', '.join(different[:4])}{more}")
    values = np.concatenate(filled)
    lengths = [len(array) if array.size else 0 for array in arrays]
    if values.dtype.kind not in "biuf":
        raise not_numbers(name, str(values.dtype))
    if values.dtype.kind == "f" and all(array.dtype.kind != "f" for array in filled):
        raise not_numbers(name, "integers that no single dtype holds")
    return pa.chunked_array([lists_of(values, np.array(lengths))])


def lists_of(values: np.ndarray, lengths: np.ndarray) -> Any:
    """Return an Arrow array of lists of these lengths, [n], of values [total, *shape]."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), fixed_lists(values))
