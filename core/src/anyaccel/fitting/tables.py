"""Tables: whatever a feature set can be made of, with features and targets by name, for `fit` and its predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyaccel.arguments import shown
from anyaccel.data import DataSchema, FeatureSet, FeatureSetView, Source, as_source
from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.readers import dataframes, parquet
from anyaccel.data.readers.csv_files import table_from_csv
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.roles import NamesOrRest, RoleNames, names_of, read_roles, stamp
from anyaccel.errors import ColumnError, DataError

LABEL = "data"


def is_table(data: Any) -> bool:
    """Whether data are a table in memory or in files, in contrast to rows of a feature set, sources and loaders."""
    if isinstance(data, (FeatureSet, FeatureSetView, Source)):
        return False
    is_frame = hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__") or hasattr(data, "iloc")
    is_file = isinstance(data, (str, os.PathLike))
    return is_frame or is_file or isinstance(data, Mapping) or has_table(data) or _is_pair(data)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "shape") for part in data)


def feature_set_of(data: Any, features: NamesOrRest, target: Any, tags: Any = ()) -> FeatureSet:
    """A feature set of a table; targets that are not numbers are tags of it, to be encoded.

    Args:
        data: a data frame, an Arrow table, a mapping of arrays, a pair (x, y) of arrays or of a data frame and a
            series or frame, a data set of Hugging Face, or the path of a CSV or Parquet file, or of a folder of Parquet
            files.
        features: names of columns; `...` for all that are neither target nor tag.
        target: name of a column, or several.
        tags: names of further columns.

    Raises:
        DataError, ColumnError: not such a table, or columns that are not there or do not fit.
    """
    if _is_pair(data):
        data, features, target = _joined(data[0], data[1], names_of(target))
    targets = names_of(target)
    table = _table(data, RoleNames(features, (), (*targets, *names_of(tags))))
    roles = read_roles(LABEL, table.schema)
    numeric = {name for name in targets if is_numeric(table.schema.field(name).type)}
    return FeatureSet(
        LABEL, stamp(table, {name: "target" if name in numeric else role for name, role in roles.items()})
    )


def _joined(x: Any, y: Any, targets: Sequence[str]) -> tuple[dict[str, Any], Any, Sequence[str]]:
    """A pair as columns, the names of its features, and of its targets: those given, or those of a frame or series."""
    features = {str(name): x[name] for name in x.columns} if hasattr(x, "columns") else {"x": x}
    if hasattr(y, "columns"):
        own = {str(name): y[name] for name in y.columns}
    else:
        own = {targets[0] if len(targets) == 1 else str(getattr(y, "name", None) or "y"): y}
    both = sorted(features.keys() & own.keys())
    if both:
        raise ColumnError(
            f"x and y of the data both have the column {both[0]!r}", hint="leave the target out of the features"
        )
    return {**features, **own}, list(features), list(own)


def _table(data: Any, names: RoleNames) -> Any:
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.is_dir() or path.suffix.lower() in (".parquet", ".parq", ".pq"):
            return parquet.table_from_parquet(LABEL, path, names)
        if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
            raise DataError(
                f"{str(data)!r} is not a table that can be read",
                available=".csv, .tsv, .parquet, or a folder of Parquet files",
                hint="read it with pandas, and give the frame",
            )
        return dataframes.table_from_arrow(
            LABEL, table_from_csv(LABEL, path, "\t" if path.suffix.lower() == ".tsv" else ","), names
        )
    if isinstance(data, Mapping):
        return dataframes.table_from_dict(LABEL, data, names)
    if has_table(data):
        return dataframes.table_from_arrow(LABEL, data, names)
    return dataframes.table_from_frame(LABEL, data, names)


def source_of(data: Any, features: Any, target: Any) -> Source | FeatureSet:
    """A source of a loader, a data set or a generator function; features and targets by name, or x and y by position.

    Raises:
        SourceError, DataError: not such an object.
    """
    if isinstance(data, tuple) and all(hasattr(part, "shape") for part in data):
        raise DataError(
            f"a tuple of {len(data)} arrays is not a table", hint="give (x, y), or a dict of arrays and target='COLUMN'"
        )
    given = {"feature": "x" if features is None else features, "target": "y" if target is None else target}
    roles = {role: names_of(names) for role, names in given.items()}
    columns = {name: {"role": role, "dtype": "float32", "shape": ()} for role, names in roles.items() for name in names}
    source = as_source(LABEL, data, DataSchema.of(LABEL, columns))
    if source is None:
        raise DataError(
            f"{shown(data)} is not data that a model can be fitted to",
            available="a data frame, a mapping of arrays, (x, y), a path, a FeatureSet, a loader, a data set",
            hint="make a FeatureSet of it: FeatureSet.from_dict(...)",
        )
    return source


def transformed_like(rows: FeatureSet, like: FeatureSet) -> FeatureSet:
    """Rows with the transforms of others, as they were fitted, and with their dtypes.

    Raises:
        TransformError, ColumnError: columns are missing, or do not fit.
    """
    rows = rows.transform_like(like) if like.transforms else rows
    known = [name for name in (*rows.features, *rows.targets) if name in like.columns]
    dtypes = {name: like.spec(name).dtype for name in known}
    return rows.cast({name: dtype for name, dtype in dtypes.items() if rows.spec(name).dtype != dtype})


def columns_before_transforms(data: FeatureSet) -> dict[str, dict[str, Any]]:
    """The columns that features and targets are made of, with the role that they need in new data and their dtype."""
    raw = data.undo_transforms() if data.transforms else data
    features, targets = _sources(data, data.features), _sources(data, data.targets)
    roles = {name: "feature" if raw.role(name) == "feature" else "tag" for name in features if name in raw.columns}
    roles |= {name: "target" for name in targets if name in raw.columns}
    return {name: {"role": role, "dtype": _dtype(raw, name)} for name, role in roles.items()}


def _sources(data: FeatureSet, names: Sequence[str]) -> list[str]:
    """The columns that some columns were made of by transforms, in their order."""
    reached = dict.fromkeys(names)
    for fitted in reversed(data.transforms):
        if set(fitted.results) & set(reached):
            kept = [name for name in reached if name not in fitted.results]
            reached = dict.fromkeys([*kept, *fitted.columns] if fitted.results != fitted.columns else reached)
    return [*reached]


def _dtype(data: FeatureSet, name: str) -> str | None:
    is_number = is_numeric(data.schema.field(name).type)
    return data.spec(name).dtype if is_number else None
