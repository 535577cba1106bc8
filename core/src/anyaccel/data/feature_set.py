"""Feature sets, the views of their rows, and references to their columns.

The three classes use each other and therefore share this module. Other modules do the rest: `readers` build tables from
user data, `row_filters` and `splitting` choose rows, `transforms` create columns, and `display` shows them.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints, constructor_hints
from anyaccel.data.arrow_columns import (
    Pad,
    array_of,
    cast_column,
    check_column,
    contiguous,
    is_list,
    is_readable,
    read_only,
)
from anyaccel.data.display import data_frame, rows_html, summary
from anyaccel.data.readers import dataframes, hf_datasets, parquet
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.data.readers.csv_files import table_from_csv
from anyaccel.data.readers.file_discovery import Paths
from anyaccel.data.roles import (
    SURROGATES,
    Names,
    NamesOrRest,
    RoleNames,
    WithRoles,
    brief,
    check_label,
    listed,
    names_of,
    selected,
    stamp,
)
from anyaccel.data.row_filters import described, positions_where
from anyaccel.data.rows import Rows
from anyaccel.data.splitting.random_split import check_groups, split_at_random, split_by_condition
from anyaccel.data.transforms import FittedTransform, Transforms, transforms_of
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ColumnError, ConfigError, DataError, SamplerError, SplitError
from anyaccel.printable import printable
from anyaccel.suggestions import did_you_mean

ALL = "all"
"""Stands for all rows, and for no split."""

OTHER_NAMES = {
    "train_test_split random_split split_train_test": "use split_random({'train': 0.8, 'test': 0.2})",
    "shuffle batch dataloader loader repeat prefetch": "a phase draws batches: TrainPhase(..., batch_size=32)",
    "map transform scale normalize standardize": "use fit_transform(StandardScaler(), 'COLUMN', fit_on='train')",
    "x X data": "use array('COLUMN')",
    "y Y labels": "use array('COLUMN')",
    "iloc loc sample rows_at": "use take([0, 1, 2])",
    "head describe info values": "use to_pandas()",
    "shape": "use len(...) for rows, and array('COLUMN').shape",
    "query where": "use filter({'COLUMN': value})",
    "to cuda": "set it on a phase: TrainPhase(..., accelerator='cpu')",
    "ref refs": "use reference()",
    "astype": "use cast({'COLUMN': 'float32'})",
    "to_numpy numpy": "use array('COLUMN')",
    "df to_df": "use to_pandas()",
}


@class_hints
class _SplitRows(AttributeHints, Rows):
    """Rows that can be filtered, split and shown: a feature set or a view of one."""

    attribute_hints = OTHER_NAMES

    @abstractmethod
    def view(self) -> FeatureSetView:
        """Return these rows as a view of their feature set."""

    @abstractmethod
    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> FeatureSetView:
        """Choose some rows as a view, without copying any column; see `Rows.take`.

        Raises:
            SplitError: positions that are empty, not integers, or out of range.
        """

    def filter(self, conditions: Mapping[str, Any], *, name: str | None = None) -> FeatureSetView:
        """Choose the rows that meet all conditions, in their order, as a view; nothing is copied.

        Args:
            conditions: Condition for each column, of any role: a value that the column equals; a collection of values
                (list, tuple, set, array) that contains it; or a function of the column's array [n, *shape] (an object
                array [n] if the column is not numeric or has nulls, which are None) that returns a bool mask [n].
            name: Name of the view; by default derived from the conditions.

        Raises:
            SplitError: no row meets them.
            DataError: no conditions, a value of a kind that the column does not have, or a mask of another shape or
                dtype.
            ColumnError: the column does not exist.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> columns = {"x": np.arange(6.0), "site": list("aabbcc")}
            >>> data = aa.FeatureSet.from_dict("d", columns, ["x"], tags=["site"])
            >>> data.filter({"site": ["a", "c"], "x": lambda x: x > 0}).array("x")
            array([1., 4., 5.])
        """
        positions = positions_where(self, "the filter", conditions)
        derived = f"{self.view().name}.filter({described(conditions)})"
        return self.take(positions, name=derived if name is None else name)

    def split_random(
        self, ratios: Mapping[str, float], seed: int = 0, *, stratify_by: Names = None, group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Split these rows at random into named splits, register them in the feature set and return them.

        Args:
            ratios: Fraction of each split by name, positive, adding up to 1 within 1e-6. Counts are rounded by largest
                remainder.
            seed: Seed of the split; the same seed produces the same splits on every machine.
            stratify_by: One or several columns, of any role, with scalars. Rows with the same values are a stratum, and
                each stratum is split by the ratios, every count rounded up or down.
            group_by: One or several columns, of any role, with scalars. Rows with the same values stay in one split.
                Groups are exchanged to bring the sizes close to the ratios, and every split gets a group. With
                `stratify_by`, a group must be in one stratum.

        Raises:
            SplitError: wrong ratios or seed, a row that `take` chose twice, an empty split, a name that is taken or
                `"all"`, a stratum with fewer rows (or groups) than splits, fewer groups than splits, or a group in two
                strata.
            ColumnError: a column that does not exist, has nulls or NaN, or is not scalar.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(10.0)}, ["x"])
            >>> splits = data.split_random({"train": 0.8, "test": 0.2}, seed=0)
            >>> len(splits["train"]), len(data["test"])
            (8, 2)
        """
        view = self.view()
        splits = split_at_random(self, view.name, ratios, seed=seed, stratify_by=stratify_by, group_by=group_by)
        return _registered(view, splits)

    def split_by_condition(
        self, conditions: Mapping[str, Mapping[str, Any]], group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Split rows by conditions, register the splits and return them. Other rows are in no split.

        Args:
            conditions: Conditions for each split by name, as `filter` takes them.
            group_by: One or several columns; a group with rows in two splits is an error.

        Raises:
            SplitError: an empty split, two that overlap, a group that crosses splits, or a name that is taken.
            DataError, ColumnError: see `filter`, and for `group_by` see `split_random`.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> columns = {"x": np.arange(6.0), "year": [1, 1, 1, 2, 2, 3]}
            >>> data = aa.FeatureSet.from_dict("d", columns, ["x"], tags=["year"])
            >>> splits = data.split_by_condition({"train": {"year": 1}, "test": {"year": [2, 3]}})
            >>> splits["test"].array("x")
            array([3., 4., 5.])
        """
        return _registered(self.view(), split_by_condition(self, conditions, group_by=group_by))

    def to_pandas(self) -> Any:
        """Return these rows as a pandas DataFrame; its index holds the row numbers in the feature set.

        Numbers keep their dtype; a column with a shape per sample has an array in each cell.

        Raises:
            DataError: pandas is not installed.
        """
        return data_frame(self, self.view().rows)

    def _repr_html_(self) -> str:
        return rows_html(self)


@class_hints
class FeatureSetView(_SplitRows):
    """Some rows of a feature set, such as a split, without a copy of any column.

    A view of a view refers to the rows of the same feature set, and its splits are registered there.

    Args:
        feature_set: The feature set of the rows.
        name: Name of the view; the name of the split if it is registered as one.
        rows: Integers [k], k > 0, in any order; they are copied.
        columns: Columns of the view; None for all. Splits of it have all columns.

    Raises:
        SplitError: rows that are empty, not integers, or out of range.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(6.0)}, ["x"])
        >>> view = data.take([4, 2])
        >>> view.array("x"), len(view)
        (array([4., 2.]), 2)
    """

    def __init__(
        self, feature_set: FeatureSet, name: str, rows: Sequence[int] | np.ndarray, columns: Sequence[str] | None = None
    ) -> None:
        if not isinstance(feature_set, FeatureSet):
            problem = f"cannot create a view of {shown(feature_set)}"
            raise SplitError(problem, hint="pass the FeatureSet: FeatureSetView(feature_set, 'NAME', [0, 1])")
        schema, names = feature_set.schema, feature_set.columns if columns is None else names_of(columns)
        if names != feature_set.columns:
            for column in names:
                feature_set.role(column)
            schema = pa.schema([schema.field(column) for column in names], schema.metadata)
        super().__init__(feature_set.label, schema)
        self._feature_set = feature_set
        self._name = arguments.text(SplitError, f"view of {feature_set.label!r}: ", "name", name)
        self._rows = _checked_indices(f"split {name!r} of {feature_set.label!r}", len(feature_set), rows)
        start, stop = int(self._rows[0]), int(self._rows[0]) + len(self._rows)
        self._slice = slice(start, stop) if np.array_equal(self._rows, np.arange(start, stop)) else None

    def __repr__(self) -> str:
        return f"FeatureSetView({self._label!r}[{self._name!r}], {len(self):,} rows)"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def feature_set(self) -> FeatureSet:
        """The feature set of these rows."""
        return self._feature_set

    @property
    def name(self) -> str:
        """Name of the view, or of the split."""
        return self._name

    @property
    def rows(self) -> np.ndarray:
        """Row numbers in the feature set, int64 [k], read-only."""
        return self._rows

    @property
    def base(self) -> FeatureSet:
        """The same as `feature_set`."""
        return self._feature_set

    @property
    def indices(self) -> np.ndarray:
        """The same as `rows`."""
        return self._rows

    def array(self, name: str) -> np.ndarray:
        """Return the values of a column in these rows, [k, *shape] in its own dtype, read-only.

        If the rows are contiguous, this is a slice of the feature set's memory; otherwise each call gathers the values
        again.

        Raises:
            ColumnError: the column does not exist, or it is a tag that is not numeric or has nulls in these rows.
        """
        is_tag, column = self.role(name) == "tag", self._feature_set.column(name)
        if is_tag and not is_readable(column):  # nulls may all be in other rows
            return array_of(self._schema.field(name), self._of_these_rows(column))
        if is_list(column.type):
            return array_of(self._schema.field(name), column, self._rows)
        whole = self._feature_set.array(name)
        return whole[self._slice] if self._slice else read_only(np.take(whole, self._rows, axis=0))

    def column(self, name: str) -> Any:
        """Return a column in these rows as an Arrow chunked array; a slice if the rows are contiguous.

        Raises:
            ColumnError: the column does not exist.
        """
        self.role(name)
        return self._of_these_rows(self._feature_set.column(name))

    def to_arrow(self) -> Any:
        """Return these rows as an Arrow table, with roles in the field metadata."""
        return self._of_these_rows(self._feature_set.to_arrow().select(list(self.columns)))

    def view(self) -> FeatureSetView:
        """Return the view itself."""
        return self

    def select(self, features: Names = None, target: Names = None, tags: Names = None) -> FeatureSetView:
        """Choose columns: return the same rows with fewer columns, as a view of the same feature set and name.

        None keeps all columns of the role, `()` none.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """
        columns = selected(self._label, self._roles, features, target, tags)
        return FeatureSetView(self._feature_set, self._name, self._rows, columns)

    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> FeatureSetView:
        """Choose some of these rows as a view of the same feature set; see `Rows.take`.

        Raises:
            SplitError: positions that are empty, not integers, or out of range.
        """
        chosen = self._rows[_checked_indices(f"take() from {self._name!r} of {self._label!r}", len(self), positions)]
        name = f"{self._name}.take({len(chosen)} rows)" if name is None else name
        return FeatureSetView(self._feature_set, name, chosen, self.columns)

    def intersection(self, other: FeatureSetView) -> FeatureSetView:
        """Choose the rows that are also in `other`, in their order here.

        Raises:
            SplitError: `other` is not a view of the same feature set, or no row is in both.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(5.0)}, ["x"])
            >>> data.take([0, 1, 2]).intersection(data.take([2, 3])).array("x")
            array([2.])
        """
        return self._with_mask(np.isin(self._rows, self._rows_of(other)), f"{self._name} & {other.name}")

    def difference(self, other: FeatureSetView) -> FeatureSetView:
        """Choose the rows that are not in `other`, in their order here.

        Raises:
            SplitError: `other` is not a view of the same feature set, or all rows are in it.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(5.0)}, ["x"])
            >>> data.take([0, 1, 2]).difference(data.take([2])).array("x")
            array([0., 1.])
        """
        return self._with_mask(~np.isin(self._rows, self._rows_of(other)), f"{self._name} - {other.name}")

    def _rows_of(self, other: FeatureSetView) -> np.ndarray:
        if not isinstance(other, FeatureSetView) or other.feature_set is not self._feature_set:
            raise SplitError(
                f"{self!r} cannot be compared with {other!r}",
                cause="both must be views of the same feature set",
                hint="create both from one FeatureSet object; cast(), select() and similar methods return a new one",
            )
        return other.rows

    def _with_mask(self, mask: np.ndarray, name: str) -> FeatureSetView:
        if not mask.any():
            raise SplitError(
                f"{name!r} of {self._label!r} has no rows",
                cause=f"{len(self)} rows in {self._name!r}",
                hint="choose views that leave at least one row",
            )
        return FeatureSetView(self._feature_set, name, self._rows[mask], self.columns)

    def _of_these_rows(self, data: Any) -> Any:
        return data.slice(self._slice.start, len(self)) if self._slice else data.take(pa.array(self._rows))


def _checked_indices(what: str, n: int, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return row numbers below `n` as a read-only copy, int64 [k], k > 0; `what` begins messages."""
    try:
        array = np.asarray(indices)
    except ValueError:  # ragged lists
        array = np.array(None)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise SplitError(
            f"{what} has rows of shape {list(array.shape)} and dtype {array.dtype}",
            cause="rows must be a non-empty integer array [k]",
            hint="pass row numbers; np.flatnonzero(mask) converts a mask",
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n:
        raise SplitError(f"{what} asks for row {low if low < 0 else high}", available=f"rows 0 to {n - 1}")
    return read_only(array.astype(np.int64, copy=True))


def _registered(view: FeatureSetView, positions: Mapping[str, np.ndarray]) -> dict[str, FeatureSetView]:
    """Register splits, given by positions within a view, in its feature set."""
    return view.feature_set.add_splits({name: view.rows[indices] for name, indices in positions.items()})


@constructor_hints
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Reference:
    """Columns of a feature set, chosen by role: the input of a node of a graph.

    Args:
        feature_set: The feature set of the columns.
        features, target, tags: Names of columns of that role; None takes all of them, in their order. Targets that you
            name as features become an input, for models that compute their loss; a node takes them only by keyword.
        stream: Stream of a phase's sampler that the rows come from, such as `"pair"`; None is its first.

    Raises:
        ColumnError: a name that is not a column of that role, or given twice.
        SamplerError: an invalid name of a stream.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("d", {"a": np.zeros(4), "b": np.zeros(4)}, ["a", "b"])
        >>> data.reference(["b"]).features
        ('b',)
    """

    feature_set: FeatureSet
    features: tuple[str, ...]
    targets: tuple[str, ...]
    tags: tuple[str, ...]
    stream: str | None

    def __init__(
        self,
        feature_set: FeatureSet,
        features: Names = None,
        target: Names = None,
        tags: Names = None,
        stream: str | None = None,
    ) -> None:
        if not isinstance(feature_set, WithRoles):
            problem = f"cannot create a reference to {shown(feature_set)}"
            raise DataError(problem, hint="write feature_set.reference(...)")
        object.__setattr__(self, "feature_set", feature_set)
        object.__setattr__(
            self,
            "features",
            columns_of_role(feature_set, "feature", feature_set.features, features, feature_set.targets),
        )
        object.__setattr__(self, "targets", columns_of_role(feature_set, "target", feature_set.targets, target))
        object.__setattr__(self, "tags", columns_of_role(feature_set, "tag", feature_set.tags, tags))
        if stream is not None and (not isinstance(stream, str) or not stream or "@" in stream):
            raise SamplerError(
                f"a reference to {feature_set.label!r} reads the stream {stream!r}, which is not a valid name",
                available="streams of samplers, such as anchor, pair, positive and negative",
                hint="leave it out to read the first stream",
            )
        object.__setattr__(self, "stream", stream)

    def __repr__(self) -> str:
        roles = {"features": self.features, "targets": self.targets, "tags": self.tags}
        parts = [f"{role}: {brief(names)}" for role, names in roles.items() if names]
        parts += [] if self.stream is None else [f"stream: {self.stream}"]
        return printable(f"Reference({self.feature_set.label!r}, {'; '.join(parts)})")

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`; the feature set is given by its label."""
        return {
            "feature_set": self.feature_set.label,
            "features": list(self.features),
            "targets": list(self.targets),
            "tags": list(self.tags),
            **({} if self.stream is None else {"stream": self.stream}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], feature_sets: Mapping[str, FeatureSet]) -> Reference:
        """Rebuild a reference from the output of `get_config`; `feature_sets` holds feature sets by label.

        Raises:
            ConfigError: not such a configuration, or its feature set is not among `feature_sets`.
            ColumnError: a column does not exist.
            SamplerError: an invalid name of a stream.
        """
        keys = ("feature_set", "features", "targets", "tags", "stream")
        if not isinstance(config, Mapping) or "feature_set" not in config or set(config) - set(keys):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a reference",
                available=f"keys: {listed(keys)}",
                hint="pass the dict from get_config()",
            )
        is_listing = isinstance(feature_sets, Iterable) and not isinstance(feature_sets, str)
        labels = list(feature_sets) if is_listing else []
        if config["feature_set"] not in labels:
            raise ConfigError(
                f"a reference names the feature set {config['feature_set']!r}, which is not in feature_sets",
                available=listed(labels) if labels else "",
                hint=did_you_mean(config["feature_set"], labels) if labels else "add it to feature_sets",
            )
        return cls(feature_sets[config["feature_set"]], *(config.get(key) for key in keys[1:]))


@class_hints
class FeatureSet(_SplitRows):
    """Named columns of equal length in read-only Arrow memory. Each column is a feature, a target or a tag.

    Features and targets are of bool, int, uint or float with one shape per sample and without nulls (floats may be
    NaN); tags may have any Arrow type. For rows that differ in length, use `pad=` of the constructors.

    In the constructors, one of the roles may be `...` (Python's Ellipsis) instead of names: it takes all columns that
    the other roles do not name, in their order. `from_pandas("wine", df, ..., "quality", "id")` makes every column but
    two a feature.

    Args:
        label: Name of the feature set, without a dot (`"LABEL.COLUMN"` names a column).
        table: Arrow table whose columns have their roles in their field metadata as `anyaccel.role`; columns without a
            role are left out. The `from_` constructors create it.

    Raises:
        DataError: a label that is not text or has a dot, not an Arrow table, or no rows.
        ColumnError: no roles, or a feature or target with nulls, of another type or with empty samples.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x, y = np.zeros((100, 4), "float32"), np.arange(100) % 3
        >>> data = aa.FeatureSet.from_dict("flowers", {"x": x, "species": y}, ["x"], ["species"])
        >>> data
        FeatureSet('flowers', 100 rows; features: x float32[4]; targets: species int64[])
    """

    _needs_rows = True

    def __init__(self, label: str, table: Any) -> None:
        check_label(label)
        if not isinstance(table, pa.Table):
            call = "from_pandas(label, df, features=[...])"
            if isinstance(table, Mapping):
                call = "from_dict(label, arrays, features=[...])"
            elif isinstance(table, (str, os.PathLike)):
                call = "from_parquet(label, path, features=[...])"
            raise DataError(
                f"FeatureSet({label!r}, ...) needs an Arrow table, got a {type(table).__name__}",
                cause="the from_ constructors create a table with the roles of its columns",
                hint=f"write FeatureSet.{call}",
            )
        super().__init__(label, table.schema)
        chosen = table.select(list(self.columns))
        self._schema = chosen.schema
        self._columns = dict(zip(chosen.column_names, chosen.columns, strict=True))
        self._arrays: dict[str, np.ndarray] = {}  # each is created once
        self._splits: dict[str, FeatureSetView] = {}
        self._transforms = Transforms()
        if self._needs_rows and not len(self):
            available = f"columns: {listed(self.columns)}"
            raise DataError(f"{self._label!r} has no rows", available=available, hint="pass data with rows")
        for name in self.features + self.targets:
            check_column(name, self._columns[name], self._schema.field(name))

    @classmethod
    def from_dict(
        cls,
        label: str,
        data: Mapping[str, Any],
        features: NamesOrRest,
        target: NamesOrRest = (),
        tags: NamesOrRest = (),
        *,
        pad: Mapping[str, float | Pad] | None = None,
    ) -> Self:
        """Create a feature set from array-likes of shape [n, *shape] by name.

        Every chosen column is copied once and keeps its dtype (Arrow tags are not copied); other columns are left out.

        Args:
            label: Label of the feature set.
            data: The columns.
            features, target, tags: Names of columns, or `...` for one role.
            pad: For each column whose rows differ in length (lists or arrays [length, *shape]): the padding value, as a
                number or a Pad. Each batch of a phase is padded to its longest row.

        Raises:
            DataError: `data` is not a mapping, or there are no rows.
            ColumnError: unknown names or names in two roles, two `...`, unequal lengths, ragged samples of a column not
                in `pad`, nulls (also NaN among integers), or a feature or target that is not numeric.

        Example:
            >>> import anyaccel as aa
            >>> rows = {"tokens": [[5, 3], [8, 1, 2]], "y": [0, 1]}
            >>> data = aa.FeatureSet.from_dict("text", rows, ["tokens"], ["y"], pad={"tokens": 0})
            >>> data.array("tokens")
            array([[5, 3, 0],
                   [8, 1, 2]])
        """
        check_label(label)
        names = RoleNames(features, target, tags)
        return cls(label, dataframes.table_from_dict(label, data, names, pad))

    @classmethod
    def from_arrow(
        cls,
        label: str,
        table: Any,
        features: NamesOrRest = None,
        target: NamesOrRest = None,
        tags: NamesOrRest = None,
        *,
        pad: Mapping[str, float | Pad] | None = None,
    ) -> Self:
        """Create a feature set on the memory of an Arrow table, without a copy.

        Accepts a `pyarrow.Table`, `RecordBatch` or `RecordBatchReader`, any object with `__arrow_c_stream__` or
        `__arrow_c_array__`, and the capsule of a stream. Without any names, the roles are those that `to_arrow` wrote
        into the schema. `fixed_shape_tensor` and fixed-size list columns have a shape per sample, and so have features
        and targets of lists of one length. Text views and run-end encoded columns are converted to the plain layout.
        Lists that differ in length need `pad`, as in `from_dict`. From an Arrow data set in folders and a lazy frame of
        Polars, only the named columns are read. Hugging Face data sets are read as their Arrow tables; several by name,
        as in a `DatasetDict`, become splits with these names.

        Raises:
            DataError: not an Arrow table, one whose buffers are inconsistent, or one without rows.
            ColumnError: see `from_dict`; or no names and no roles in the schema.

        Example:
            >>> import anyaccel as aa, pyarrow as pa
            >>> data = aa.FeatureSet.from_arrow("t", pa.table({"x": [1.0, 2.0], "y": [0, 1]}), ["x"], ["y"])
            >>> data.array("x")
            array([1., 2.])
        """
        check_label(label)
        names = RoleNames(features, target, tags)
        joined, splits = hf_datasets.joined_splits(label, table) or (table, {})
        made = cls(label, dataframes.table_from_arrow(label, joined, names, pad))
        made.add_splits(splits)
        return made

    @classmethod
    def from_pandas(
        cls,
        label: str,
        df: Any,
        features: NamesOrRest = None,
        target: NamesOrRest = None,
        tags: NamesOrRest = None,
        *,
        pad: Mapping[str, float | Pad] | None = None,
    ) -> Self:
        """Create a feature set from a data frame of pandas or another library.

        Chosen columns of pandas are copied once and keep their dtype, including nullable and Arrow dtypes; the index is
        left out. Frames with `__arrow_c_stream__` (Polars, DuckDB relations) are read as by `from_arrow`, without a
        copy; those that have only `__dataframe__` are copied. For a lazy frame of Polars, only the named columns are
        computed. `features`, `target` and `tags` are other names for `features`, `target` and `tags`. Columns of lists
        that differ in length need `pad`, as in `from_dict`.

        Raises:
            DataError: `df` is not a data frame, or has no rows.
            ColumnError: see `from_dict`; or both names for one role. A float column of pandas may hold NaN; nulls of
                nullable and Arrow dtypes, of Polars and of DuckDB are refused in features and targets.

        Example:
            >>> import anyaccel as aa, pandas as pd
            >>> frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
            >>> aa.FeatureSet.from_pandas("t", frame, ["x"], ["y"]).array("x")
            array([1., 2.])
        """
        check_label(label)
        role_names = RoleNames(*(() if names is None else names for names in (features, target, tags)))
        return cls(label, dataframes.table_from_frame(label, df, role_names, pad))

    @classmethod
    def from_csv(
        cls,
        label: str,
        path: str | os.PathLike[str],
        features: NamesOrRest = None,
        target: NamesOrRest = None,
        tags: NamesOrRest = None,
        *,
        delimiter: str = ",",
    ) -> Self:
        r"""Read a CSV file with a header, using Arrow: integers, floats, bools, dates, or text.

        Args:
            label: Label of the feature set.
            path: The file.
            features, target, tags: Names of columns, or `...` for one role.
            delimiter: One character.

        Raises:
            MissingFileError: the file does not exist.
            OSError: the file cannot be opened.
            DataError: not a CSV file, or no rows.
            ColumnError: see `from_arrow`; an empty cell, and one with NA, null or NaN, is a null unless it is quoted.

        Example:
            >>> import anyaccel as aa
            >>> with open("points.csv", "w") as file:
            ...     characters = file.write("x,y,id\n0.5,1,a\n1.5,0,b\n")
            >>> aa.FeatureSet.from_csv("points", "points.csv", ..., "y", "id").features
            ('x',)
        """
        check_label(label)
        return cls.from_arrow(label, table_from_csv(label, path, delimiter), features, target, tags)

    @classmethod
    def from_parquet(
        cls,
        label: str,
        path: Paths,
        features: NamesOrRest = None,
        target: NamesOrRest = None,
        tags: NamesOrRest = None,
        *,
        row_groups: int | Sequence[int] | None = None,
        pad: Mapping[str, float | Pad] | None = None,
    ) -> Self:
        """Read Parquet files; only the chosen columns are read, into new memory.

        Nothing is memory-mapped: the files can change or be deleted afterwards. Every row group is fully validated.

        Args:
            label: Label of the feature set.
            path: A file; a list of files, read in its order; or a folder. From a folder, all files ending in
                `.parquet`, `.parq` or `.pq` are read in the order of their paths, including those in subfolders, except
                for names that start with a dot or an underscore.
            features, target, tags: Names of columns, or `...` for one role. Without any, the roles that `to_arrow`
                wrote into the schema (of the first file, if they differ). Below a folder, a folder named `key=value`
                becomes a column `key`: int64 if all values are integers, otherwise text, null for
                `__HIVE_DEFAULT_PARTITION__`; if the files themselves have a column with that name, theirs is read.
            row_groups: Number or numbers of the row groups to read, for a single file.
            pad: Padding value for lists that differ in length; see `from_dict`.

        Raises:
            MissingFileError: the file does not exist.
            OSError: a file cannot be opened.
            DataError: no file in a folder or list, an invalid Parquet file, a row group that does not exist, or no
                rows.
            ColumnError: see `from_arrow`; or a column that a file lacks or holds in another type than the first.

        Example:
            >>> import anyaccel as aa, pyarrow as pa, pyarrow.parquet as pq
            >>> pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), "t.parquet")
            >>> aa.FeatureSet.from_parquet("t", "t.parquet", ["x"], ["y"]).array("y")
            array([0, 1])
        """
        check_label(label)
        names = RoleNames(features, target, tags)
        return cls(label, parquet.table_from_parquet(label, path, names, row_groups, pad))

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {len(view)}" for name, view in self.splits.items())
        return printable(f"FeatureSet({self._label!r}, {summary(self)}{'; splits: ' if splits else ''}{splits})")

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> FeatureSetView:
        """Return the split with this name; the same as `split(name)`."""
        return self.split(name)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a split with this name."""
        return name in self._splits

    @property
    def nbytes(self) -> int:
        """Bytes of all columns in Arrow memory."""
        return sum(int(column.nbytes) for column in self._columns.values())

    @property
    def splits(self) -> Mapping[str, FeatureSetView]:
        """The registered splits by name, as a read-only mapping."""
        return MappingProxyType(self._splits)

    @property
    def transforms(self) -> tuple[FittedTransform, ...]:
        """The transforms applied to these columns, the oldest first, including those of columns that were left out
        later.
        """
        return self._transforms.fitted

    def array(self, name: str) -> np.ndarray:
        """Return the values of a column, [n, *shape] in its own dtype, read-only; the same object on every call.

        The array uses Arrow's memory without a copy; only chunks are combined, and bool is unpacked, once. A column
        whose rows differ in length is padded to the longest.

        Raises:
            ColumnError: the column does not exist, or it is a tag that is not numeric or has nulls.
        """
        self.role(name)
        if name not in self._arrays:
            self.spec(name)  # what is no array is not copied into one chunk
            column = pa.chunked_array([contiguous(self._columns[name])])
            self._arrays[name] = array_of(self._schema.field(name), column)
            self._columns[name] = column
        return self._arrays[name]

    def column(self, name: str) -> Any:
        """Return a column as an Arrow chunked array. Use it to read tags of any type.

        Raises:
            ColumnError: the column does not exist.
        """
        self.role(name)
        return self._columns[name]

    def to_arrow(self) -> Any:
        """Return an Arrow table on the same memory, with roles in the field metadata; `from_arrow` reads it.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(6.0)}, ["x"])
            >>> data.to_arrow().num_rows
            6
        """
        return pa.table(list(self._columns.values()), schema=self._schema)

    def view(self) -> FeatureSetView:
        """Return all rows as a view, named `"all"`."""
        return FeatureSetView(self, ALL, np.arange(len(self)))

    def take(self, positions: Sequence[int] | np.ndarray, *, name: str | None = None) -> FeatureSetView:
        """Choose some rows as a view, without copying any column; see `Rows.take`.

        Raises:
            SplitError: positions that are empty, not integers, or out of range.
        """
        chosen = _checked_indices(f"take() from {ALL!r} of {self._label!r}", len(self), positions)
        return FeatureSetView(self, f"{ALL}.take({len(chosen)} rows)" if name is None else name, chosen)

    def split(self, name: str) -> FeatureSetView:
        """Return the split with this name, or the view of all rows for `"all"`.

        Raises:
            SplitError: the split does not exist.
        """
        if name == ALL:
            return self.view()
        if isinstance(name, str) and name in self._splits:
            return self._splits[name]
        hint = "create splits with split_random({'train': 0.8, ...})"
        hint = did_you_mean(name, self._splits) if self._splits else hint
        raise SplitError(
            f"{self._label!r} has no split {name!r}",
            available=listed([*self._splits, ALL]),
            hint=f"it is a column: data.array({name!r})" if name in self.columns else hint,
        )

    def add_split(self, name: str, rows: Sequence[int] | np.ndarray) -> FeatureSetView:
        """Register rows that you chose (integers [k], in any order) as a split, and return it.

        Raises:
            SplitError: the name is `"all"`, not text or taken by other rows, or the rows are empty, not integers or out
                of range.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(6.0)}, ["x"])
            >>> data.add_split("test", [5, 0]).array("x")
            array([5., 0.])
        """
        self._check_split_name(name)
        return self.add_splits({name: rows})[name]

    def add_splits(
        self, rows: Mapping[str, Sequence[int] | np.ndarray], *, group_by: Names = None
    ) -> dict[str, FeatureSetView]:
        """Register several splits, all or none; see `add_split`. A name that already has the same rows stays unchanged.

        Args:
            rows: Rows of each split, by name.
            group_by: One or several columns, of any role, with scalars: check that rows with the same values are not in
                two of these splits.

        Raises:
            SplitError: see `add_split`; or a group that crosses splits.
            ColumnError: a column of `group_by` that does not exist, has nulls or NaN, or is not scalar.
        """
        if not isinstance(rows, Mapping):
            problem = f"the splits of {self._label!r} must be a mapping by name, got {shown(rows)}"
            raise SplitError(problem, hint="write add_splits({'train': [0, 1], 'test': [2]})")
        for name in rows:
            self._check_split_name(name)
        views = {name: FeatureSetView(self, name, indices) for name, indices in rows.items()}
        for name, view in views.items():
            known = self._splits.get(name, view)  # a notebook cell may run again and create its splits again
            if not np.array_equal(known.rows, view.rows):
                hint = "create the feature set again in the same cell, or choose another name"
                raise self._name_taken(name, hint, " of other rows")
            views[name] = known
        if views:
            check_groups(self, group_by, {name: view.rows for name, view in views.items()})
        self._splits.update(views)
        return views

    def _check_split_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name or SURROGATES.search(name):
            problem = f"the name of a split of {self._label!r} must be text, got {shown(name)}"
            raise SplitError(problem, hint="write add_split('NAME', rows)")
        if name == ALL:
            raise self._name_taken(name, "choose another name")

    def _name_taken(self, name: str, hint: str, of: str = "") -> SplitError:
        return SplitError(
            f"{self._label!r} already has a split {name!r}{of}",
            cause=f"it has {listed([*self._splits, ALL])}",
            hint=hint,
        )

    def cast(self, dtypes: Mapping[str, Any], *, keep_splits: bool = True) -> FeatureSet:
        """Return a new feature set with the same label and some columns in another dtype; the others share their
        memory.

        Transforms stay; undoing one also undoes the cast of its columns.

        Args:
            dtypes: NumPy dtype, or its name, by column.
            keep_splits: Whether the new one has the same splits with the same rows.

        Raises:
            ColumnError: `dtypes` is not a mapping, an unknown column, a tag that is not numeric, a dtype that is not
                numeric, or one that cannot represent a value (floats are rounded to narrower floats, nothing else
                changes).

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(3.0)}, ["x"])
            >>> data.cast({"x": "float32"}).array("x").dtype
            dtype('float32')
        """
        arguments.flag(ColumnError, "cast: ", "keep_splits", keep_splits)
        if not isinstance(dtypes, Mapping):
            raise ColumnError(
                f"cast({dtypes!r}) of {self._label!r} does not name the columns",
                available=f"columns: {listed(self.columns)}",
                hint=f"write cast({{{self.columns[0]!r}: {dtypes if isinstance(dtypes, str) else 'float32'!r}}})",
            )
        table = self.to_arrow()
        for name, dtype in dtypes.items():
            column = self.column(name)
            field, column = cast_column(self._schema.field(name), column, dtype)
            table = table.set_column(table.schema.get_field_index(name), field, column)
        return self._copy(table, self._transforms, keep_splits)

    def select(self, features: Names = None, target: Names = None, tags: Names = None) -> FeatureSet:
        """Choose columns: return a new feature set with the same label, rows, splits and transforms, on the same
        memory.

        None keeps all columns of the role, `()` none.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
        """
        names = selected(self._label, self._roles, features, target, tags)
        return self._copy(self.to_arrow().select(names), self._transforms)

    def with_tags(self, columns: Mapping[str, Any]) -> FeatureSet:
        """Add tag columns: return a new feature set with the same label, splits, transforms and other columns.

        Args:
            columns: Values [n, ...] by the name of the new column: numbers, text, dates.

        Raises:
            ColumnError: a name that is taken, or values that are not one for each row.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("d", {"x": np.arange(3.0)}, ["x"])
            >>> data.with_tags({"weight": [1.0, 0.5, 2.0]}).tags
            ('weight',)
        """
        table, roles = self.to_arrow(), dict(self._roles)
        arguments.check(
            ColumnError,
            "with_tags: ",
            "columns",
            columns,
            lambda given: isinstance(given, Mapping) and all(isinstance(name, str) and name for name in given),
            "values by name",
            "{'NAME': [...]}",
        )
        for name, values in columns.items():
            if name in roles:
                raise ColumnError(f"{self._label!r} already has a column {name!r}", hint="choose another name")
            column = tag_column(name, values)
            if len(column) != len(self):
                problem = f"column {name!r} has {len(column)} values, and {self._label!r} {len(self)} rows"
                raise ColumnError(problem, hint="pass one value for each row")
            table, roles = table.append_column(name, column), {**roles, name: "tag"}
        return self._copy(stamp(table, roles), self._transforms)

    def reference(
        self, features: Names = None, target: Names = None, tags: Names = None, stream: str | None = None
    ) -> Reference:
        """Choose columns for a graph; None takes all columns of that role.

        Args:
            features, target, tags: Names of columns of that role.
            stream: Stream of a phase's sampler that the rows come from, such as `"pair"`; None is its first.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice.
            SamplerError: an invalid name of a stream.
        """
        return Reference(self, features, target, tags, stream)

    def fit_transform(
        self,
        transform: Any,
        columns: Names,
        *,
        fit_on: str | FeatureSetView | None = None,
        role: str | None = None,
        into: str | None = None,
    ) -> FeatureSet:
        """Fit a transform to the rows of one split, and return a new feature set with all rows transformed.

        Rows, label and splits stay.

        Args:
            transform: An object with `fit(X)` and `transform(X)` in the style of scikit-learn; a copy of it is fitted.
                `X` is [n, numbers]: each column flattened, side by side; an object array if one of them is not numeric.
                Missing values of a tag are NaN there, as in a pandas data frame, or None for a transform with
                `missing_values=None`.
            columns: Name of one or several columns, of any role. They keep their shape if the transform returns as many
                numbers as it takes; otherwise a single column gets shape (k,). Floats keep their width.
            fit_on: Name of a split, or a view of this feature set. `"all"` includes the rows that you evaluate on.
            role: `"feature"`, `"target"` or `"tag"` for the result; by default the role of its column. Required if a
                tag that is not numeric becomes numbers.
            into: Name of a new column for the result, of any width. By default, the result replaces the columns.

        Raises:
            TransformError: `fit_on` is missing; the transform does not fit these columns, returns other rows or NaN for
                finite numbers, or finds unseen categories; or a tag becomes numbers and `role` is missing.
            SplitError: the split does not exist.
            ColumnError: the column does not exist, or it has nulls inside samples, or nulls among integers that float64
                cannot hold.
        """
        fit: Any = load(SETTINGS, "FeatureSet.fit_transform")
        return self._copy(*fit(self, self._transforms, transform, columns, fit_on=fit_on, role=role, into=into))

    def transform_like(self, other: FeatureSet | FeatureSetView) -> FeatureSet:
        """Apply the transforms of another feature set, as fitted there, and return a new feature set.

        Transforms of targets and tags that are missing here are skipped; `inverse` still knows them.

        Raises:
            TransformError: the other has no transforms, they are applied here already, a feature is missing or has
                another shape, or a transform fails (for example for unseen categories).
        """
        transforms = transforms_of(self, other)
        return self._copy(*load(SETTINGS, "FeatureSet.transform_like")(self, self._transforms, transforms))

    def undo_transform(self) -> FeatureSet:
        """Undo the last transform, and return a new feature set whose columns are bitwise equal to those before it.

        Later casts of these columns are undone, too. Columns that were left out later stay out, but the source of a
        remaining result of `into=` is restored.

        Raises:
            TransformError: there is no transform (left).
        """
        return self._copy(*self._transforms.undone(self, 1))

    def undo_transforms(self) -> FeatureSet:
        """Undo all transforms, and return a new feature set; see `undo_transform`.

        Raises:
            TransformError: there is no transform (left).
        """
        return self._copy(*self._transforms.undone(self))

    def inverse(self, values: Any, columns: Names) -> np.ndarray:
        """Convert values of transformed columns, such as predictions, to the units before all transforms.

        The last transform is undone first. Do not pass values that you already converted: nothing marks them. The
        result is NaN where a transform returns NaN for values that it cannot have produced.

        Args:
            values: Array [n, *shape] for any n; several columns are joined along the last axis; axes of length 1 are
                ignored.
            columns: Column, or several, that these values belong to, by their current names.

        Returns:
            The shape given, or the shape of the column before its transforms if these changed it (text: an object array
            [n]); `values` themselves if no transform concerns the columns.

        Raises:
            TransformError: a transform has no inverse, fails, or needs more columns (PCA for one of three).
            ColumnError: the column does not exist.
        """
        return self._transforms.inverse(self, values, columns)

    def _copy(self, table: Any, transforms: Transforms, keep_splits: bool = True) -> FeatureSet:
        """A feature set of the same label and splits with these columns and transforms."""
        copy = FeatureSet(self._label, table)
        copy._transforms = transforms
        for name, view in self._splits.items() if keep_splits else ():
            copy._splits[name] = FeatureSetView(copy, name, view.rows)
        return copy


def columns_of_role(
    rows: Rows, role: str, columns: tuple[str, ...], chosen: Names, also: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the given names, which may also be in `also`; for None, all `columns` of a role."""
    names = columns if chosen is None else names_of(chosen)
    for position, name in enumerate(names):
        if name not in columns and name not in also:
            actual = f", it is a {rows.role(name)}" if name in rows.columns else ""
            raise ColumnError(
                f"{rows.label!r} has no {role} {name!r}{actual}",
                available=f"{role}s: {listed(columns)}",
                hint=did_you_mean(name, columns)
                if columns
                else f"name it in {role}_keys when you create the feature set",
            )
        if name in names[:position]:
            raise ColumnError(f"{role} {name!r} of {rows.label!r} is named twice", hint="name it once")
    return names
