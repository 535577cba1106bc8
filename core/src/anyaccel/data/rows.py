"""Rows: the interface for reading feature sets and their views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.call_hints import class_hints
from anyaccel.data.arrow_columns import RaggedColumn, field_spec, flat_column, padding_of
from anyaccel.data.roles import Names, WithRoles, no_column, read_roles
from anyaccel.segment import TensorSpec


@class_hints
class Rows(WithRoles, ABC):
    """Rows of named columns. Each column is a feature, a target or a tag.

    Args:
        label: Label of the feature set that the rows belong to.
        schema: Arrow schema whose fields have their roles in their metadata.
    """

    def __init__(self, label: str, schema: Any) -> None:
        super().__init__(label, read_roles(label, schema))
        self._schema = schema

    @property
    def schema(self) -> Any:
        """The Arrow schema; each field has its role in its metadata as `anyaccel.role`."""
        return self._schema

    @property
    def base(self) -> Rows:
        """The rows that these were chosen from: the feature set of a view; otherwise these rows themselves."""
        return self

    @property
    def indices(self) -> np.ndarray | None:
        """Row numbers in `base`, int64 [n]; None for all of its rows."""
        return None

    def role(self, name: str) -> str:
        """Return `"feature"`, `"target"` or `"tag"`.

        Raises:
            ColumnError: the column does not exist.
        """
        if not isinstance(name, str) or name not in self._roles:
            raise no_column(self._label, name, self._roles)
        return self._roles[name]

    def spec(self, name: str) -> TensorSpec:
        """Return the shape per sample and the dtype of a column; for rows that differ in length, of the longest.

        Raises:
            ColumnError: the column does not exist, or it is a tag that is not numeric.
        """
        self.role(name)
        return field_spec(self._schema.field(name))

    def is_ragged(self, name: str) -> bool:
        """Return whether the rows of a column differ in length, so that a batch is padded to its longest row.

        Raises:
            ColumnError: the column does not exist.
        """
        self.role(name)
        padding = padding_of(self._schema.field(name))
        return padding is not None and not padding.fixed

    def ragged_column(self, name: str) -> RaggedColumn | None:
        """Return a column whose rows differ in length as flat values; None for any other column.

        Raises:
            ColumnError: the column does not exist.
        """
        self.role(name)
        return flat_column(self._schema.field(name), self.base.column(name), self.indices)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """Return the values of a column, [n, *shape] in its own dtype, read-only.

        Raises:
            ColumnError: the column does not exist, or it is a tag that is not numeric or has nulls.
        """

    @abstractmethod
    def column(self, name: str) -> Any:
        """Return a column as an Arrow chunked array. Use it to read tags of any type.

        Raises:
            ColumnError: the column does not exist.
        """

    @abstractmethod
    def to_arrow(self) -> Any:
        """Return an Arrow table of all columns, with their roles in the field metadata."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table of `to_arrow` to other libraries, through Arrow's C interface: `polars.DataFrame(rows)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    @abstractmethod
    def view(self) -> Rows:
        """Return these rows as a view of their feature set."""

    @abstractmethod
    def select(self, features: Names = None, target: Names = None, tags: Names = None) -> Rows:
        """Choose columns of the same rows; None keeps all columns of the role, `()` none.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """

    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> Rows:
        """Choose some of these rows as a view, without copying any column.

        Args:
            positions: Integers [k], k > 0, counted within these rows, in any order.
            name: Name of the view; by default derived from its origin.

        Raises:
            SplitError: positions that are empty, not integers, or out of range.
        """
        return self.view().take(positions, name=name)


def values_of(rows: Rows, name: str) -> np.ndarray:
    """Return the values of a column: [n, *shape], or those of all rows in sequence if these differ in length."""
    ragged = rows.ragged_column(name)
    return rows.array(name) if ragged is None else ragged.values
