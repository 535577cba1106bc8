"""Check that every batch has the columns, shapes and dtypes of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.data.padding import Pad
from anyaccel.data.roles import listed
from anyaccel.data.streaming.batch_structure import batch_parts
from anyaccel.data.streaming.padded_batches import PaddedBatches
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.data.streaming.to_numpy import number_array, tag_array
from anyaccel.errors import SourceError
from anyaccel.segment import TensorSpec


class BatchSchema:
    """Converts the batches of a source to arrays, and checks that they are alike.

    Args:
        roles: role of each column, by name.
        pads: how columns are padded whose batches differ in length.
    """

    def __init__(self, roles: Mapping[str, str], pads: Mapping[str, Pad] | None = None) -> None:
        self._roles = roles
        self._padded = PaddedBatches(pads or {})
        self._keys: frozenset[str] | None = None
        self._specs: dict[str, RowSpec] = {}

    def convert(self, position: object, batch: object) -> dict[str, np.ndarray]:
        """A batch as arrays by column name; the first batch sets the schema of the others.

        Raises:
            SourceError: columns that are missing, new, without rows, of unequal length, or of another shape or dtype.
        """
        parts = batch_parts(position, batch, list(self._roles))
        self._check_keys(position, parts.keys)
        _check_batched(position, parts.values)
        with error_context(position):
            arrays = {name: self._array(name, position, value) for name, value in parts.values.items()}
        _check_lengths(position, arrays)
        self._check_specs(position, arrays)
        return arrays

    def _array(self, name: str, position: object, value: object) -> np.ndarray:
        if name in self._padded.pads:
            return self._padded.batch(name, position, value)
        return tag_array(name, value) if self._roles[name] == "tag" else number_array(name, value)

    def _check_keys(self, position: object, keys: frozenset[str]) -> None:
        if self._keys is None:
            self._keys = keys
        new = sorted(keys - self._keys)
        if new:
            known = listed(sorted(self._keys)) if self._keys else "its columns by position"
            raise SourceError(
                f"{position} has a new column {new[0]!r}",
                cause=f"the first batch has {known}",
                hint="give every batch the same columns",
            )

    def _check_specs(self, position: object, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if self._roles[name] == "tag" or name in self._padded.pads:
                continue
            if name not in self._specs:
                self._specs[name] = RowSpec.of(array)
            self._specs[name].check(name, position, array)


def _check_lengths(position: object, arrays: Mapping[str, np.ndarray]) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SourceError(
            f"the columns of {position} differ in length",
            cause=listed(f"{name}: {length}" for name, length in lengths.items()),
            hint="give every column one entry per row",
        )
    if not next(iter(lengths.values())):
        raise SourceError(f"{position} has no rows", hint="leave empty batches out")


def _check_batched(position: object, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, (int, float)) or getattr(value, "shape", None) == ():
            raise SourceError(
                f"column {name!r} of {position} is a single {type(value).__name__}",
                cause="a column of a batch has one entry for each row",
                hint="make batches of the rows (source.batch(32), DataLoader(...)), or give a data set to "
                "MapSource(...)",
            )


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Shape and dtype of a row of a column, as NumPy values that compare quickly."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, rows: np.ndarray) -> RowSpec:
        """The spec of the rows of an array [n, *shape]."""
        return cls(rows.shape[1:], rows.dtype)

    def __str__(self) -> str:
        return str(TensorSpec(self.shape, str(self.dtype)))

    def check(self, name: str, position: object, rows: np.ndarray) -> None:
        """Check that rows [n, *shape] of a column are like those before them."""
        if rows.shape[1:] != self.shape or rows.dtype != self.dtype:
            raise SourceError(
                f"column {name!r} of {position} is {RowSpec.of(rows)}",
                cause=f"it is {self} in the rows before, and rows of a column have one shape and dtype",
                hint=f"give all rows one shape and one dtype; if batches differ in length, say so: pad={{{name!r}: 0}}"
                if rows.shape[2:] == self.shape[1:] and rows.dtype == self.dtype and rows.ndim > 1
                else "give all rows one shape (pad or cut) and one dtype",
            )
