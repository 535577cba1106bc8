"""Check that every batch has the columns, shapes and dtypes of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.ragged_columns import Pad
from anyaccel.data.roles import listed
from anyaccel.data.streaming.padded_batches import PaddedBatches
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.data.streaming.to_numpy import is_tensor, number_array, tag_array
from anyaccel.errors import SourceError
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean


class BatchSchema:
    """Convert the batches of a source to arrays, and check that their schemas are equal.

    Args:
        roles: Role of each column, by name.
        pads: How to pad columns whose batches differ in length.
    """

    def __init__(self, roles: Mapping[str, str], pads: Mapping[str, Pad] | None = None) -> None:
        self._roles = roles
        self._padded = PaddedBatches(pads or {})
        self._keys: frozenset[str] | None = None
        self._specs: dict[str, RowSpec] = {}

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
        with error_context(position):
            arrays = {name: self._array(name, position, value) for name, value in parts.values.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"the columns of {position} differ in length",
                cause=listed(f"{name}: {length}" for name, length in lengths.items()),
                hint="return one entry per row in every column; batch a source of single rows: source.batch(32)",
            )
        if not next(iter(lengths.values())):
            raise SourceError(f"{position} has no rows", hint="leave empty batches out")
        self._check_specs(position, arrays)
        return arrays

    def _array(self, name: str, position: object, value: object) -> np.ndarray:
        if name in self._padded.pads:
            return self._padded.batch(name, position, value)
        return tag_array(name, value) if self._roles[name] == "tag" else number_array(name, value)

    def _check_specs(self, position: object, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if self._roles[name] == "tag" or name in self._padded.pads:
                continue
            if name not in self._specs:
                self._specs[name] = RowSpec.of(array)
            self._specs[name].check(name, position, array)


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
    if not _has_parts(batch, names):
        return _by_position(position, [batch], names)
    parts = list(batch)
    if len(parts) != len(names) or any(_named(part, ()) for part in parts):
        return _nested(position, parts, names)
    return _by_position(position, parts, names)


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
    if name not in keys:
        inner = [value for key in keys if isinstance(value := read(key), Mapping)]
        holders = [mapping for mapping in inner if name in mapping]
        if len(holders) == 1:
            return holders[0][name]
        if inner:
            raise _not_in_nested(position, name, keys, inner, len(holders))
        raise SourceError(
            f"{position} has no column {name!r}", available=listed(keys) if keys else "", hint=did_you_mean(name, keys)
        )
    return read(name)


def _not_in_nested(
    position: object, name: str, keys: Iterable[str], inner: Sequence[Mapping[str, Any]], count: int
) -> SourceError:
    nested = [str(key) for mapping in inner for key in mapping]
    problem = f"{count} columns {name!r} in nested mappings" if count else f"no column {name!r}"
    hint = "give each a different name" if count else did_you_mean(name, [*keys, *nested])
    return SourceError(
        f"{position} has {problem}", available=listed([*keys, *nested]) if keys or nested else "", hint=hint
    )


def _has_parts(batch: Any, names: Sequence[str]) -> bool:
    """Whether a batch consists of parts; a list of numbers, or of lists of them, may be the only column itself."""
    if isinstance(batch, tuple):
        return True
    return isinstance(batch, list) and (len(names) > 1 or _are_columns(batch))


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


def _nested(position: object, parts: Sequence[Any], names: Sequence[str]) -> BatchParts:
    """Return nested parts: columns by name from mappings among them, and the rest by position."""
    values: dict[str, Any] = {}
    keys: list[str] = []
    rest: list[Any] = []
    for part in parts:
        named = _named(part, ())
        if named is not None:
            keys += map(str, named[0])
            values.update({name: named[1](name) for name in names if name in named[0]})
        elif isinstance(part, tuple) or (isinstance(part, list) and _are_columns(part)):
            rest += part
        else:
            rest.append(part)
    remaining = [name for name in names if name not in values]
    return BatchParts({**values, **_by_position(position, rest, remaining).values}, frozenset(keys))
