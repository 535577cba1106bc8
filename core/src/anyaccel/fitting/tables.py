"""Tables: build feature sets with named features and targets from all kinds of data, for `fit` and its predictions."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.data import DataSchema, FeatureSet, FeatureSetView, Rows, Source, as_source
from anyaccel.data.arrow_columns import contiguous, is_list, is_numeric, list_leaf, to_numpy
from anyaccel.data.readers import dataframes, parquet
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.data.readers.csv_files import has_row_as_names, table_from_csv
from anyaccel.data.readers.file_discovery import SUFFIXES, check_there
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.roles import Names, NamesOrRest, RoleNames, listed, names_of, no_column, read_roles, stamp
from anyaccel.data.transforms import FittedTransform
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ColumnError, DataError, PhaseError, TableWarning
from anyaccel.formulas import LOSSES
from anyaccel.specs import Loss, takes_classes
from anyaccel.user_level import user_level

LABEL = "data"
Features = Names | Mapping[str, Names]
"""Names of columns to join, or a mapping from arguments of the model's call to names."""
Columns = Mapping[str, Mapping[str, Any]]
"""`role` and `dtype` (None for text) of columns, by name."""
LossOf = Callable[[str], Loss | None]
"""Function that returns the named loss of a target; None for a framework's own loss, or no loss."""


def is_table(data: Any) -> bool:
    """Return whether data are a table in memory or in files, unlike rows of a feature set, sources and loaders."""
    if isinstance(data, (FeatureSet, FeatureSetView, Source)):
        return False
    is_frame = hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__") or hasattr(data, "iloc")
    is_file = isinstance(data, (str, os.PathLike))
    return is_frame or is_file or isinstance(data, Mapping) or has_table(data) or is_pair(data)


def is_pair(data: Any) -> bool:
    """Return whether data are a pair (x, y) of arrays, frames or mappings of arrays; two mappings with a name in common
    are two batches.
    """
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    x, y = data
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        return not set(x) & set(y)
    is_inputs = type(x) is tuple and len(x) > 0 and all(hasattr(part, "shape") for part in (*x, y))
    return is_inputs or all(isinstance(part, (list, Mapping)) or hasattr(part, "shape") for part in data)


def readable(data: Any) -> Any:
    """Return a list of rows, each a dict of single values, and a structured array as a mapping of columns; other data
    unchanged.

    Raises:
        DataError: The data are not a table, but can be converted to one.
    """
    if isinstance(data, Rows):  # which suggests a name for each attribute that it lacks
        return data
    kind = type(data).__name__
    if kind == "Bunch" and isinstance(data, Mapping) and {"data", "target"} <= data.keys():
        raise DataError(
            "a Bunch of scikit-learn is not a table", hint="pass its arrays as a pair: (bunch.data, bunch.target)"
        )
    if (
        isinstance(data, Mapping)
        and data
        and all(
            isinstance(it, (str, bytes)) or not (hasattr(it, "__len__") or hasattr(it, "__iter__"))
            for it in data.values()
        )
    ):
        raise DataError(
            "a dict of single values is one row, but a dict must contain columns", hint="pass a list of rows: [row]"
        )
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        if all(hasattr(value, "__len__") and not isinstance(value, str) for value in data[0].values()):
            return data  # batches: of rows, one has a number or a text for itself
        return {name: [row.get(name) for row in data] for name in dict.fromkeys(name for row in data for name in row)}
    if isinstance(data, list) and len(data) == 2 and all(getattr(part, "ndim", 0) for part in data):
        raise DataError("a list [x, y] is a list of batches", hint="pass a tuple: (x, y)")
    names = getattr(getattr(data, "dtype", None), "names", None)
    if names:
        return {name: data[name] for name in names}
    if hasattr(data, "iloc") and not hasattr(data, "columns"):
        problem = f"a {kind} is a single column or row, not a table"
        raise DataError(problem, hint="write table.iloc[[0]] for a row, series.to_frame() for a column")
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        raise DataError(f"a {kind} has no rows yet", hint="pass its result: frame.collect()")
    if hasattr(data, "to_table") and hasattr(data, "scanner"):
        raise DataError(f"a {kind} has no rows yet", hint="pass its table: dataset.to_table()")
    if (
        isinstance(data, Mapping)
        and data
        and all(has_table(it) or (hasattr(it, "iloc") and hasattr(it, "columns")) for it in data.values())
    ):
        first, second = (*data, *data)[:2]
        raise DataError(
            f"the data are {len(data)} {'table' if len(data) == 1 else 'tables'} by name",
            available=listed(data),
            hint=f"pass one: fit(model, data[{first!r}], validation=data[{second!r}], ...)",
        )
    if isinstance(data, bytes):
        data = os.fsdecode(data) if b"\n" not in data else data.decode("utf-8", "replace")
    if isinstance(data, str) and "\n" in data:
        problem = f"the data are a text of {len(data.splitlines()):,} lines, but a text is the path of a file"
        raise DataError(
            problem, hint="write the text to a file, or pass the frame of pandas.read_csv(io.StringIO(text))"
        )
    if hasattr(data, "readline") and not is_table(data):
        raise DataError(f"a {kind} is an open file", hint="pass its path, or the frame of pandas.read_csv(file)")
    if isinstance(data, (list, tuple)) and data and all(isinstance(part, (str, os.PathLike)) for part in data):
        problem = f"a list of {len(data)} {'path' if len(data) == 1 else 'paths'} is not a table"
        raise DataError(problem, hint="pass the frame of pandas.concat(map(pandas.read_csv, paths), ignore_index=True)")
    return data


