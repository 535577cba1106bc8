"""Rows: what a feature set and its views share: reading columns, and choosing rows and columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anyaccel.data.arrow_columns import column_spec, type_name
from anyaccel.data.display import data_frame, rows_html
from anyaccel.data.roles import Names, WithRoles, no_column, read_roles
from anyaccel.data.row_filters import described, positions_where
from anyaccel.data.splitting.group_keys import keys_of
from anyaccel.data.splitting.group_split import check_together
from anyaccel.data.splitting.random_split import check_distinct, cut, where
from anyaccel.segment import TensorSpec

if TYPE_CHECKING:
    from anyaccel.data.feature_set_view import FeatureSetView

_LISTED, _NAMED = 6, 4  # columns of a role that a text lists one by one; those that it names of more of one type


class Rows(WithRoles, ABC):
    """Rows of named columns, each with a role: feature, target or tag.

    Args:
        label: of the feature set that the rows belong to.
        schema: Arrow schema whose fields carry their roles.
    """

    def __init__(self, label: str, schema: Any) -> None:
        super().__init__(label, read_roles(label, schema))
        self._schema = schema

    def _repr_html_(self) -> str:
        return rows_html(self)

    @property
    def schema(self) -> Any:
        """The Arrow schema; each field has its role in its metadata as `anyaccel.role`."""
        return self._schema

    def role(self, name: str) -> str:
        """`"feature"`, `"target"` or `"tag"`.

        Raises:
            ColumnError: there is no such column.
        """
        if name not in self._roles:
            raise no_column(self._label, name, self._roles)
        return self._roles[name]

    def spec(self, name: str) -> TensorSpec:
        """Shape per sample and dtype of a column.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers.
        """
        self.role(name)
        return column_spec(name, self._schema.field(name).type)

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """Values of a column, [n, *shape] in its own dtype, read-only.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers.
        """

    @abstractmethod
    def column(self, name: str) -> Any:
        """A column as an Arrow chunked array; the way to read tags of any type.

        Raises:
            ColumnError: there is no such column.
        """

    @abstractmethod
    def to_arrow(self) -> Any:
        """An Arrow table of all columns, with their roles in the field metadata."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The table of `to_arrow` for other libraries, through Arrow's C interface: `polars.DataFrame(rows)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    @abstractmethod
    def view(self) -> FeatureSetView:
        """These rows as a view of their feature set."""

    @abstractmethod
    def select(self, features: Names = None, targets: Names = None, tags: Names = None) -> Self:
        """The same rows with fewer columns, by role; None keeps all columns of the role, `()` none.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """

    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> FeatureSetView:
        """Some of these rows as a view, without a copy of any column; `add_split(name, view.rows)` registers it.

        Args:
            positions: integers [k], k > 0, counted within these rows, in any order.
            name: of the view; one that tells where it comes from if None.

        Raises:
            SplitError: positions that are none, no integers, or out of range.
        """
        return self.view().take(positions, name=name)

    def filter(self, conditions: Mapping[str, Any], *, name: str | None = None) -> FeatureSetView:
        """Those of these rows that meet all conditions, in their order, as a view; see `take`.

        Args:
            conditions: by column, of any role: a value, which the column equals; a collection of values (list, tuple,
                set, array), one of which it equals; or a function of the column's array [n, *shape] (an object array
                [n] where the column holds no numbers, or nulls, which are None) that gives a bool mask [n].
            name: of the view; one that tells the conditions if None.

        Raises:
            SplitError: no row meets them.
            DataError: no conditions, a value of a kind that the column has not, or a mask of another shape or dtype.
            ColumnError: there is no such column.
        """
        positions = positions_where(self, "the filter", conditions)
        return self.take(positions, name=name or f"{self.view().name}.filter({described(conditions)})")

    def split_random(
        self, ratios: Mapping[str, float], seed: int = 0, *, stratify_by: Names = None, group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Cut these rows at random into named splits of the feature set, register and return them; nothing is copied.

        Args:
            ratios: share of each split by name, positive, adding up to 1 within 1e-6; counts are rounded by largest
                remainder.
            seed: the same seed gives the same splits on every machine.
            stratify_by: a column or several, of any role, with scalars: rows with the same values are a stratum, and
                each stratum is cut by the ratios, every count rounded up or down.
            group_by: likewise; rows with the same values stay in one split. The sizes come near the ratios by
                exchanging groups, and every split gets a group. With `stratify_by` a group must be in one stratum.

        Raises:
            SplitError: wrong ratios or seed, a row that `take` chose twice, an empty split, a name that is taken or
                `"all"`, a stratum with fewer rows (or groups) than splits, fewer groups than splits, or a group in two
                strata.
            ColumnError: a column that is not there, has nulls or NaN, or holds no scalars.
        """
        strata = None if stratify_by is None else keys_of(self, stratify_by, "stratify_by")
        groups = None if group_by is None else keys_of(self, group_by, "group_by")
        view = self.view()
        check_distinct(view)
        parts = cut(self._label, view.name, len(self), ratios, seed, strata, groups)
        return view.feature_set.add_splits({name: view.rows[part] for name, part in parts.items()})

    def split_by_condition(
        self, conditions: Mapping[str, Mapping[str, Any]], group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Make splits of the rows that meet conditions, register and return them; other rows are in none.

        Args:
            conditions: for each split, by name, conditions as `filter` takes them.
            group_by: a column or several; a group with rows in two splits is an error.

        Raises:
            SplitError: an empty split, two that overlap, a group that crosses splits, or a name that is taken.
            DataError, ColumnError: as `filter`, and as `split_random` for `group_by`.
        """
        parts, view = where(self, conditions), self.view()
        if group_by is not None:
            check_together(self._label, keys_of(self, group_by, "group_by"), parts)
        return view.feature_set.add_splits({name: view.rows[part] for name, part in parts.items()})

    def to_pandas(self) -> Any:
        """A pandas DataFrame with these rows; its index holds their row numbers in the feature set.

        Numbers keep their dtype; a column with a shape per sample holds an array in each cell.

        Raises:
            DataError: pandas is not installed.
        """
        return data_frame(self, self.view().rows)

    def _described(self) -> str:
        parts = []
        for role, names in (("features", self.features), ("targets", self.targets), ("tags", self.tags)):
            if len(names) > _LISTED:
                parts += self._by_type(role, names)
            elif names:
                parts.append(f"{role}: {', '.join(f'{name} {self._type_of(name)}' for name in names)}")
        return "; ".join([f"{len(self)} rows", *parts])

    def _by_type(self, role: str, names: Sequence[str]) -> list[str]:
        """Many columns in short: how many there are of each type, and the first of their names."""
        kinds: dict[str, list[str]] = {}
        for name in names:
            kinds.setdefault(self._type_of(name), []).append(name)
        return [
            f"{len(its)} {role if len(its) > 1 else role.removesuffix('s')} {kind}: {', '.join(its[:_NAMED])}"
            + (f", ... and {len(its) - _NAMED} more" if len(its) > _NAMED else "")
            for kind, its in kinds.items()
        ]

    def _type_of(self, name: str) -> str:
        return type_name(name, self._schema.field(name).type)
