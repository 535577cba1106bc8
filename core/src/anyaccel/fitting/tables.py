"""Tables: whatever a feature set can be made of, with features and targets by name, for `fit` and its predictions."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.data import DataSchema, FeatureSet, FeatureSetView, Source, as_source
from anyaccel.data.arrow_columns import is_numeric
from anyaccel.data.readers import dataframes, parquet
from anyaccel.data.readers.csv_files import table_from_csv
from anyaccel.data.readers.file_discovery import SUFFIXES, check_there
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.roles import Names, NamesOrRest, RoleNames, listed, names_of, read_roles, stamp
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ColumnError, DataError, PhaseError
from anyaccel.formulas import LOSSES
from anyaccel.specs import Loss, takes_classes

LABEL = "data"
Columns = Mapping[str, Mapping[str, Any]]
"""`role` and `dtype` (None for text) of columns, by name."""


def is_table(data: Any) -> bool:
    """Whether data are a table in memory or in files, in contrast to rows of a feature set, sources and loaders."""
    if isinstance(data, (FeatureSet, FeatureSetView, Source)):
        return False
    is_frame = hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__") or hasattr(data, "iloc")
    is_file = isinstance(data, (str, os.PathLike))
    return is_frame or is_file or isinstance(data, Mapping) or has_table(data) or _is_pair(data)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(p, list) or hasattr(p, "shape") for p in data)


def named_pair(data: Any, features: Names, target: Names) -> tuple[Any, Names, Names]:
    """A pair (x, y) as columns by name, with the names of its features and targets; anything else as it is.

    Columns of frames keep their names; an array has the single name that is given for it, else `x` or `y`.

    Raises:
        ColumnError: a name in both.
    """
    if not _is_pair(data):
        return data, features, target
    x, y = _named_columns(data[0], features, "x"), _named_columns(data[1], target, "y")
    if set(x) & set(y):
        raise ColumnError(
            f"column {next(iter(set(x) & set(y)))!r} is in both parts of the pair (x, y)",
            available=listed(x),
            hint="rename one, or give one table and target='COLUMN'",
        )
    return {**x, **y}, tuple(x), tuple(y)


def _named_columns(part: Any, given: Names, usual: str) -> dict[str, Any]:
    names = getattr(part, "columns", None)
    if names is not None:
        return {name: part[name] for name in names_of(names)}
    own = getattr(part, "name", None)
    only = names_of(given) or ((own,) if isinstance(own, str) else (usual,))
    return {only[0] if len(only) == 1 else usual: part}


def feature_set_of(data: Any, features: NamesOrRest, target: Any, tags: Any = ()) -> FeatureSet:
    """A feature set of a table; targets that are not numbers are tags of it, to be encoded.

    Args:
        data: a data frame, an Arrow table, a mapping of arrays, a data set of Hugging Face, or the path of a CSV or
            Parquet file, or of a folder of Parquet files.
        features: names of columns; `...` for all that are neither target nor tag.
        target: name of a column, or several.
        tags: names of further columns.

    Raises:
        DataError, ColumnError: not such a table, or columns that are not there or do not fit.
    """
    targets = names_of(target)
    table = _table(data, RoleNames(features, (), (*targets, *names_of(tags))))
    roles = read_roles(LABEL, table.schema)
    numeric = {name for name in targets if is_numeric(table.schema.field(name).type)}
    return FeatureSet(
        LABEL, stamp(table, {name: "target" if name in numeric else role for name, role in roles.items()})
    )


def _table(data: Any, names: RoleNames) -> Any:
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.suffix.lower() in ("", *SUFFIXES, ".csv", ".tsv", ".txt"):
            check_there(LABEL, os.path.expanduser(data))  # noqa: PTH111  (a Path would change a URL)
        if path.is_dir() or path.suffix.lower() in SUFFIXES:
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


def new_rows(data: Any, columns: Columns, *, with_target: bool = True) -> FeatureSet:
    """Rows of another table with the same columns, before all transforms.

    Args:
        data: a table, or an array for the only feature.
        columns: as `columns_before_transforms`.
        with_target: whether it must have the targets.

    Raises:
        DataError, ColumnError: columns are missing, or do not fit.
    """
    by_role = {role: [n for n, own in columns.items() if own["role"] == role] for role in ("feature", "tag", "target")}
    features, targets = by_role["feature"], by_role["target"] if with_target else []
    if hasattr(data, "shape") and not is_table(data):
        if len(features) != 1:
            raise DataError(
                f"an array of shape {list(data.shape)} has no names",
                available=listed(features),
                hint="give its columns by name: {'COLUMN': array}",
            )
        data = {features[0]: data}
    data, _, _ = named_pair(data, features, by_role["target"])
    try:
        table = feature_set_of(data, features, targets, by_role["tag"])
    except ColumnError as error:
        names = column_names(data)
        needed = (*features, *by_role["tag"], *targets)
        missing = [name for name in needed if names is not None and name not in names]
        if not names or not missing:
            raise
        raise _missing_columns(missing, needed, names) from error
    dtypes = {name: columns[name]["dtype"] for name in table.columns if columns[name].get("dtype")}
    return table.cast({name: dtype for name, dtype in dtypes.items() if table.spec(name).dtype != dtype})


def column_names(data: Any) -> list[str] | None:
    """The names of a table's columns; None where they are not known without reading it."""
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            return list(table_from_csv(LABEL, path, "\t" if path.suffix.lower() == ".tsv" else ",").column_names)
        return parquet.names_of_columns(LABEL, path)
    names = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    is_names = isinstance(names, Iterable) and all(isinstance(name, str) for name in names)
    return list(names) if is_names and names is not None else None


