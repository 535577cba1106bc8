"""Feature sets: named columns with roles on Arrow, and their splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from anyaccel.data.arrow_columns import check_complete, check_numbers, contiguous, to_arrow, to_numpy
from anyaccel.data.casting import cast_array
from anyaccel.data.column_reference import Reference
from anyaccel.data.feature_set_view import FeatureSetView
from anyaccel.data.readers.constructors import Sources, check_label, check_table
from anyaccel.data.roles import Names, listed, selected
from anyaccel.data.splitting.group_keys import keys_of
from anyaccel.data.splitting.group_split import check_together
from anyaccel.data.transforms.feature_set_transforms import Transforming
from anyaccel.data.transforms.transform_log import Step
from anyaccel.errors import ColumnError, DataError, SplitError
from anyaccel.suggestions import did_you_mean

ALL = "all"


class FeatureSet(Sources, Transforming):
    """Named columns of equal length, each a feature, a target or a tag, in Arrow memory that nobody writes.

    Args:
        label: name of the feature set, without a dot (`"LABEL.COLUMN"` names a column).
        table: Arrow table whose columns carry their roles in their field metadata as `anyaccel.role`; columns
            without one are left out. The `from_` constructors make it.

    Features and targets are of bool, int, uint or float of one shape per sample and have no nulls (floats may be NaN);
    tags may be anything that Arrow holds.

    Raises:
        DataError: a label that is not text or has a dot, no Arrow table, or no rows.
        ColumnError: no roles, or a feature or target with nulls, of another type or of an empty shape.
    """

    def __init__(self, label: str, table: Any) -> None:
        check_label(label)
        check_table(label, table)
        super().__init__(label, table.schema)
        self._schema = pa.schema([table.schema.field(name) for name in self.columns], table.schema.metadata)
        self._columns = {name: table.column(name) for name in self.columns}
        self._arrays: dict[str, np.ndarray] = {}
        self._splits: dict[str, FeatureSetView] = {}
        if len(table) == 0:
            raise DataError(f"{label!r} has no rows", available=f"columns: {listed(self.columns)}", hint="give it data")
        for name in self.features + self.targets:
            check_numbers(name, self._columns[name])

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {len(view)}" for name, view in self._splits.items())
        return f"FeatureSet({self._label!r}, {self._described()}{'; splits: ' if splits else ''}{splits})"

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> FeatureSetView:
        """The same as `split(name)`."""
        return self.split(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is a split of this name."""
        return name in self._splits

    @property
    def nbytes(self) -> int:
        """Bytes of all columns in Arrow memory."""
        return sum(int(column.nbytes) for column in self._columns.values())

    @property
    def splits(self) -> Mapping[str, FeatureSetView]:
        """The registered splits by name, as a read-only mapping."""
        return MappingProxyType(self._splits)

    def array(self, name: str) -> np.ndarray:
        """Values of a column, [n, *shape] in its own dtype, read-only; the same object on every call.

        On Arrow's memory without a copy. A column of several chunks is combined once and kept so; bool is unpacked
        once.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers or has nulls.
        """
        if name not in self._arrays:
            self.spec(name)
            check_complete(name, self._columns[name])
            combined = contiguous(self._columns[name])
            self._columns[name] = pa.chunked_array([combined])
            self._arrays[name] = to_numpy(name, combined)
        return self._arrays[name]

    def column(self, name: str) -> Any:
        """A column as an Arrow chunked array; the way to read tags of any type.

        Raises:
            ColumnError: there is no such column.
        """
        self.role(name)
        return self._columns[name]

    def to_arrow(self) -> Any:
        """An Arrow table on the same memory, with roles in the field metadata; `from_arrow` reads it back."""
        return pa.table(list(self._columns.values()), schema=self._schema)

    def view(self) -> FeatureSetView:
        """All rows as a view, named `"all"`."""
        return FeatureSetView(self, ALL, np.arange(len(self)))

    def split(self, name: str) -> FeatureSetView:
        """The split of this name, or the view of all rows for `"all"`.

        Raises:
            SplitError: there is no such split.
        """
        if name == ALL:
            return self.view()
        if name not in self._splits:
            make = "make splits with split_random({'train': 0.8, ...})"
            remedy = did_you_mean(name, self._splits) if self._splits else make
            raise SplitError(
                f"{self._label!r} has no split {name!r}",
                available=listed([*self._splits, ALL]),
                hint=f"it is a column: data.array({name!r})" if name in self.columns else remedy,
            )
        return self._splits[name]

    def add_split(self, name: str, rows: Sequence[int] | np.ndarray) -> FeatureSetView:
        """Register rows of one's own choice (integers [k], in any order) as a split, and return it.

        Raises:
            SplitError: the name is that of other rows, `"all"` or not text, or the rows are none, no integers or out
                of range.
        """
        return self.add_splits({name: rows})[name]

    def add_splits(
        self, rows: Mapping[str, Sequence[int] | np.ndarray], *, group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Register several splits, all or none; see `add_split`. A name with the very rows that it has stays as it is.

        Args:
            rows: of each split, by name.
            group_by: a column or several, of any role, with scalars: make sure that rows with the same values are not
                in two of these splits.

        Raises:
            SplitError: as `add_split`, or a group that crosses splits.
            ColumnError: a column of `group_by` that is not there, has nulls or NaN, or holds no scalars.
        """
        for name in rows:
            self._check_name(name)
        views = {name: self._new_or_same(FeatureSetView(self, name, chosen)) for name, chosen in rows.items()}
        if group_by is not None and views:
            groups = keys_of(self, group_by, "group_by")
            check_together(self._label, groups, {name: view.rows for name, view in views.items()})
        self._splits.update(views)
        return views

    def cast(self, dtypes: Mapping[str, Any], *, keep_splits: bool = True) -> FeatureSet:
        """A new feature set of the same label with some columns in another dtype; the others share their memory.

        Transforms stay; undoing one also undoes the cast of its columns.

        Args:
            dtypes: NumPy dtype, or its name, by column.
            keep_splits: whether the new one has the same splits, of the same rows.

        Raises:
            ColumnError: `dtypes` is no mapping, an unknown column, a tag without numbers, no dtype of numbers, or a
                value that the dtype cannot hold (floats are rounded to narrower floats, nothing else changes).
        """
        if not isinstance(dtypes, Mapping):
            raise ColumnError(
                f"cast({dtypes!r}) of {self._label!r} does not say which columns",
                available=f"columns: {listed(self.columns)}",
                hint=f"write cast({{{self.columns[0]!r}: {dtypes if isinstance(dtypes, str) else 'float32'!r}}})",
            )
        table = self.to_arrow()
        for name, dtype in dtypes.items():
            column = to_arrow(cast_array(name, self.array(name), dtype))
            index = table.schema.get_field_index(name)
            table = table.set_column(index, self._schema.field(name).with_type(column.type), column)
        return self._remade(table, self._steps, keep_splits)

    def select(self, features: Names = None, targets: Names = None, tags: Names = None) -> FeatureSet:
        """A new feature set of the same label, rows, splits and transforms with fewer columns, on the same memory.

        None keeps all columns of the role, `()` none.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """
        names = selected(self._label, self._roles, features, targets, tags)
        return self._remade(self.to_arrow().select(names), self._steps)

    def reference(
        self, features: Names = None, targets: Names = None, tags: Names = None, stream: str | None = None
    ) -> Reference:
        """Choose columns for a graph; None takes all columns of that role.

        Args:
            features, targets, tags: names of columns of that role.
            stream: which stream of a phase's sampler the rows come from, such as `"pair"`; None is its first.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice.
            SamplerError: a stream that cannot be one's name.
        """
        return Reference(self, features, targets, tags, stream)

    def _remade(self, table: Any, steps: tuple[Step, ...], keep_splits: bool = True) -> FeatureSet:
        made = FeatureSet(self._label, table)
        made._steps = steps
        if keep_splits:
            made.add_splits({name: view.rows for name, view in self._splits.items()})
        return made

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name:
            raise SplitError(f"a split of {self._label!r} is called {name!r}", available="names of splits are text")
        if name == ALL:
            raise self._taken(name, "choose another name")

    def _new_or_same(self, view: FeatureSetView) -> FeatureSetView:
        """The view, or the registered one of the same name and rows: a cell of a notebook may run again."""
        known = self._splits.get(view.name)
        if known is None or np.array_equal(known.rows, view.rows):
            return known or view
        remedy = "make the feature set anew in the same cell, or choose another name"
        raise self._taken(view.name, remedy, " of other rows")

    def _taken(self, name: str, remedy: str, of: str = "") -> SplitError:
        there = listed([*self._splits, ALL])
        return SplitError(f"{self._label!r} already has a split {name!r}{of}", available=there, hint=remedy)
