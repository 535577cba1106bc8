"""Sources: the ways in which a feature set is made of what a user has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from anyaccel.data.readers import dataframes, parquet
from anyaccel.data.roles import NamesOrRest
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError, DataError


def check_label(label: str) -> None:
    """Make sure that `label` can be that of a feature set.

    Raises:
        DataError: it is not text, empty, or has a dot.
    """
    if not isinstance(label, str) or not label or "." in label:
        raise DataError(
            f"{label!r} is not a label of a feature set",
            available="labels are text without a dot, because 'LABEL.COLUMN' names a column",
            hint="write another label",
        )


def check_table(label: str, table: Any) -> None:
    """Make sure that `table` is an Arrow table, as the `from_` constructors make it.

    Raises:
        DataError: it is not; the message names the constructor for what it is.
    """
    if isinstance(table, pa.Table):
        return
    if isinstance(table, Mapping):
        way = "from_dict(label, arrays, feature_keys=[...])"
    elif isinstance(table, (str, os.PathLike)):
        way = "from_parquet(label, path, feature_keys=[...])"
    else:
        way = "from_pandas(label, df, feature_cols=[...])"
    raise DataError(
        f"FeatureSet({label!r}, ...) was given a {type(table).__name__}",
        available="it takes an Arrow table whose columns carry their roles; the from_ constructors make one",
        hint=f"write FeatureSet.{way}",
    )


def _one_word(label: str, role: str, cols: NamesOrRest, keys: NamesOrRest) -> NamesOrRest:
    """What was given under one of the two words for the names of a role."""
    if cols is not None and keys is not None:
        raise ColumnError(
            f"the {role}s of {label!r} are named twice: by {role}_cols and by {role}_keys",
            available="both mean the same",
            hint=f"keep {role}_cols",
        )
    given = keys if cols is None else cols
    return () if given is None else given


class Sources(Rows):
    """Constructors of a feature set, which is made of a label and an Arrow table whose columns carry their roles.

    One of the roles may have `...` (Python's Ellipsis) in place of names: all columns that are not named otherwise, in
    their order. `from_pandas("wine", df, ..., "quality", "id")` makes a feature of each column but two.
    """

    @classmethod
    def from_dict(
        cls,
        label: str,
        data: Mapping[str, Any],
        feature_keys: NamesOrRest,
        target_keys: NamesOrRest = (),
        tag_keys: NamesOrRest = (),
    ) -> Self:
        """Make a feature set of array-likes of shape [n, *shape] by name.

        Every chosen column is copied once and keeps its dtype, so that later writes to `data` do not show here
        (Arrow tags are taken as they are). Columns of `data` that no key names are left out; one of the three may be
        `...`, which means all that the others do not name.

        Raises:
            DataError: `data` is no mapping, or there are no rows.
            ColumnError: unknown or doubly named keys, two `...`, unequal lengths, ragged samples, nulls (also NaN among
                integers), or a feature or target that is not of numbers.
        """
        check_label(label)
        return cls(label, dataframes.table_from_dict(label, data, feature_keys, target_keys, tag_keys))

    @classmethod
    def from_arrow(
        cls,
        label: str,
        table: Any,
        feature_keys: NamesOrRest = None,
        target_keys: NamesOrRest = None,
        tag_keys: NamesOrRest = None,
    ) -> Self:
        """Make a feature set on the memory of an Arrow table, without a copy.

        Takes a `pyarrow.Table`, `RecordBatch` or `RecordBatchReader`, any object with `__arrow_c_stream__` or
        `__arrow_c_array__`, and the capsule of a stream. Without any keys the roles are those that `to_arrow` wrote
        into the schema. Columns without a role are left out; one of the keys may be `...`, which means all
        columns that the others do not name. `fixed_shape_tensor` and fixed-size list columns have a
        shape per sample, and so have features and targets of lists of one length. Text that is laid out as views
        (`string_view`) and run-end encoded columns are written anew in the plain layout.

        Raises:
            DataError: not an Arrow table, one whose buffers do not fit, or one without rows.
            ColumnError: as `from_dict`, or no keys and no roles in the schema.
        """
        check_label(label)
        return cls(label, dataframes.table_from_arrow(label, table, feature_keys, target_keys, tag_keys))

    @classmethod
    def from_pandas(
        cls,
        label: str,
        df: Any,
        feature_cols: NamesOrRest = None,
        target_cols: NamesOrRest = None,
        tag_cols: NamesOrRest = None,
        *,
        feature_keys: NamesOrRest = None,
        target_keys: NamesOrRest = None,
        tag_keys: NamesOrRest = None,
    ) -> Self:
        """Make a feature set of a data frame, of pandas or of another library.

        - pandas: each chosen column is copied once and keeps its dtype, nullable and Arrow dtypes too; the index is
          left out.
        - Polars data frames, DuckDB relations and all else with `__arrow_c_stream__`: as `from_arrow`, without a copy.
        - What has only `__dataframe__`, the dataframe interchange protocol: copied.

        One of `feature_cols`, `target_cols` and `tag_cols` may be `...`: all columns that the others do not name. The
        words of the other constructors, `feature_keys`, `target_keys` and `tag_keys`, mean the same.

        Raises:
            DataError: `df` is no data frame, or has no rows.
            ColumnError: as `from_dict`, or both words for one role. A float column of pandas may hold NaN; nulls of
                nullable and Arrow dtypes, of Polars and of DuckDB are refused in features and targets.
        """
        check_label(label)
        features = _one_word(label, "feature", feature_cols, feature_keys)
        targets = _one_word(label, "target", target_cols, target_keys)
        tags = _one_word(label, "tag", tag_cols, tag_keys)
        return cls(label, dataframes.table_from_frame(label, df, features, targets, tags))

    @classmethod
    def from_parquet(
        cls,
        label: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        feature_keys: NamesOrRest = None,
        target_keys: NamesOrRest = None,
        tag_keys: NamesOrRest = None,
        *,
        row_groups: int | Sequence[int] | None = None,
    ) -> Self:
        """Make a feature set of Parquet files; only the chosen columns are read, into memory of its own.

        Nothing is mapped: the files may change or go afterwards. Every row group is validated in full.

        Args:
            label: of the feature set.
            path: a file; a folder, of which all files ending in `.parquet`, `.parq` or `.pq` are read in the order of
                their paths, those in folders below it too, but for names that start with a dot or an underscore; or
                a list of files, read in its order.
            feature_keys, target_keys, tag_keys: names of columns, or in one of them `...` for all columns that the
                others do not name. None of them: the roles that `to_arrow` wrote into
                the schemas (of the first file, where they differ). Below a folder, a folder named `key=value` gives a
                column `key`: int64 where all values are integers, else text, null for `__HIVE_DEFAULT_PARTITION__`;
                where the files themselves have a column of that name, theirs is read.
            row_groups: number or numbers of the row groups to read, of a single file.

        Raises:
            OSError: a file cannot be opened.
            DataError: no file in a folder or list, one that is not a valid Parquet file, a row group that is not there,
                or no rows.
            ColumnError: as `from_arrow`, or a column that a file lacks or holds in another type than the first.
        """
        check_label(label)
        table = parquet.table_from_parquet(label, path, feature_keys, target_keys, tag_keys, row_groups)
        return cls(label, table)