def _missing_columns(missing: Sequence[str], needed: Sequence[str], names: Sequence[str]) -> ColumnError:
    """The error for a table that lacks columns of the training."""
    others = [name for name in names if name not in needed]
    other_case = {name.casefold(): name for name in others}
    close = {name: difflib.get_close_matches(name, others, n=1) for name in missing}
    close |= {name: [other_case[name.casefold()]] for name in missing if name.casefold() in other_case}
    hint = f"give a table with {', '.join(map(repr, needed))}; other columns are left out"
    if all(close.values()):
        hint = f"rename columns: { ({found[0]: name for name, found in close.items()})!r}"
    what = "column is" if len(missing) == 1 else "columns are"
    problem = f"{len(missing)} {what} missing that the model was trained with: {listed(map(repr, missing))}"
    return ColumnError(problem, cause=f"the table has {listed(map(repr, names))}", hint=hint)


def transformed_like(rows: FeatureSet | FeatureSetView, like: FeatureSet) -> FeatureSet | FeatureSetView:
    """Rows with the transforms of others, as they were fitted, and with their dtypes; rows with transforms as they are.

    Raises:
        TransformError, ColumnError: columns are missing, or do not fit.
    """
    if rows.view().feature_set.transforms or not (like.transforms or _other_dtypes(rows, like)):
        return rows
    if isinstance(rows, FeatureSetView):
        rows = FeatureSet.from_arrow(rows.label, rows.to_arrow())
    rows = rows.transform_like(like) if like.transforms else rows
    return rows.cast(_other_dtypes(rows, like))


def _other_dtypes(rows: FeatureSet | FeatureSetView, like: FeatureSet) -> dict[str, str]:
    """The dtypes that features and targets have in `like` and not in `rows`."""
    dtypes = {name: like.spec(name).dtype for name in (*rows.features, *rows.targets) if name in like.columns}
    return {name: dtype for name, dtype in dtypes.items() if rows.spec(name).dtype != dtype}


def columns_before_transforms(data: FeatureSet) -> Columns:
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


# -- Training data: from what was given to `fit` to a feature set with encoded targets, splits and scaled features -----


