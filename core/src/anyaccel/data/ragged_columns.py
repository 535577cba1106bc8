"""Ragged columns: rows of different length as flat values, and as arrays that are padded to one length."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import (
    check_complete,
    column_spec,
    contiguous,
    fixed_lists,
    fixed_size_lists,
    inner_fixed,
    is_list,
    is_numeric,
    is_readable,
    missing_values,
    not_numbers,
    to_numpy,
)
from anyaccel.data.casting import cast_array, first_unrepresentable
from anyaccel.data.roles import listed
from anyaccel.errors import ColumnError
from anyaccel.segment import TensorSpec

_KEY = b"anyaccel.pad"


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


def checked_pads(label: str, pad: Any, columns: Mapping[str, str]) -> dict[str, Pad]:
    """Return the argument `pad=` as a Pad for each column.

    Args:
        label: Label of the feature set.
        pad: A number or a Pad by column; None for no column.
        columns: Role of each column.
    """
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise ColumnError(
            f"pad={shown(pad)} of {label!r} does not name the columns",
            available=listed(columns),
            hint=f"write pad={{{next(iter(columns))!r}: 0}}",
        )
    pads = {name: value if isinstance(value, Pad) else Pad(value) for name, value in pad.items()}
    for name, column_pad in pads.items():
        if columns.get(name) not in ("feature", "target"):
            raise ColumnError(
                f"pad= of {label!r} names {shown(name)}, which is not a feature or target",
                available=listed(name for name, role in columns.items() if role != "tag"),
                hint="name columns that are features or targets",
            )
        if column_pad.mask is not None and column_pad.mask in columns:
            raise ColumnError(
                f"the mask of {name!r} of {label!r} is called {column_pad.mask!r}, but a column has that name",
                available=listed(columns),
                hint="choose another name for the mask, or leave mask= out and use the column",
            )
    return pads


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


def flat_column(field: Any, column: Any) -> RaggedColumn | None:
    """Return a chunked column as flat values; None if its field has no padding."""
    padding = padding_of(field)
    if padding is None:
        return None
    lists = contiguous(column)
    offsets = lists.offsets.to_numpy().astype(np.int64, copy=False)
    return RaggedColumn(to_numpy(field.name, lists.values), offsets[:-1], np.diff(offsets), padding)


def check_ragged(field: Any, column: Any) -> None:
    """Check that a column can be read as its field says: complete, of numbers, no row too long.

    Raises:
        ColumnError: it cannot.
    """
    name, padding = field.name, padding_of(field)
    if padding is None or not is_list(field.type):
        raise not_numbers(name, str(field.type))
    check_complete(name, column)
    lists = contiguous(column)
    inner = lists.flatten()
    column_spec(name, inner.type)
    if not is_readable(pa.chunked_array([inner])):
        nulls = [any(value is None for value in row) for row in column.to_pylist()]
        raise missing_values(name, np.array(nulls))
    _check_longest(name, int(np.diff(lists.offsets.to_numpy()).max(initial=0)), padding)


def _check_longest(name: str, longest: int, padding: Padding) -> None:
    if longest > padding.longest:
        raise ColumnError(
            f"column {name!r} has a row of {longest} entries",
            cause=f"it is padded to {padding.longest}",
            hint=f"set a length that holds all rows: pad={{{name!r}: Pad(..., length={longest})}}, or cut the rows",
        )


def with_shapes(table: Any, roles: Mapping[str, str], padded: Container[str] = ()) -> Any:
    """Return a table whose features and targets of lists have a shape per sample, except for those that are padded.

    Args:
        table: Table of columns with roles.
        roles: Roles in the order of its columns.
        padded: Names of columns that will be padded, in addition to those marked in the metadata.
    """
    for index, (name, role) in enumerate(roles.items()):
        column = table.column(index)
        if role == "tag" or name in padded or padding_of(table.schema.field(index)) is not None:
            continue
        if (converted := fixed_size_lists(name, column)) is not column:
            table = table.set_column(index, table.schema.field(index).with_type(converted.type), converted)
    return table


def padded_table(table: Any, pads: dict[str, Pad]) -> Any:
    """Return a table whose columns in `pads` are ragged ones; masks are added as features at its end."""
    masks: dict[str, Any] = {}
    for name, pad in pads.items():
        index = table.schema.get_field_index(name)
        field, column = table.schema.field(index), table.column(index)
        lists = contiguous(column)
        if is_numeric(lists.type) and column_spec(name, lists.type).shape:
            array = to_numpy(name, lists)
            lists = lists_of(array.reshape(-1, *array.shape[2:]), np.full(len(array), array.shape[1]))
        else:
            if not is_list(lists.type):
                raise _not_lists(name, lists.type)
            if lists.null_count:
                raise missing_values(name, lists.is_null().to_numpy(zero_copy_only=False))
            values = lists.flatten()
            values = inner_fixed(name, values)
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
        check_ragged(stamped, pa.chunked_array([lists]))
        table = table.set_column(index, stamped, pa.chunked_array([lists]))
        if pad.mask is not None:
            padding = replace(padding, value=0, mask=None)
            dtype_of_mask = mask_dtype(np.dtype(column_spec(pad.mask, lists.type.value_type).dtype))
            ones = pa.array(np.ones(len(lists.values), dtype_of_mask))
            mask = pa.LargeListArray.from_arrays(lists.offsets, ones)
            mask_field = pa.field(pad.mask, mask.type, metadata={b"anyaccel.role": b"feature"})
            masks[pad.mask] = padding.stamped(mask_field), pa.chunked_array([mask])
    for field, mask in masks.values():
        table = table.append_column(field, mask)
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
        raise _not_rows(name, _shown(arrays))
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


def _shown(arrays: list[np.ndarray]) -> str:
    shapes = list(dict.fromkeys(str(list(array.shape)) for array in arrays))
    return f"they have the shapes {', '.join(shapes[:4])}{', ...' if len(shapes) > 4 else ''}"


def cast_lists(field: Any, column: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the field and column of a ragged column in another dtype.

    Raises:
        ColumnError: a value, or the padding value, cannot be represented.
    """
    ragged, name = flat_column(field, column), field.name
    assert ragged is not None
    values = fixed_lists(cast_array(name, ragged.values, dtype))
    offsets = np.append(ragged.starts, ragged.starts[-1] + ragged.lengths[-1])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), values)
    value = cast_array(name, np.array([ragged.padding.value]), dtype)[0].item()
    return replace(ragged.padding, value=value).stamped(field.with_type(lists.type)), pa.chunked_array([lists])
