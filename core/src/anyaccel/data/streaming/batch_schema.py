"""Checking: every batch has the columns, shapes and dtypes of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.data.roles import listed
from anyaccel.data.streaming.batch_structure import parts_of
from anyaccel.data.streaming.source_errors import BatchPosition, error_context
from anyaccel.data.streaming.to_numpy import anything, numbers
from anyaccel.errors import SourceError
from anyaccel.segment import TensorSpec


class Checker:
    """Makes arrays of the batches of a source, and makes sure that they are alike.

    Args:
        roles: role of each column, by name.
    """

    def __init__(self, roles: Mapping[str, str]) -> None:
        self._roles = roles
        self._keys: frozenset[str] | None = None
        self._kinds: dict[str, Kind] = {}

    def taken(self, place: BatchPosition, batch: object) -> dict[str, np.ndarray]:
        """A batch as arrays by column name; the first one says what the others have to be like.

        Raises:
            SourceError: columns that are missing, new, of no rows, of unequal length, or of another shape or dtype.
        """
        parts = parts_of(place, batch, list(self._roles))
        self._check_keys(place, parts.keys)
        _check_batched(place, parts.values)
        with error_context(place):
            arrays = {
                name: anything(name, value) if self._roles[name] == "tag" else numbers(name, value)
                for name, value in parts.values.items()
            }
        self._check_rows(place, arrays)
        self._check_kinds(place, arrays)
        return arrays

    def _check_keys(self, place: BatchPosition, keys: frozenset[str]) -> None:
        if self._keys is None:
            self._keys = keys
        new = sorted(keys - self._keys)
        if new:
            raise SourceError(
                f"{place} has a new column {new[0]!r}",
                available=f"the first batch has {listed(sorted(self._keys)) if self._keys else 'its columns by position'}",
                hint="give every batch the same columns",
            )

    def _check_rows(self, place: BatchPosition, arrays: Mapping[str, np.ndarray]) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SourceError(
                f"the columns of {place} differ in length",
                available=listed(f"{name}: {length}" for name, length in lengths.items()),
                hint="give every column one entry per row",
            )
        if not next(iter(lengths.values())):
            raise SourceError(f"{place} has no rows", hint="leave empty batches out")

    def _check_kinds(self, place: BatchPosition, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if self._roles[name] == "tag":
                continue
            if name not in self._kinds:
                self._kinds[name] = Kind.of(array)
            self._kinds[name].check(Column(name, place), array)


def _check_batched(place: BatchPosition, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, (int, float)) or getattr(value, "shape", None) == ():
            raise SourceError(
                f"column {name!r} of {place} is a single {type(value).__name__}",
                available="a column of a batch has one entry for each row",
                hint="make batches of the rows (source.batch(32), DataLoader(...)), or take a data set by MapSource(...)",
            )


@dataclass(frozen=True, slots=True)
class Kind:
    """Shape and dtype of a row, as what NumPy compares at once."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, rows: np.ndarray) -> Kind:
        """That of the rows of an array [n, *shape]."""
        return cls(rows.shape[1:], rows.dtype)

    def __str__(self) -> str:
        return str(TensorSpec(self.shape, str(self.dtype)))

    def check(self, what: object, rows: np.ndarray) -> None:
        """Make sure that rows [n, *shape] are of this kind, which is that of those before; `what` names them.

        Raises:
            SourceError: they are not.
        """
        if rows.shape[1:] != self.shape or rows.dtype != self.dtype:
            raise SourceError(
                f"{what} is {Kind.of(rows)}",
                available=f"it is {self} in the rows before, and rows of a column have one shape and dtype",
                hint="give all rows one shape (pad or cut) and one dtype",
            )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a batch or row, for messages."""

    name: str
    place: object

    def __str__(self) -> str:
        return f"column {self.name!r} of {self.place}"
