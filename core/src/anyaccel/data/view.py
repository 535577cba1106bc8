"""Views: some rows of a feature set, such as a split, read like the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anyaccel.data.columns import read_only
from anyaccel.data.rows import Rows
from anyaccel.data.splits import cut
from anyaccel.errors import SplitError

if TYPE_CHECKING:
    from anyaccel.data.feature_set import FeatureSet


class FeatureSetView(Rows):
    """Some rows of a feature set, without a copy of any column.

    Args:
        feature_set: whose rows they are.
        name: of the view; that of the split, if it is registered as one.
        rows: integers [k], k > 0, in any order; they are copied.

    Raises:
        SplitError: rows that are none, no integers, or out of range.
    """

    def __init__(self, feature_set: FeatureSet, name: str, rows: Sequence[int] | np.ndarray) -> None:
        super().__init__(feature_set.label, feature_set.schema)
        self._feature_set = feature_set
        self._name = name
        self._rows = _checked_rows(feature_set, name, rows)
        start, stop = int(self._rows[0]), int(self._rows[0]) + len(self._rows)
        self._range = slice(start, stop) if np.array_equal(self._rows, np.arange(start, stop)) else None

    def __repr__(self) -> str:
        return f"FeatureSetView({self._label!r}[{self._name!r}], {self._described()})"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def feature_set(self) -> FeatureSet:
        """The feature set whose rows these are."""
        return self._feature_set

    @property
    def name(self) -> str:
        """Name of the view, or of the split."""
        return self._name

    @property
    def rows(self) -> np.ndarray:
        """Row numbers in the feature set, int64 [k], read-only."""
        return self._rows

    def array(self, name: str) -> np.ndarray:
        """Values of a column in these rows, [k, *shape] in its own dtype, read-only.

        A slice of the feature set's memory where the rows are contiguous, else gathered anew by every call.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers or has nulls.
        """
        whole = self._feature_set.array(name)
        return whole[self._range] if self._range else read_only(np.take(whole, self._rows, axis=0))

    def column(self, name: str) -> Any:
        """A column in these rows as an Arrow chunked array; a slice where the rows are contiguous.

        Raises:
            ColumnError: there is no such column.
        """
        return self._taken(self._feature_set.column(name))

    def to_arrow(self) -> Any:
        """An Arrow table of these rows, with roles in the field metadata."""
        return self._taken(self._feature_set.to_arrow())

    def split_random(self, ratios: Mapping[str, float], seed: int = 0) -> dict[str, FeatureSetView]:
        """Cut these rows at random into splits of the feature set, as `FeatureSet.split_random` does with all rows.

        Raises:
            SplitError: wrong ratios or seed, an empty split, or a name that is taken or `"all"`.
        """
        parts = cut(self._label, self._name, len(self), ratios, seed)
        return self._feature_set.add_splits({name: self._rows[part] for name, part in parts.items()})

    def _taken(self, data: Any) -> Any:
        if self._range:
            return data.slice(self._range.start, len(self))
        return data.take(pa.array(self._rows))


def _checked_rows(feature_set: FeatureSet, name: str, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(rows)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise SplitError(
            f"split {name!r} of {feature_set.label!r} has rows of shape {list(array.shape)} and dtype {array.dtype}",
            there="rows are integers [k], at least one",
            remedy="give row numbers; np.flatnonzero(mask) makes them of a mask",
        )
    low, high, n = int(array.min()), int(array.max()), len(feature_set)
    if low < 0 or high >= n:
        raise SplitError(
            f"split {name!r} of {feature_set.label!r} asks for row {low if low < 0 else high}",
            there=f"rows 0 to {n - 1}",
        )
    return read_only(array.astype(np.int64, copy=True))