def named_pair(data: Any, features: Names, target: Names) -> tuple[Any, Names, Names]:
    """Return a pair (x, y) as columns by name, with the names of its features and targets; other data unchanged.

    Columns of frames and mappings keep their names. An array gets the single name in `features` or `target`, by default
    `x` or `y`.

    Raises:
        ColumnError: Both parts have a column with the same name, or the first is a list of inputs without names.
    """
    if not is_pair(data):
        return data, features, target
    inputs = data[0] if isinstance(data[0], (list, tuple)) else ()
    are_columns = bool(inputs) and all(getattr(part, "ndim", 0) and len(part) == len(data[1]) for part in inputs)
    if isinstance(data[0], tuple) or (are_columns and len(inputs) != len(data[1])):
        raise ColumnError(
            f"the x of the pair (x, y) has {len(inputs)} arrays without names",
            hint="pass them by the names of the model's inputs: ({'COLUMN': array, 'OTHER': array}, y)",
        )
    x, y = _named_columns(data[0], features, "x"), _named_columns(data[1], target, "y")
    if set(x) & set(y):
        raise ColumnError(
            f"column {next(iter(set(x) & set(y)))!r} is in both parts of the pair (x, y)",
            available=listed(x),
            hint="rename one, or pass one table and target='COLUMN'",
        )
    return {**x, **y}, tuple(x), tuple(y)


def _named_columns(part: Any, chosen: Names, usual: str) -> dict[str, Any]:
    if isinstance(part, Mapping):
        return dict(part)
    names = getattr(part, "columns", None)
    if names is not None:
        return {name: part[name] for name in names_of(names)}
    step_name = getattr(part, "name", None)
    only = names_of(chosen) or ((step_name,) if isinstance(step_name, str) else (usual,))
    return {only[0] if len(only) == 1 else usual: part}


def feature_set_of(data: Any, features: NamesOrRest, target: Any, tags: Any = ()) -> FeatureSet:
    """Return a feature set of a table; targets that are not numbers become tags, to be encoded.

    Args:
        data: A data frame, an Arrow table, a mapping of arrays, a Hugging Face data set, or the path of a CSV or
            Parquet file, or of a folder of Parquet files.
        features: Names of columns; `...` for all columns except targets and tags.
        target: Name of a column, or several.
        tags: Names of additional columns.

    Raises:
        DataError, ColumnError: The data are not a table, or columns are missing or have wrong types or shapes.
    """
    targets = names_of(target)
    names = RoleNames(features, (), (*targets, *names_of(tags)))
    table = _table(data, names) if features is ... or names_of(features) else tag_table(data, names.tags)
    roles = read_roles(LABEL, table.schema)
    numeric = {name for name in targets if is_numeric(table.schema.field(name).type)}
    return FeatureSet(
        LABEL, stamp(table, {name: "target" if name in numeric else role for name, role in roles.items()})
    )


def tag_table(data: Any, names: Any) -> Any:
    """Return a table whose columns are all tags, of any type; `...` for all columns."""
    if names is not ... and (hasattr(data, "iloc") or isinstance(data, Mapping)):
        there = list(data) if isinstance(data, Mapping) else list(data.columns)
        unknown = next((name for name in names if name not in there), None)
        if unknown is not None:
            raise no_column(LABEL, unknown, there)
        _check_unique([name for name in there if name in names])
        data = {name: data[name] for name in names}
    table = _table(_of_one_type(data), RoleNames((), (), ...))
    if names is ...:
        return table
    unknown = next((name for name in names if name not in table.column_names), None)
    if unknown is not None:
        raise no_column(LABEL, unknown, table.column_names)
    return table.select(list(names))


def missing_column(table: Any, name: str, columns: Sequence[str]) -> ColumnError:
    """Return the error for a column that a table does not have, which may be its index."""
    if name in getattr(getattr(table, "index", None), "names", ()):
        problem = f"{name!r} is the index of the table, which fit does not read"
        return ColumnError(problem, hint="make it a column (pandas: table.reset_index())")
    return no_column(LABEL, name, columns)


