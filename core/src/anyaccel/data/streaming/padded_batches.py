"""Padded batches: the columns of a source whose rows differ in length, each batch padded to its own longest row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.data.casting import first_unrepresentable
from anyaccel.data.ragged_columns import Pad, Padding, checked_pads
from anyaccel.data.streaming.to_numpy import all_as_numpy, as_numpy, number_array
from anyaccel.errors import ColumnError, SourceError


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


@dataclass(slots=True)
class PaddedBatches:
    """Pads the columns of a source.

    Attributes:
        pads: Padding by column.
        entries: Shape and dtype of one entry of the rows of a column, as of its first batch.
    """

    pads: Mapping[str, Pad]
    entries: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = field(default_factory=dict)

    def batch(self, name: str, position: object, value: Any) -> np.ndarray:
        """Return a column of a batch, [rows, length, *shape], from an array, or from rows of different length.

        Raises:
            ColumnError, SourceError: values that are not numbers, or entries of another shape or dtype than before.
        """
        array = None if isinstance(value, (list, tuple)) else as_numpy(name, value)
        if array is None:
            return self.rows(name, position, rows_of(name, value))
        if array.ndim < 2:
            raise _no_rows(name, position, array.shape)
        array = number_array(name, array)
        self._check(name, position, array[:1].reshape(-1, *array.shape[2:]))
        padding = self._padding(name, position, array.shape[1])
        width = padding.rounded(array.shape[1])
        return array if width == array.shape[1] else self._filled(name, list(array), width)

    def rows(self, name: str, position: object, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return rows of different length as one array [rows, length, *shape]."""
        for row in rows:
            if row.ndim == 0:
                raise _no_rows(name, position, row.shape)
            if row.size:
                self._check(name, position, row)
        if name not in self.entries:
            raise SourceError(f"column {name!r} of {position} has no values", hint="leave the batch out")
        longest = max(map(len, rows))
        return self._filled(name, rows, self._padding(name, position, longest).rounded(longest))

    def _filled(self, name: str, rows: Sequence[np.ndarray], width: int) -> np.ndarray:
        shape, dtype = self.entries[name]
        out = np.full((len(rows), width, *shape), self.pads[name].value, dtype)
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row if row.size else 0
        return out

    def _padding(self, name: str, position: object, longest: int) -> Padding:
        pad = self.pads[name]
        if pad.length is not None and longest > pad.length:
            raise SourceError(
                f"column {name!r} of {position} has a row of {longest} entries",
                cause=f"it is padded to {pad.length}",
                hint=f"set a length that holds all rows, Pad(..., length={longest}), or cut the rows",
            )
        return Padding(pad.value, pad.multiple_of, pad.length or longest, pad.length is not None)

    def _check(self, name: str, position: object, row: np.ndarray) -> None:
        """Check a row [length, *shape] against those before it."""
        if name not in self.entries:
            value = self.pads[name].value
            if row.dtype.kind not in "biuf" or first_unrepresentable(np.array([value]), row.dtype) is not None:
                raise ColumnError(
                    f"column {name!r} is of {row.dtype}, which cannot hold the padding value {value!r}",
                    hint="choose a value of that dtype",
                )
            self.entries[name] = row.shape[1:], row.dtype
        elif (row.shape[1:], row.dtype) != self.entries[name]:
            shape, dtype = self.entries[name]
            raise SourceError(
                f"column {name!r} of {position} has entries {row.dtype}{list(row.shape[1:])}",
                cause=f"they are {dtype}{list(shape)} in earlier rows; rows may differ only in length",
                hint="use one shape and dtype for all entries",
            )


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
