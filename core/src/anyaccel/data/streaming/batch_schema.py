"""Check that every batch has the columns, shapes and dtypes of the first, and pad those whose rows differ in length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import Pad, Padding, first_unrepresentable
from anyaccel.data.roles import checked_pads, listed
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.data.streaming.to_numpy import all_as_numpy, as_numpy, is_tensor, number_array, tag_array
from anyaccel.errors import ColumnError, SourceError
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean


class BatchSchema:
    """Convert the batches of a source to arrays, and check that their schemas are equal.

    Args:
        roles: Role of each column, by name.
        pads: How to pad columns whose batches differ in length.
    """

    def __init__(self, roles: Mapping[str, str], pads: Mapping[str, Pad]) -> None:
        self._roles, self._pads = roles, pads
        self._keys: frozenset[str] | None = None
        self._specs: dict[str, RowSpec] = {}  # of a row; of one entry of the rows of a column that is padded

    def convert(self, position: object, batch: object, extra: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Return a batch as arrays by column name; the first batch sets the schema of the others.

        A batch may have the columns `extra` after the others; they are left out.

        Raises:
            SourceError: columns that are missing, new, without rows, of unequal length, or of another shape or dtype.
        """
        parts = batch_parts(position, batch, list(self._roles), extra)
        if self._keys is None:
            self._keys = parts.keys
        new = sorted(parts.keys - self._keys)
        if new:
            columns = listed(sorted(self._keys)) if self._keys else "its columns by position"
            raise SourceError(
                f"{position} has a new column {new[0]!r}",
                cause=f"the first batch has {columns}",
                hint="return the same columns in every batch",
            )
        for name, value in parts.values.items():
            if isinstance(value, (int, float)) or getattr(value, "shape", None) == ():
                raise SourceError(
                    f"column {name!r} of {position} is a single {type(value).__name__}",
                    cause="a column of a batch needs one entry for each row",
                    hint="batch the rows (source.batch(32), DataLoader(...)), or pass a data set to MapSource(...)",
                )
        arrays: dict[str, np.ndarray] = {}
        with error_context(position):
            for name, value in parts.values.items():
                if name in self._pads:
                    arrays[name] = self._padded_batch(name, position, value)
                else:
                    arrays[name] = tag_array(name, value) if self._roles[name] == "tag" else number_array(name, value)
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"the columns of {position} differ in length",
                cause=listed(f"{name}: {length}" for name, length in lengths.items()),
                hint="return one entry per row in every column; of single rows, batch them (source.batch(32), "
                "DataLoader(...))",
            )
        if not next(iter(lengths.values())):
            raise SourceError(f"{position} has no rows", hint="leave empty batches out")
        for name, array in arrays.items():
            if self._roles[name] != "tag" and name not in self._pads:
                self.check(name, position, array)
        return arrays

    def spec_of(self, name: str, rows: np.ndarray) -> RowSpec:
        """Return the spec of the rows before; if there are none, that of `rows`, which sets nothing."""
        return self._specs.get(name) or RowSpec.of(rows)

    def check(self, name: str, position: object, rows: np.ndarray) -> None:
        """Check that rows [n, *shape] of a column are like those before them."""
        self._specs.setdefault(name, RowSpec.of(rows)).check(name, position, rows)

    def pad(self, name: str, position: object, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return rows of different length as one array [rows, length, *shape].

        Raises:
            ColumnError, SourceError: no values, or entries of another shape or dtype than before.
        """
        for row in rows:
            if row.ndim == 0:
                raise _no_rows(name, position, row.shape)
            if row.size:
                self._check_entries(name, position, row)
        if name not in self._specs:
            raise SourceError(f"column {name!r} of {position} has no values", hint="leave the batch out")
        return self._filled(name, rows, self._padded_length(name, position, max(map(len, rows))))

    def _padded_batch(self, name: str, position: object, value: Any) -> np.ndarray:
        """Return a column of a batch, [rows, length, *shape], from an array, or from rows of different length."""
        array = None if isinstance(value, (list, tuple)) else as_numpy(name, value)
        if array is None:
            return self.pad(name, position, rows_of(name, value))
        if array.ndim < 2:
            raise _no_rows(name, position, array.shape)
        array = number_array(name, array)
        self._check_entries(name, position, array[:1].reshape(-1, *array.shape[2:]))
        length = self._padded_length(name, position, array.shape[1])
        return array if length == array.shape[1] else self._filled(name, list(array), length)

    def _filled(self, name: str, rows: Sequence[np.ndarray], length: int) -> np.ndarray:
        entry = self._specs[name]
        out = np.full((len(rows), length, *entry.shape), self._pads[name].value, entry.dtype)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row if row.size else 0
        return out

    def _padded_length(self, name: str, position: object, longest: int) -> int:
        pad = self._pads[name]
        if pad.length is not None and longest > pad.length:
            raise SourceError(
                f"column {name!r} of {position} has a row of {longest} entries",
                cause=f"it is padded to {pad.length}",
                hint=f"set a length that holds all rows, Pad(..., length={longest}), or cut the rows",
            )
        return pad.length or Padding(pad.value, pad.multiple_of, longest, fixed=False).rounded(longest)

    def _check_entries(self, name: str, position: object, row: np.ndarray) -> None:
        """Check a row [length, *shape] against those before it."""
        if name not in self._specs:
            value = self._pads[name].value
            if row.dtype.kind not in "biuf" or first_unrepresentable(np.array([value]), row.dtype) is not None:
                raise ColumnError(
                    f"column {name!r} is of {row.dtype}, which cannot hold the padding value {value!r}",
                    hint="choose a value of that dtype",
                )
        entry = self._specs.setdefault(name, RowSpec.of(row))
        if RowSpec.of(row) != entry:
            raise SourceError(
                f"column {name!r} of {position} has entries {row.dtype}{list(row.shape[1:])}",
                cause=f"they are {entry.dtype}{list(entry.shape)} in earlier rows; rows may differ only in length",
                hint="use one shape and dtype for all entries",
            )


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Shape and dtype of a row of a column, as NumPy values that compare quickly."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, rows: np.ndarray) -> RowSpec:
        """Return the spec of the rows of an array [n, *shape]."""
        return cls(rows.shape[1:], rows.dtype)

    def __str__(self) -> str:
        return str(TensorSpec(self.shape, str(self.dtype)))

    def check(self, name: str, position: object, rows: np.ndarray) -> None:
        """Check that rows [n, *shape] of a column are like those before them."""
        if rows.shape[1:] != self.shape or rows.dtype != self.dtype:
            raise SourceError(
                f"column {name!r} of {position} is {RowSpec.of(rows)}",
                cause=f"it is {self} in earlier rows, and all rows of a column must have the same shape and dtype",
                hint=f"use one shape and dtype for all rows; if batches differ in length, set pad={{{name!r}: 0}}"
                if rows.shape[2:] == self.shape[1:] and rows.dtype == self.dtype and rows.ndim > 1
                else "use one shape (pad or cut) and one dtype for all rows",
            )


def source_pads(label: str, pad: Any, roles: Mapping[str, str], *, masks: bool = False) -> dict[str, Pad]:
    """Return the argument `pad=` of a source, by column.

    Args:
        label: Label of the source.
        pad: The argument of the user.
        roles: Role of each column.
        masks: Whether the source can create masks.

    Raises:
        ColumnError: no such column, or an invalid Pad.
        SourceError: a mask, which the source cannot create.
    """
    pads = checked_pads(label, pad, roles)
    for name, column_pad in pads.items():
        if column_pad.mask is not None and not masks:
            raise SourceError(
                f"source {label!r} cannot create a mask of {name!r}: the lengths of rows that are already padded are "
                "unknown",
                cause="only a FeatureSet, or a MapSource without collate, can create masks",
                hint=f"return {column_pad.mask!r} from the source too, and name it in features= and pad=",
            )
    return pads


def rows_of(name: str, values: Any) -> list[np.ndarray]:
    """Return each row of a column as an array."""
    rows = list(values)
    arrays = all_as_numpy(name, rows)
    return [np.asarray(row) if array is None else array for row, array in zip(rows, arrays, strict=True)]


def _no_rows(name: str, position: object, shape: tuple[int, ...]) -> SourceError:
    return SourceError(
        f"column {name!r} of {position} has the shape {list(shape)}, which has no axis to pad",
        cause="rows of different length must be lists or arrays [length, *shape]",
        hint=f"leave {name!r} out of pad=",
    )


# -- which part of a batch, or of an item, is which column -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The columns of a batch or item.

    Attributes:
        values: Values of the columns that have a role, by name, unconverted.
        keys: Names of all entries; empty if they are by position.
    """

    values: Mapping[str, Any]
    keys: frozenset[str]


def batch_parts(position: object, batch: Any, names: Sequence[str], extra: Sequence[str] = ()) -> BatchParts:
    """Return the columns `names` of a batch or item, which may also have all columns `extra`; `position` begins
    messages.

    Taken by name from mappings, data classes, named tuples and Arrow tables; by position from tuples and lists, one
    part for each name, nested parts in their turn; anything else is the only column.
    """
    if extra and (not isinstance(batch, list) or _are_columns(batch)):
        try:
            parts_of_all = batch_parts(position, batch, [*names, *extra])
        except SourceError:
            pass  # it has only the names
        else:
            return BatchParts({name: parts_of_all.values[name] for name in names}, parts_of_all.keys)
    named = _named(batch, names)
    if named is not None:
        keys, read = named
        return BatchParts({name: _picked(position, name, keys, read) for name in names}, frozenset(map(str, keys)))
    # A list of numbers, or of lists of them, may be the only column itself.
    if not (isinstance(batch, tuple) or (isinstance(batch, list) and (len(names) > 1 or _are_columns(batch)))):
        return _by_position(position, [batch], names)
    parts = list(batch)
    if len(parts) == len(names) and not any(_named(part, ()) for part in parts):
        return _by_position(position, parts, names)
    # Nested parts: columns by name from mappings among them, and the rest by position.
    values: dict[str, Any] = {}
    inner_keys: list[str] = []
    rest: list[Any] = []
    for part in parts:
        named = _named(part, ())
        if named is not None:
            inner_keys += map(str, named[0])
            values.update({name: named[1](name) for name in names if name in named[0]})
        elif isinstance(part, tuple) or (isinstance(part, list) and _are_columns(part)):
            rest += part
        else:
            rest.append(part)
    remaining = [name for name in names if name not in values]
    return BatchParts({**values, **_by_position(position, rest, remaining).values}, frozenset(inner_keys))


def _named(batch: Any, names: Sequence[str]) -> tuple[list[str], Callable[[str], Any]] | None:
    """Return the names of values in a batch, and how to read them; None if they come by position."""
    if isinstance(batch, (pa.Table, pa.RecordBatch)):
        return list(batch.schema.names), batch.column
    if is_dataclass(batch) and not isinstance(batch, type):
        return [field.name for field in fields(batch)], lambda name: getattr(batch, name)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        keys = [str(name) for name in batch._fields]
        return (keys, lambda name: getattr(batch, name)) if names and set(names) <= set(keys) else None
    is_series = hasattr(batch, "iloc") and not hasattr(batch, "columns")
    if isinstance(batch, Mapping) or (hasattr(batch, "keys") and hasattr(batch, "__getitem__") and not is_series):
        return list(batch.keys()), batch.__getitem__
    return None


def _picked(position: object, name: str, keys: Iterable[str], read: Callable[[str], Any]) -> Any:
    if name in keys:
        return read(name)
    inner = [value for key in keys if isinstance(value := read(key), Mapping)]
    holders = [mapping for mapping in inner if name in mapping]
    if len(holders) == 1:
        return holders[0][name]
    known = [*keys, *(str(key) for mapping in inner for key in mapping)]
    problem = f"{len(holders)} columns {name!r} in nested mappings" if holders else f"no column {name!r}"
    hint = "give each a different name" if holders else did_you_mean(name, known)
    raise SourceError(f"{position} has {problem}", available=listed(known) if known else "", hint=hint)


def _are_columns(parts: Sequence[Any]) -> bool:
    """Whether a list consists of arrays or tensors with rows, not of numbers."""
    return bool(parts) and all(is_tensor(part) and len(part.shape) > 0 for part in parts)


def _by_position(position: object, parts: Sequence[Any], names: Sequence[str]) -> BatchParts:
    if len(parts) != len(names):
        shown = f"{len(parts)} part{'' if len(parts) == 1 else 's'}"
        weights = (
            "; a third part with weights is a tag: IterableSource(..., tags=['w']), AppliedLoss(sample_weight='DATA.w')"
        )
        raise SourceError(
            f"{position} has {shown} for {len(names)} columns",
            cause=f"columns: {listed(names)}; parts: {listed(type(part).__name__ for part in parts)}",
            hint="name one column for each part (features=, target=, tags=), or return mappings by name"
            + weights * (len(parts) == 3 and len(names) == 2),
        )
    return BatchParts(dict(zip(names, parts, strict=True)), frozenset())