def _check_unique(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        problem = f"the table has {Counter(names)[twice[0]]} columns called {twice[0]!r}"
        raise ColumnError(problem, hint="rename all but one of them")


def _of_one_type(data: Any) -> Any:
    """Return the data after checking that no column has objects of several types.

    Raises:
        ColumnError: A column has objects of several types.
    """
    if not (hasattr(data, "iloc") or isinstance(data, Mapping)):
        return data
    for name in data:
        values = data[name]
        is_matrix = getattr(values, "ndim", 1) > 1
        dtype = str(getattr(values, "dtype", "object" if isinstance(values, list) else ""))
        if dtype != "object" and not (is_matrix and "U" in dtype):
            continue
        kinds: Counter[str] = Counter()  # `""` for missing values and other objects
        for value in values.flat if is_matrix else values:
            if isinstance(value, (bool, np.bool_)):
                kinds["bool"] += 1
            elif isinstance(value, (Real, np.number)):
                kinds["number" if value == value else ""] += 1
            elif isinstance(value, datetime.datetime) and value == value:  # NaT is one, too
                kinds["time without a zone" if value.tzinfo is None else "time with a zone"] += 1
            else:
                kinds["text" if isinstance(value, str) else ""] += 1
        if is_matrix and (kinds["text"] or kinds[""]):
            what = "text" if kinds["text"] else "missing values"
            raise ColumnError(
                f"column {name!r} is an array of shape {list(values.shape)} with {what} in it",
                hint=f"pass {name}.ravel()"
                if values.size == len(values)
                else f"pass a frame: pandas.DataFrame({name}).add_prefix('COLUMN')",
            )
        kinds.pop("", None)
        if len(kinds) > 1 and not is_matrix:
            counts = listed(f"{kind} in {count} rows" for kind, count in kinds.most_common())
            raise ColumnError(
                f"column {name!r} has values of several types: {counts}",
                hint=f"convert it to one type (pandas: pandas.to_datetime(table[{name!r}], utc=True))"
                if all(kind.startswith("time") for kind in kinds)
                else f"convert it to one type (pandas: table[{name!r}].astype(str)), or leave it out, drop=[{name!r}]",
            )
    return data


TEXT_SUFFIXES = (".csv", ".tsv", ".txt")


def text_table(path: Path) -> Any:
    """Return the Arrow table of a file of text: columns between tabs in `.tsv`, otherwise between commas."""
    return table_from_csv(LABEL, path, "\t" if path.suffix.lower() == ".tsv" else ",")


def _is_parquet(path: Any) -> bool:
    return Path(path).expanduser().is_dir() or Path(path).suffix.lower() in SUFFIXES


def _table(data: Any, names: RoleNames) -> Any:
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.suffix.lower() in ("", *SUFFIXES, *TEXT_SUFFIXES):
            check_there(LABEL, os.path.expanduser(data))  # noqa: PTH111  (a Path would change a URL)
        if _is_parquet(path):
            return parquet.table_from_parquet(LABEL, path, names)
        if path.suffix.lower() not in TEXT_SUFFIXES:
            kinds = [suffix for suffix in map(str.lower, path.suffixes) if suffix in _READERS]  # it may be compressed
            call = f"read_{_READERS[kinds[-1]] if kinds else 'csv({})'}"
            raise DataError(
                f"{str(data)!r} is not a table that can be read",
                available=".csv, .tsv, .parquet, or a folder of Parquet files",
                hint=f"give the frame of pandas.{call.format(repr(str(path)))}",
            )
        return dataframes.table_from_arrow(LABEL, text_table(path), names)
    if isinstance(data, Mapping):
        return dataframes.table_from_dict(LABEL, data, names)
    if has_table(data):
        return dataframes.table_from_arrow(LABEL, data, names)
    return dataframes.table_from_frame(LABEL, data, names)


_READERS = {
    **dict.fromkeys((".xls", ".xlsx"), "excel({})"),
    **dict.fromkeys((".feather", ".arrow"), "feather({})"),
    ".json": "json({})",
    ".jsonl": "json({}, lines=True)",
    ".tsv": "csv({}, sep='\\t')",
    ".orc": "orc({})",
    ".dta": "stata({})",
    ".html": "html({})",
    ".xml": "xml({})",
    ".sas7bdat": "sas({})",
    ".sav": "spss({})",
}


def source_of(data: Any, features: Any, target: Any) -> Source | FeatureSet:
    """Return a source for a loader, a data set or a generator function; columns by name, or x and y by position.

    Raises:
        SourceError, DataError: The object cannot be read as a source.
    """
    if hasattr(data, "shape"):
        raise DataError(
            f"an array of shape {list(data.shape)} has no names of columns",
            hint="pass (x, y), or a frame: pandas.DataFrame(array, columns=[...])",
        )
    if isinstance(data, tuple) and all(hasattr(part, "shape") for part in data):
        raise DataError(
            f"a tuple of {len(data)} arrays is not a table", hint="pass (x, y), or a dict of arrays and target='COLUMN'"
        )
    names_by_role = {"feature": "x" if features is None else features, "target": "y" if target is None else target}
    roles = {role: names_of(names) for role, names in names_by_role.items()}
    columns = {name: {"role": role, "dtype": "float32", "shape": ()} for role, names in roles.items() for name in names}
    source = as_source(LABEL, data, DataSchema.of(LABEL, columns))
    if source is None:
        raise DataError(
            f"{shown(data)} is not data that a model can be fitted to",
            available="a data frame, a mapping of arrays, (x, y), a path, a FeatureSet, a loader, a data set",
            hint="convert it to a FeatureSet: FeatureSet.from_dict(...)",
        )
    return source


def new_rows(data: Any, columns: Columns, *, with_target: bool = True) -> FeatureSet:
    """Return rows of another table with the same columns, before all transforms.

    Args:
        data: A table, or an array for the only feature.
        columns: Result of `source_columns`.
        with_target: Whether targets are required.

    Raises:
        DataError, ColumnError: Columns are missing or have wrong types or shapes.
    """
    by_role = {
        role: [n for n, column in columns.items() if column["role"] == role] for role in ("feature", "tag", "target")
    }
    features, targets = by_role["feature"], by_role["target"] if with_target else []
    if hasattr(data, "shape") and not is_table(data):
        inputs = features or by_role["tag"]
        if len(inputs) != 1:
            raise DataError(
                f"an array of shape {list(data.shape)} has no names",
                available=listed(inputs),
                hint="pass its columns by name: {'COLUMN': array}",
            )
        data = {inputs[0]: data}
    data, _, _ = named_pair(data, features or by_role["tag"], by_role["target"])
    try:
        table = feature_set_of(data, features, targets, by_role["tag"])
    except ColumnError as error:
        names = column_names(data)
        needed = (*features, *by_role["tag"], *targets)
        missing = [name for name in needed if names is not None and name not in names]
        if not names or not missing:
            raise
        others = [name for name in names if name not in needed]
        other_case = {name.casefold(): name for name in others}
        close = {name: difflib.get_close_matches(name, others, n=1) for name in missing}
        close |= {name: [other_case[name.casefold()]] for name in missing if name.casefold() in other_case}
        hint = f"pass a table with {', '.join(map(repr, needed))}; other columns are left out"
        if all(close.values()):
            hint = f"rename columns: { ({matches[0]: name for name, matches in close.items()})!r}"
        what = "column is" if len(missing) == 1 else "columns are"
        problem = f"{len(missing)} {what} missing that the model was trained with: {listed(map(repr, missing))}"
        raise ColumnError(problem, cause=f"the table has {listed(map(repr, names))}", hint=hint) from error
    dtypes = {name: columns[name]["dtype"] for name in table.columns if columns[name].get("dtype")}
    changed = {name: dtype for name, dtype in dtypes.items() if table.spec(name).dtype != dtype}
    return table.cast(changed) if changed else table


def column_names(data: Any) -> list[str] | None:
    """Return the column names of a table; None if they are unknown until the table is read."""
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.suffix.lower() in TEXT_SUFFIXES:
            return list(text_table(path).column_names)
        return parquet.names_of_columns(LABEL, path)
    names = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    is_names = isinstance(names, Iterable) and all(isinstance(name, str) for name in names)
    return list(names) if is_names and names is not None else None


def transformed_like(rows: FeatureSet | FeatureSetView, like: FeatureSet) -> FeatureSet | FeatureSetView:
    """Return rows with the fitted transforms and dtypes of `like`; rows that have transforms are returned unchanged.

    Raises:
        TransformError, ColumnError: Columns are missing or have wrong types or shapes.
    """
    if rows.view().feature_set.transforms or not (like.transforms or _other_dtypes(rows, like)):
        return rows
    if isinstance(rows, FeatureSetView):
        rows = FeatureSet.from_arrow(rows.label, rows.to_arrow())
    rows = rows.transform_like(like) if like.transforms else rows
    others = _other_dtypes(rows, like)
    return rows.cast(others) if others else rows


def _other_dtypes(rows: FeatureSet | FeatureSetView, like: FeatureSet) -> dict[str, str]:
    """Return the dtypes of features and targets in `like` that differ from those in `rows`."""
    dtypes = {name: like.spec(name).dtype for name in (*rows.features, *rows.targets) if name in like.columns}
    return {name: dtype for name, dtype in dtypes.items() if rows.spec(name).dtype != dtype}


def source_columns(data: FeatureSet) -> Columns:
    """Return the columns that features and targets are built from, with their dtype and their role in new data."""
    raw = data.undo_transforms() if data.transforms else data
    roles: dict[str, str] = {}
    for role, names in (("feature", data.features), ("target", data.targets)):
        reached = dict.fromkeys(names)
        for fitted in reversed(data.transforms):
            if set(fitted.results) & set(reached) and fitted.results != fitted.columns:
                kept = [name for name in reached if name not in fitted.results]
                reached = dict.fromkeys([*kept, *fitted.columns])
        for name in reached:
            if name in raw.columns:
                roles[name] = "tag" if role == "feature" and raw.role(name) != "feature" else role
    of_tables: set[str] = set()
    for fitted in data.transforms:
        if treatment_in(fitted) is not None:
            of_tables.update(fitted.columns)
    columns: dict[str, dict[str, Any]] = {}
    for name, role in roles.items():
        is_number = name not in of_tables and is_numeric(raw.schema.field(name).type)
        columns[name] = {"role": role, "dtype": raw.spec(name).dtype if is_number else None}
    return columns


def treatment_in(fitted: FittedTransform) -> Any:
    """Return the treatment of a whole table if a fitted transform is one; None for a transform of number columns."""
    return fitted.transform if hasattr(fitted.transform, "transform_table") else None


def treatment_of(data: Any) -> Any:
    """Return the last treatment of a table among the transforms of data; None if their features were not built so."""
    for fitted in reversed(getattr(data, "transforms", ())):
        treatment = treatment_in(fitted)
        if treatment is not None:
            return treatment
    return None


def class_labels(data: FeatureSet) -> dict[str, Sequence[Any]]:
    """Return the classes of encoded targets by name, in the order of their numbers."""
    labels: dict[str, Sequence[Any]] = {}
    for fitted in data.transforms:
        for name in fitted.results:  # a later transform of the numbers has no classes, and they keep their meaning
            labels[name] = fitted.class_labels or labels.get(name, ())
    return labels


# -- Training data: from what was given to `fit` to a feature set with encoded targets, splits and scaled features -----


TRAIN, VALIDATION = "train", "validation"
_ROLES = "set them when you create the feature set: FeatureSet.from_dict(..., features=[...], target=[...])"


@dataclass(frozen=True)
class TrainingData:
    """The data of a fit.

    Attributes:
        data: Data that the graph is wired to.
        train: Data of the TrainPhase.
        validation: Data of the validation, or None.
        casts: Dtypes of targets that were cast from another dtype.
        booleans: Those among them that were booleans, as which predictions are returned.
        share: Fraction of the rows that the validation was drawn from at random; None for any other validation.
    """

    data: FeatureSet | Source
    train: Any
    validation: Any
    casts: Mapping[str, str] = field(default_factory=dict)
    booleans: tuple[str, ...] = ()
    share: float | None = None


@dataclass(frozen=True)
class RowSplit:
    """A validation split that was drawn already: numbers of the training rows and of the validation rows."""

    train: np.ndarray
    validation: np.ndarray


@dataclass(frozen=True)
class Widths:
    """The widths to build a model for.

    Attributes:
        n_features: Number of features per row.
        n_outputs: Number of classes, or of numbers that the loss compares.
        n_numbers: Number of features before the codes.
        cardinalities: Number of codes of each code column; the codes are the last features.
    """

    n_features: int
    n_outputs: int
    n_numbers: int
    cardinalities: tuple[int, ...] = ()


@dataclass(frozen=True)
class Preprocessing:
    """How to build features from the columns of a table.

    Attributes:
        preprocess: `"auto"`, a scikit-learn transformer, or None to leave number columns unchanged.
        drop: Names of columns to leave out.
        categories: Names of columns to treat as categories, regardless of their values.
        embed: Categories to pass as codes to a model that embeds them: names, a bool for all or none, or `"auto"`.
        is_sized: Whether the model is built for the number of features.
        embeds: Whether the model embeds codes.
    """

    preprocess: Any = "auto"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    embed: Any = "auto"
    is_sized: bool = False
    embeds: bool = False


@dataclass(frozen=True)
class RawTable:
    """A table to build features from.

    Attributes:
        data: Its columns; the feature columns are tags or features.
        features: Names of the columns that features are built from.
        rows: Numbers of the rows to train and validate on; None for all.
        given: Data that the table was read from.
        how: How to build features.
    """

    data: FeatureSet
    features: tuple[str, ...]
    rows: Any
    given: Any
    how: Preprocessing


def raw_table(user_data: Any, features: Features, target: Names, how: Preprocessing) -> Any:
    """Return the table to build features from; data that need no features are returned unchanged.

    Raises:
        PhaseError: Arguments define how to build features, but the data do not support it.
        DataError, ColumnError: `feature_set_of` failed, or targets are missing.
    """
    changed = ["drop"] if how.drop else []
    changed += ["categories"] if how.categories else []
    changed += ["embed"] if how.embed != "auto" else []
    if isinstance(features, Mapping):
        if changed or how.preprocess not in (None, "auto") or how.is_sized:
            problem = "fit has features by the arguments of the model, but a treated table becomes a single input"
            raise PhaseError(problem, hint="name the features in a list, or transform the columns first")
        return user_data
    is_set = isinstance(user_data, (FeatureSet, FeatureSetView))
    if is_set or not is_table(user_data):
        if is_set and (how.is_sized or how.preprocess not in (None, "auto")):
            data, rows = _selected(user_data, features, target)
            kept = tuple(name for name in data.features if name not in how.drop)
            return RawTable(data, kept, rows, user_data, how)
        if changed or how.preprocess not in (None, "auto"):
            what = changed[0] if changed else "preprocess"
            problem = f"fit has {what}={shown(getattr(how, what))}, but the data are not a table"
            raise PhaseError(problem, hint="pass a data frame, a mapping of arrays, or the path of a file")
        return user_data
    if isinstance(user_data, (str, os.PathLike)):
        if _is_parquet(user_data):
            check_there(LABEL, os.path.expanduser(user_data))  # noqa: PTH111  (a Path would change a URL)
        else:
            user_data = tag_table(user_data, ...)
    table, pair_features, pair_target = named_pair(user_data, features, target)
    if pair_target is None:
        raise no_target(column_names(table))
    targets = names_of(pair_target)
    there = column_names(table)
    _check_unique(there or ())
    if not isinstance(how.embed, (bool, list, tuple)) and how.embed != "auto":
        problem = f"fit has embed={shown(how.embed)}, which does not name columns"
        column = how.embed if isinstance(how.embed, str) else "COLUMN"
        raise PhaseError(problem, available="'auto', True, False, [names]", hint=f"write embed=[{column!r}]")
    embedded = how.embed if isinstance(how.embed, (list, tuple)) else ()
    for name in (*how.drop, *how.categories, *embedded, *targets, *names_of(pair_features)):
        if there is not None and name not in there:
            raise missing_column(table, name, there)
    for named in (targets, names_of(pair_features)):
        twice = [name for name in named if list(named).count(name) > 1]
        if twice:
            raise ColumnError(f"column {twice[0]!r} is named twice in target= or features=", hint="name it once")
    for name in (*how.drop, *how.categories):
        if name in targets:
            raise ColumnError(
                f"column {name!r} is the target, but is also named in drop= or categories=", hint="name it once"
            )
    chosen: list[str] | None
    if pair_features is not None:
        chosen = [name for name in names_of(pair_features) if name not in how.drop]
    else:
        chosen = None if there is None else [name for name in there if name not in (*how.drop, *targets)]
    both = [name for name in targets if chosen is not None and name in chosen]
    if both:
        raise ColumnError(
            f"column {both[0]!r} is both a feature and the target: the model would see the answer",
            hint=f"leave it out of features=, or predict another column than target={both[0]!r}",
        )
    if how.preprocess is None:
        if changed:
            problem = (
                f"fit has {changed[0]}={shown(getattr(how, changed[0]))} but preprocess=None, which does not use it"
            )
            raise PhaseError(problem, hint="leave preprocess= out")
        if hasattr(table, "iloc") or isinstance(table, Mapping):
            names = list(chosen or ())
            others: list[str] = []
            for column_name in names:
                values = table[column_name]
                kind = str(getattr(values, "dtype", "object"))
                is_text = kind == "object" and any(isinstance(value, str) for value in values)
                if is_text or kind in ("str", "string", "category") or kind.startswith(("datetime", "<U")):
                    others.append(column_name)
            if others:
                numbers = [column_name for column_name in names if column_name not in others]
                word = "column" if len(others) == 1 else "columns"
                raise ColumnError(
                    f"{word} {listed(map(repr, others))} are not numbers, but preprocess=None does not change columns",
                    hint=f"leave preprocess= out to encode them, or name the other columns: features={numbers}",
                )
        return user_data
    is_asked = how.is_sized or changed or not isinstance(how.preprocess, str)
    if not is_asked:  # text, dates, categories or gaps, which no model takes unchanged
        columns: Iterable[Any] = ()
        if isinstance(table, Mapping) or hasattr(table, "iloc"):
            columns = (table[name] for name in chosen or ())
        else:
            with contextlib.suppress(DataError, ColumnError):  # reading it as numbers tells
                as_tags = tag_table(table, ... if chosen is None else chosen)
                names_of_table = [name for name in as_tags.column_names if chosen is None or name in chosen]
                columns = map(as_tags.column, names_of_table)
        if not any(map(_is_no_plain_number, columns)):
            return user_data
    read = tag_table(table, ... if chosen is None else (*chosen, *targets))
    chosen = [name for name in read.column_names if name not in (*how.drop, *targets)] if chosen is None else chosen
    if has_row_as_names(read):
        warnings.warn(
            f"the names of the columns, {listed(read.column_names)}, are like the rows: if the file has no header, "
            "read it with pandas.read_csv(PATH, header=None).add_prefix('column')",
            TableWarning,
            stacklevel=user_level(),
        )
    for name in targets:
        check_target(name, read.column(name))
    numeric = [name for name in targets if is_numeric(read.schema.field(name).type)]
    roles = {name: "target" if name in numeric else "tag" for name in (*chosen, *targets)}
    return RawTable(FeatureSet(LABEL, stamp(read, roles)), tuple(chosen), None, user_data, how)


def no_target(columns: Sequence[str] | None) -> PhaseError:
    """Return the error for a table without a target column."""
    available = f"columns: {listed(columns)}" if columns else ""
    hint = "write fit(model, table, target='COLUMN', ...)"
    return PhaseError("fit needs the name of the target", available=available, hint=hint)


def check_target(name: str, column: Any) -> None:
    """Check that a target has a value in each row, and that its numbers are finite.

    Raises:
        ColumnError: A row has no value, an empty text or infinity.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind) if kind != column.type and is_numeric(kind) else column
    is_float = pa.types.is_floating(kind)
    is_missing = column.is_null(nan_is_null=True) if is_float else column.is_null()
    checks = [("has no value", is_missing, f"table.dropna(subset=[{name!r}])")]
    if is_float:
        is_infinite = compute.fill_null(compute.is_inf(column), False)
        checks.append(("is infinite", is_infinite, f"table[table[{name!r}].abs() < float('inf')]"))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(kind) if kind != column.type else column
        is_empty = compute.fill_null(compute.equal(compute.utf8_trim_whitespace(texts), ""), False)
        checks.append(("is an empty text", is_empty, f"table[table[{name!r}].str.strip() != '']"))
    for problem, rows, code in checks:
        count = compute.sum(rows).as_py() or 0
        if count:
            raise ColumnError(
                f"the target {name!r} {problem} in {count:,} of {len(column):,} rows, the first in row "
                f"{compute.index(rows, True).as_py()}",
                hint=f"leave these rows out (pandas: {code})",
            )


CLASSES_OF_INTEGERS = 20
"""Maximum number of different integers that are treated as classes if no loss is named."""


def loss_of_target(data: Any, target: Names) -> Loss:
    """Return the default loss of a target: cross_entropy for text, booleans and few integers, mse for other numbers.

    Raises:
        PhaseError: The data are not a table, have no target, or have targets of several kinds.
    """
    hint = "write loss='cross_entropy' for classes, loss='mse' for numbers"
    if isinstance(data, RawTable):
        _, _, target = named_pair(data.given, None, target)
        data = data.data
    if isinstance(data, (FeatureSet, FeatureSetView)):
        names = names_of(target) or data.targets
        columns = {name: data.column(name) for name in names}
    elif is_table(data):
        data, _, target = named_pair(data, None, target)
        columns = {name: tag_table(data, [name]).column(name) for name in names_of(target)}
    else:
        source_of(data, None, target)  # says what is wrong with other data
        raise PhaseError("fit needs a loss: it cannot infer the kind of the targets from these data", hint=hint)
    if not columns:
        raise no_target(column_names(data))
    names_of_losses = {name: _loss_of_column(name, column) for name, column in columns.items()}
    if len(set(names_of_losses.values())) > 1 or (len(columns) > 1 and "mse" not in names_of_losses.values()):
        problem = f"fit needs a loss: its targets {listed(columns)} need {listed(names_of_losses.values())}"
        raise PhaseError(
            problem, hint=f"write loss={names_of_losses!r}, for a model that returns a dict of these names"
        )
    return Loss(next(iter(names_of_losses.values())))


def _loss_of_column(name: str, column: Any) -> str:
    kind = list_leaf(column.type)
    if is_numeric(kind) and not pa.types.is_boolean(kind):
        n_different = compute.count_distinct(column).as_py() if pa.types.is_integer(kind) else None
        if n_different is None or n_different > CLASSES_OF_INTEGERS:
            likeness, change = _likeness_to_classes(name, column)
            if likeness:
                what = f"the target {name!r} {likeness}, and is treated as numbers, loss='mse'"
                message = f"{what}; if these are classes, {change}"
                warnings.warn(message, TableWarning, stacklevel=user_level())
            return "mse"
        if n_different > max(2, len(column) // 2):
            warnings.warn(
                f"the target {name!r} has {n_different} different integers in {len(column)} rows, and they are treated "
                "as classes, loss='cross_entropy'; if these are numbers, write loss='mse'",
                TableWarning,
                stacklevel=user_level(),
            )
        return "cross_entropy"
    is_text = kind == column.type and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if is_text:
        load(SETTINGS, "fit.class_labels").check_labels(name, column)
    if is_text or pa.types.is_boolean(kind) or pa.types.is_dictionary(kind):
        return "cross_entropy"
    raise PhaseError(
        f"fit needs a loss: the target {name!r} is {column.type}, which is neither a number nor a class",
        hint=_hint_to_convert(name, kind),
    )


def _hint_to_convert(name: str, kind: Any) -> str:
    """Return a hint with the code that makes numbers of a column of an Arrow type, in pandas and for decimals."""
    if pa.types.is_decimal(kind):  # to_numeric returns decimals of Arrow unchanged
        return (
            f"convert it to floats first (pandas: table[{name!r}].astype(float); polars: pl.col({name!r}).cast(float))"
        )
    return f"convert it to numbers first (pandas: pandas.to_numeric(table[{name!r}]))"


def _likeness_to_classes(name: str, column: Any) -> tuple[str, str]:
    """Return why a target of numbers may be one of classes, or `""`, and what to change if it is one."""
    change = "write loss='cross_entropy'"
    if pa.types.is_floating(column.type):  # classes in a column that had gaps are floats
        different = compute.unique(column).to_pylist()
        is_few = 1 < len(different) <= min(CLASSES_OF_INTEGERS, len(column) // 10)
        if is_few and all(value is not None and math.isfinite(value) and value == int(value) for value in different):
            return f"is float and has {len(different)} different values, all whole numbers", change
    elif not is_list(column.type) and not pa.types.is_integer(column.type):
        values = to_numpy(name, contiguous(column))
        is_matrix = values.ndim == 2 and values.shape[1] > 1
        if is_matrix and np.isin(values, (0, 1)).all():
            if (values.sum(axis=1) == 1).all():
                return "has a single 1 in each row, as one-hot classes have", change
            return "has only 0 and 1, as several labels for each row have", "write loss='binary_cross_entropy'"
        if values.size == len(values) and values.dtype.kind in "biu":
            n_values = len(np.unique(values))
            if n_values <= CLASSES_OF_INTEGERS:
                return f"has shape [n, 1] and {n_values} different values", f"pass {name}.ravel()"
    return "", change


def _is_no_plain_number(values: Any) -> bool:
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        return bool(dtype.kind == "f" and values.ndim == 1 and np.isnan(np.asarray(values)).any())
    if getattr(values, "ndim", 1) > 1 or hasattr(values, "columns") or hasattr(values, "toarray"):
        return False
    try:
        column = tag_column("", values)
    except ColumnError:
        return True
    kind = list_leaf(column.type)
    if not is_numeric(column.type):
        return bool(kind == column.type) and not pa.types.is_struct(kind) and not pa.types.is_binary(kind)
    has_nan = pa.types.is_floating(kind) and bool(compute.any(compute.is_nan(column)).as_py())
    return has_nan or bool(column.null_count)


def training_data(
    user_data: Any, *, features: Names, target: Names, loss_of: LossOf, validation: Any, scaler: Any, seed: int
) -> TrainingData:
    """Return data for the arguments of `fit`; `loss_of` returns the named loss that compares a target, or None.

    Raises:
        PhaseError: The validation does not match the data, or the target is missing.
        DataError, ColumnError, SplitError, TransformError: See `fit`.
    """
    if scaler is not None:
        scaler = load(SETTINGS, "fit.scaler")(scaler)
    raw = user_data if isinstance(user_data, RawTable) else None
    asked = user_data if raw is None else raw.given
    is_set = isinstance(asked, (FeatureSet, FeatureSetView))
    if raw is None and not is_set and not is_table(user_data):
        source = source_of(user_data, features, target)
        if scaler is not None:
            raise PhaseError("a source of batches is not scaled", hint="scale its rows first, or pass a table")
        if isinstance(validation, (Real, str)):
            raise PhaseError(
                f"validation={validation!r} of a source of batches, which cannot be split",
                hint="pass the source of the validation: validation=other_loader",
            )
        return TrainingData(source, source, validation)
    rows = None
    if raw is not None:
        data, rows = raw.data, raw.rows
        _, _, target = named_pair(raw.given, features, target)
    elif is_set:
        data, rows = _selected(user_data, features, target)
    else:
        user_data, features, target = named_pair(user_data, features, target)
        if target is None:
            raise no_target(column_names(user_data))
        data = feature_set_of(user_data, ... if features is None else features, target)
    if is_set and isinstance(validation, FeatureSetView) and validation.feature_set is asked.view().feature_set:
        validation = _registered(data, validation.rows, VALIDATION)
    texts = [name for name in names_of(target) if name in data.columns and not is_numeric(data.column(name).type)]
    if not data.targets and not texts:
        others = [f"target={name!r}" for name in data.tags if not is_numeric(data.column(name).type)]
        raise PhaseError(
            f"{data.label!r} has no target",
            available=", ".join(others),
            hint="write target='COLUMN'" if others else _ROLES,
        )

    # Targets as numbers: text as indices of classes, and integers as floats if the loss compares floats.
    for name in texts:
        loss = loss_of(name)
        rule = None if loss is None else LOSSES.get(loss.name)
        if loss is not None and rule is not None and not rule.takes_classes and not rule.takes_logits:
            column = data.to_arrow().column(name)
            row, value = 0, column[0].as_py()
            for number, text in enumerate(column.to_pylist()):
                try:
                    is_number = math.isfinite(float(text))
                except (TypeError, ValueError):
                    is_number = False
                if not is_number:
                    row, value = number, text
                    break
            raise PhaseError(
                f"the target {name!r} is {column.type}, but the loss {loss.name!r} compares numbers",
                cause=f"row {row} has {shown(value)}",
                hint=f"{_hint_to_convert(name, column.type)}; for classes the loss is 'cross_entropy'",
            )
        data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all", role="target")
        classes = len(np.unique(data.array(name)))
        if loss is not None and loss.name == "binary_cross_entropy" and classes > 2:
            raise PhaseError(
                f"the target {name!r} has {classes} classes, but {loss.name} compares two",
                hint="write loss='cross_entropy', with one output of the model for each class",
            )
    casts: dict[str, str] = {}
    booleans: list[str] = []
    for name in data.targets:
        loss, spec = loss_of(name), data.spec(name)
        is_float = "float" in spec.dtype
        if loss is None or loss.name not in LOSSES:
            continue
        if takes_classes(loss):
            is_encoded = spec.dtype == "bool"
            if is_float and not spec.shape and "ignore_index" not in loss.kwargs:
                values = data.array(name)
                is_fraction = values != np.floor(values)
                if is_fraction.any():
                    row = int(is_fraction.argmax())
                    raise PhaseError(
                        f"the target {name!r} has {values[row]:g} in row {row}, but the loss {loss.name!r} compares "
                        "classes",
                        hint="write loss='mse' for a number",
                    )
                is_encoded = True  # whole numbers, as classes are in a column that had gaps
            if is_encoded:
                data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all")
        elif not is_float:
            casts[name] = "float64"
            booleans += [name] if spec.dtype == "bool" else []
            data = data.cast({name: "float64"})

    # Features, fitted on the training rows.
    built = None if raw is None else load(SETTINGS, "fit.preprocess")(raw, loss_of, seed)
    if built is not None:
        data = built.with_class_names(data)
    train, split = chosen_splits(data, rows, validation, seed)
    for name in data.targets:
        loss = loss_of(name)
        if split is None or loss is None or not takes_classes(loss):
            continue
        if data.spec(name).shape or "float" in data.spec(name).dtype:
            continue
        trained, checked = (data.array(name)[data.split(part).rows] for part in (train, split))
        missing = np.setdiff1d(checked, trained).tolist()
        if missing:
            labels = class_labels(data).get(name)
            names = [missing_class if labels is None else labels[missing_class] for missing_class in missing]
            warnings.warn(
                f"{'class' if len(names) == 1 else 'classes'} {listed(map(repr, names))} of {name!r} "
                f"{'is' if len(names) == 1 else 'are'} in the validation but in no training row, so the model does "
                "not learn to predict it; collect more such rows, or leave them out",
                TableWarning,
                stacklevel=user_level(),
            )
    if built is not None:
        data = built.with_features(data, train)
    if scaler is not None:
        data = data.fit_transform(scaler, data.features, fit_on=train)
    other: Any = split
    if split is None and validation is not None:
        if isinstance(validation, (FeatureSet, FeatureSetView)):
            checked_rows = validation
        elif is_table(validation):
            checked_rows = new_rows(validation, source_columns(data))
        else:
            problem = f"validation={shown(validation)} does not fit a table"
            raise PhaseError(problem, hint="pass a fraction of the rows, the name of a split, or another table")
        other = {data.label: transformed_like(checked_rows, data)}
    share = float(validation) if isinstance(validation, Real) else None
    return TrainingData(data, train, other, casts, tuple(booleans), share)


def widths_of(data: FeatureSet, loss_of: LossOf) -> Widths:
    """Return the widths to build a model for; `loss_of` returns the named loss that compares a target, or None."""
    n_features = sum(math.prod(data.spec(name).shape) for name in data.features)
    n_outputs = 0
    for name in data.targets:
        loss, spec = loss_of(name), data.spec(name)
        is_classes = loss is not None and takes_classes(loss) and "float" not in spec.dtype
        n_outputs += int(data.array(name).max()) + 1 if is_classes else math.prod(spec.shape)
    treatment = treatment_of(data)
    if treatment is None:
        return Widths(n_features, n_outputs, n_features)
    return Widths(n_features, n_outputs, n_features - len(treatment.cardinalities), treatment.cardinalities)


def _selected(data: FeatureSet | FeatureSetView, features: Names, target: Names) -> tuple[FeatureSet, Any]:
    """Return a copy of a feature set, for adding splits, and the rows of a view of it."""
    base = data if isinstance(data, FeatureSet) else data.feature_set
    numeric: list[str] | None = None if target is None else []
    for name in names_of(target):  # others are tags until they are encoded
        if numeric is not None and (name not in base.columns or is_numeric(base.column(name).type)):
            numeric.append(name)
    for role, names, there in (("feature", names_of(features), base.features), ("target", numeric or (), base.targets)):
        for name in names:
            if name in base.columns and name not in there:
                problem = f"fit: column {name!r} of {base.label!r} is not a {role} of it"
                raise ColumnError(problem, available=listed(there), hint=_ROLES)
    return base.select(features, numeric), None if isinstance(data, FeatureSet) else data.rows


def chosen_splits(data: FeatureSet, rows: Any, validation: Any, seed: int) -> tuple[str, str | None]:
    """Return the names of the training and validation splits; None for a validation on other data, or none."""
    if isinstance(validation, RowSplit):
        if {TRAIN, VALIDATION} & set(data.splits):
            raise PhaseError(
                f"{data.label!r} has splits, but a validation fraction would create others with the same name",
                available=listed(data.splits),
                hint="name the split: validation='SPLIT'",
            )
        data.add_splits({TRAIN: validation.train, VALIDATION: validation.validation})
        return TRAIN, VALIDATION
    if isinstance(validation, str):
        data.split(validation)
        if rows is None and TRAIN not in data:
            raise PhaseError(
                f"validation={validation!r} is a split of {data.label!r}, but there is no split {TRAIN!r} to train on",
                available=listed(data.splits),
                hint="pass the training rows: fit(model, data['SPLIT'], ...)",
            )
        return (TRAIN if rows is None else _registered(data, rows)), validation
    if isinstance(validation, Real) and not isinstance(validation, bool):
        wanted = "a share of the rows"
        share = float(arguments.number(PhaseError, "", "validation", validation, lambda it: 0 < it < 1, wanted, 0.2))
        if {TRAIN, VALIDATION} & set(data.splits):
            raise PhaseError(
                f"{data.label!r} has splits, but validation={share} would create others with the same name",
                available=listed(data.splits),
                hint="name the split: validation='SPLIT'",
            )
        whole = data.view() if rows is None else FeatureSetView(data, "given", rows)
        whole.split_random({TRAIN: 1.0 - share, VALIDATION: share}, seed)
        return TRAIN, VALIDATION
    if rows is None and data.splits:
        raise PhaseError(
            f"{data.label!r} has splits, but without a validation, fit would train on all its rows",
            available=listed(data.splits),
            hint=f"choose the rows: fit(model, data[{next(iter(data.splits))!r}], ...), or data.view() for all",
        )
    return ("all" if rows is None else _registered(data, rows)), None


def _registered(data: FeatureSet, rows: Any, usual: str = "given") -> str:
    """Return the name of a split with these rows."""
    name = next((name for name, view in data.splits.items() if view.rows.tolist() == rows.tolist()), usual)
    data.add_split(name, rows)
    return name