TRAIN, VALIDATION = "train", "validation"
_ROLES = "say so where the feature set is made: FeatureSet.from_dict(..., feature_keys=[...], target_keys=[...])"


@dataclass(frozen=True)
class TrainingData:
    """The data of a fit.

    Attributes:
        data: what the graph is wired to.
        train: the data of its TrainPhase.
        validation: the data of its validation; None for none.
    """

    data: FeatureSet | Source
    train: Any
    validation: Any


def training_data(
    given: Any, *, features: Names, target: Names, loss: Loss, validation: Any, scaler: Any, seed: int
) -> TrainingData:
    """Data from the arguments of `fit`.

    Raises:
        PhaseError: a validation that does not fit the data, or no target.
        DataError, ColumnError, SplitError, TransformError: see `fit`.
    """
    if scaler is not None:
        scaler = load(SETTINGS, "fit.scaler")(scaler)
    if not (is_table(given) or isinstance(given, (FeatureSet, FeatureSetView))):
        source = source_of(given, features, target)
        if scaler is not None:
            raise PhaseError("a source of batches is not scaled", hint="scale its rows before, or give a table")
        if isinstance(validation, (Real, str)):
            raise PhaseError(
                f"validation={validation!r} of a source of batches, which cannot be split",
                hint="give the source of the validation: validation=other_loader",
            )
        return TrainingData(source, source, validation)
    if is_table(given):
        given, features, target = named_pair(given, features, target)
        if target is None:
            raise PhaseError("fit needs the name of the target", hint="write fit(model, table, target='COLUMN', ...)")
        data, rows = feature_set_of(given, ... if features is None else features, target), None
    else:
        data, rows = _selected(given, features, target)
        validation = _own_split(validation, given, data)
    if not data.targets and not _texts(data, target):
        texts = [f"target={name!r}" for name in data.tags if _texts(data, name)]
        raise PhaseError(
            f"{data.label!r} has no target",
            available=", ".join(texts),
            hint="write target='COLUMN'" if texts else _ROLES,
        )
    data = _with_numeric_targets(data, target, loss)
    train, split = _splits(data, rows, validation, seed)
    if scaler is not None:
        data = data.fit_transform(scaler, data.features, fit_on=train)
    return TrainingData(data, train, split if split or validation is None else {data.label: _other(validation, data)})


def _selected(given: FeatureSet | FeatureSetView, features: Names, target: Names) -> tuple[FeatureSet, Any]:
    """A copy of a feature set, which gets splits of its own, and the rows of a view of it."""
    base = given if isinstance(given, FeatureSet) else given.feature_set
    texts = _texts(base, target)
    numeric = None if target is None else [name for name in names_of(target) if name not in texts]
    for role, names, there in (("feature", names_of(features), base.features), ("target", numeric or (), base.targets)):
        wrong = next((name for name in names if name in base.columns and name not in there), None)
        if wrong is not None:
            problem = f"fit: column {wrong!r} of {base.label!r} is not a {role} of it"
            raise ColumnError(problem, available=listed(there), hint=_ROLES)
    return base.select(features, numeric), None if isinstance(given, FeatureSet) else given.rows


def _texts(data: FeatureSet, target: Names) -> list[str]:
    """The targets that are not numbers; they are tags as long as they are not encoded."""
    names = names_of(target)
    return [name for name in names if name in data.columns and not is_numeric(data.schema.field(name).type)]


def _with_numeric_targets(data: FeatureSet, target: Names, loss: Loss) -> FeatureSet:
    """Text as indices of classes, and integers as floats where the loss compares floats."""
    rule = None if loss.own is not None else LOSSES.get(loss.name)
    for name in _texts(data, target):
        if rule is not None and not rule.takes_classes and not rule.takes_logits:
            raise _no_number(data, name, loss.name)
        data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all", role="target")
        classes = len(np.unique(data.array(name)))
        if loss.own is None and loss.name == "binary_cross_entropy" and classes > 2:
            raise PhaseError(
                f"the target {name!r} has {classes} classes, and {loss.name} compares two",
                hint="write loss='cross_entropy', with one output of the model for each class",
            )
    elementwise = loss.own is None and loss.name in LOSSES and not takes_classes(loss)
    for name in data.targets:
        is_bool = data.spec(name).dtype == "bool"
        if takes_classes(loss) and is_bool:
            data = data.fit_transform(load(SETTINGS, "fit.class_labels")(), name, fit_on="all")
        elif elementwise and "float" not in data.spec(name).dtype:
            data = data.cast({name: "float64"})
    return data


