"""Views: some rows of a feature set, such as a split, read like the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import check_complete, contiguous, is_readable, read_only, to_numpy
from anyaccel.data.roles import Names, selected
from anyaccel.data.rows import Rows
from anyaccel.errors import SplitError

if TYPE_CHECKING:
    from anyaccel.data.feature_set import FeatureSet


class FeatureSetView(Rows):
    """Some rows of a feature set, without a copy of any column.

    A view of a view counts its rows in the same feature set, and splits of it are registered there.

    Args:
        feature_set: whose rows they are.
        name: of the view; that of the split, if it is registered as one.
        rows: integers [k], k > 0, in any order; they are copied.
        columns: the columns that the view has; None for all. Splits of it have all.

    Raises:
        SplitError: rows that are none, no integers, or out of range.
    """

    def __init__(
        self,
        feature_set: FeatureSet,
        name: str,
        rows: Sequence[int] | np.ndarray,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(feature_set.label, _with_columns(feature_set.schema, columns))
        self._feature_set = feature_set
        self._name = name
        self._rows = _checked_rows(f"split {name!r} of {feature_set.label!r}", len(feature_set), rows)
        start, stop = int(self._rows[0]), int(self._rows[0]) + len(self._rows)
        self._range = slice(start, stop) if np.array_equal(self._rows, np.arange(start, stop)) else None

    def __repr__(self) -> str:
        return f"FeatureSetView({self._label!r}[{self._name!r}], {len(self):,} rows)"

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
            ColumnError: there is no such column, or it is a tag that holds no numbers or has nulls in these rows.
        """
        if self.role(name) == "tag" and not is_readable(self._feature_set.column(name)):
            return self._own(name)
        whole = self._feature_set.array(name)
        return whole[self._range] if self._range else read_only(np.take(whole, self._rows, axis=0))

    def _own(self, name: str) -> np.ndarray:
        """A tag that cannot be read as a whole; in these rows it may have a number in every place."""
        self.spec(name)
        column = self.column(name)
        check_complete(name, column)
        return to_numpy(name, contiguous(column))

    def column(self, name: str) -> Any:
        """A column in these rows as an Arrow chunked array; a slice where the rows are contiguous.

        Raises:
            ColumnError: there is no such column.
        """
        self.role(name)
        return self._taken(self._feature_set.column(name))

    def to_arrow(self) -> Any:
        """An Arrow table of these rows, with roles in the field metadata."""
        return self._taken(self._feature_set.to_arrow().select(list(self.columns)))

    def view(self) -> FeatureSetView:
        """The view itself."""
        return self

    def select(self, features: Names = None, targets: Names = None, tags: Names = None) -> FeatureSetView:
        """The same rows with fewer columns, as a view of the same feature set and name; see `Rows.select`.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """
        columns = selected(self._label, self._roles, features, targets, tags)
        return FeatureSetView(self._feature_set, self._name, self._rows, columns)

    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> FeatureSetView:
        """Some of these rows as a view of the same feature set; see `Rows.take`.

        Raises:
            SplitError: positions that are none, no integers, or out of range.
        """
        chosen = self._rows[_checked_rows(f"take() from {self._name!r} of {self._label!r}", len(self), positions)]
        return self._with_rows(name or f"{self._name}.take({len(chosen)} rows)", chosen)

    def intersection(self, other: FeatureSetView) -> FeatureSetView:
        """Those of these rows that are in `other` too, in their order here.

        Raises:
            SplitError: `other` is no view of the same feature set, or no row is in both.
        """
        return self._where(np.isin(self._rows, self._rows_of(other)), f"{self._name} & {other.name}")

    def difference(self, other: FeatureSetView) -> FeatureSetView:
        """Those of these rows that are not in `other`, in their order here.

        Raises:
            SplitError: `other` is no view of the same feature set, or all rows are in it.
        """
        return self._where(~np.isin(self._rows, self._rows_of(other)), f"{self._name} - {other.name}")

    def _rows_of(self, other: FeatureSetView) -> np.ndarray:
        if not isinstance(other, FeatureSetView) or other.feature_set is not self._feature_set:
            raise SplitError(
                f"{self!r} cannot be set against {other!r}",
                available="both must be views of one and the same feature set, whose rows they count",
                hint="make both from one FeatureSet object; cast(), select() and the like give another one",
            )
        return other.rows

    def _where(self, mask: np.ndarray, name: str) -> FeatureSetView:
        if not mask.any():
            raise SplitError(
                f"{name!r} of {self._label!r} has no rows", available=f"{len(self)} rows in {self._name!r}"
            )
        return self._with_rows(name, self._rows[mask])

    def _with_rows(self, name: str, rows: np.ndarray) -> FeatureSetView:
        return FeatureSetView(self._feature_set, name, rows, self.columns)

    def _taken(self, data: Any) -> Any:
        if self._range:
            return data.slice(self._range.start, len(self))
        return data.take(pa.array(self._rows))


def _with_columns(schema: Any, columns: Sequence[str] | None) -> Any:
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in columns], schema.metadata)


def _checked_rows(asked: str, n: int, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(rows)
    except ValueError:  # ragged lists
        array = np.array(None)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise SplitError(
            f"{asked} has rows of shape {list(array.shape)} and dtype {array.dtype}",
            available="rows are integers [k], at least one",
            hint="give row numbers; np.flatnonzero(mask) makes them of a mask",
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n:
        raise SplitError(f"{asked} asks for row {low if low < 0 else high}", available=f"rows 0 to {n - 1}")
    return read_only(array.astype(np.int64, copy=True))
