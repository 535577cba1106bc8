"""Padding: how rows of different length become one array, and where a table stores that."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
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