def _no_number(data: FeatureSet, name: str, loss: str) -> PhaseError:
    """The error for a target that a loss of numbers cannot compare; indices of its texts would mean nothing."""
    column = data.to_arrow().column(name)
    values = enumerate(column.to_pylist())
    row, value = next((pair for pair in values if not _is_number(pair[1])), (0, column[0].as_py()))
    return PhaseError(
        f"the target {name!r} is {column.type}, and the loss {loss!r} compares numbers",
        cause=f"row {row} has {shown(value)}",
        hint="make the column numbers before (pandas: to_numeric(table[COLUMN])); for classes the loss is "
        "'cross_entropy'",
    )


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _splits(data: FeatureSet, rows: Any, validation: Any, seed: int) -> tuple[str, str | None]:
    """Names of the splits to train on and to validate on; None for a validation on other data, or none."""
    if isinstance(validation, str):
        data.split(validation)
        if rows is None and TRAIN not in data:
            raise PhaseError(
                f"validation={validation!r} is a split of {data.label!r}, which has no split {TRAIN!r} to train on",
                available=listed(data.splits),
                hint="give the rows to train on: fit(model, data['SPLIT'], ...)",
            )
        return (TRAIN if rows is None else _registered(data, rows)), validation
    if isinstance(validation, Real) and not isinstance(validation, bool):
        wanted = "a share of the rows"
        share = float(arguments.number(PhaseError, "", "validation", validation, lambda it: 0 < it < 1, wanted, 0.2))
        if {TRAIN, VALIDATION} & set(data.splits):
            raise PhaseError(
                f"{data.label!r} has splits, and validation={share} would make others of the same name",
                available=listed(data.splits),
                hint="name the split: validation='SPLIT'",
            )
        whole = data.view() if rows is None else FeatureSetView(data, "given", rows)
        whole.split_random({TRAIN: 1.0 - share, VALIDATION: share}, seed)
        return TRAIN, VALIDATION
    if rows is None and data.splits:
        raise PhaseError(
            f"{data.label!r} has splits, and without a validation fit would train on all its rows",
            available=listed(data.splits),
            hint=f"say which: fit(model, data[{next(iter(data.splits))!r}], ...), or data.view() for all",
        )
    return ("all" if rows is None else _registered(data, rows)), None


def _registered(data: FeatureSet, rows: Any, usual: str = "given") -> str:
    """The name of a split with these rows."""
    name = next((name for name, view in data.splits.items() if view.rows.tolist() == rows.tolist()), usual)
    data.add_split(name, rows)
    return name


def _own_split(given: Any, data: FeatureSet | FeatureSetView, copy: FeatureSet) -> Any:
    """The name of the split with the rows of a view of the given data; any other validation as it is."""
    if isinstance(given, FeatureSetView) and given.feature_set is data.view().feature_set:
        return _registered(copy, given.rows, VALIDATION)
    return given


def _other(given: Any, data: FeatureSet) -> FeatureSet | FeatureSetView:
    """Rows of another table to validate on, transformed as the data are."""
    if isinstance(given, (FeatureSet, FeatureSetView)):
        return transformed_like(given, data)
    if not is_table(given):
        problem = f"validation={shown(given)} does not fit a table"
        raise PhaseError(problem, hint="give a share of the rows, the name of a split, or another table")
    return transformed_like(new_rows(given, columns_before_transforms(data)), data)
