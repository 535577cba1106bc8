"""Data of a model that computes its own loss: columns for its arguments, padded, with a mask of labels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from anyaccel.arguments import shown
from anyaccel.data import FeatureSet, FeatureSetView, IterableSource, MapSource, Pad, Reference, Source
from anyaccel.data.arrow_columns import fixed_lists, is_list, is_numeric, list_leaf, lists_of, pads_of, to_numpy
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.data.readers.dataframes import table_from_arrow
from anyaccel.data.readers.file_discovery import check_there
from anyaccel.data.readers.hf_datasets import arrow_table, computes_rows, has_table
from anyaccel.data.roles import Names, RoleNames, listed, names_of
from anyaccel.data.streaming.random_states import RandomStates
from anyaccel.data.streaming.to_numpy import is_tensor, number_array
from anyaccel.errors import ColumnError, DataError, PhaseError, SourceError
from anyaccel.fitting import tables
from anyaccel.fitting.model_loss import ModelLoss, are_dicts, dicts_for_rows
from anyaccel.fitting.tables import (
    LABEL,
    TEXT_SUFFIXES,
    VALIDATION,
    Features,
    chosen_splits,
    is_table,
    readable,
    text_table,
)
from anyaccel.graph import AppliedLoss

COUNTED = "counted"
"""Name of the column that is 1 for labels that the loss is the mean over, and 0 for others."""

NAMED = "a model that computes its own loss takes its inputs by name"


@dataclass(frozen=True)
class InputColumns:
    """The column of each argument of a model.

    Attributes:
        inputs: Column by argument, without labels.
        labels: Column by argument.
    """

    inputs: Mapping[str, str]
    labels: Mapping[str, str]

    def columns(self, *, with_labels: bool) -> dict[str, str]:
        """Return the column by argument."""
        return {**self.inputs, **(self.labels if with_labels else {})}

    def columns_in(self, names: Sequence[str], rules: ModelLoss, *, with_labels: bool) -> dict[str, str]:
        """Return the column by argument in other data, which may have another label name and need no mask."""
        columns = self.columns(with_labels=with_labels)
        for argument, column in self.labels.items():
            usual = (column, argument, *rules.other_label_names(argument))
            if with_labels and column not in self.inputs.values():
                columns[argument] = next((name for name in usual if name in names), column)
        if columns.get(rules.mask) not in names:
            columns.pop(rules.mask, None)
        return columns


@dataclass(frozen=True)
class LabelledData:
    """Data for a graph and its phases.

    Attributes:
        data: Data that the graph is wired to; columns are named like the model's arguments.
        train: Data of a training phase.
        validation: Data of the validation, or None.
        inputs: Reference of each argument.
        loss: The model's own loss, weighted by the mask of labels that count.
        columns: Column of each argument.
    """

    data: FeatureSet | Source
    train: Any
    validation: Any
    inputs: Mapping[str, Reference]
    loss: AppliedLoss
    columns: InputColumns


def labelled_data(
    rules: ModelLoss, data: Any, node: str, *, features: Features, target: Names, validation: Any, seed: int
) -> LabelledData:
    """Return data to train and validate a model.

    Raises:
        PhaseError: The validation does not match the data.
        DataError, ColumnError: Columns are missing or have wrong types or shapes.
    """
    is_set = isinstance(data, (FeatureSet, FeatureSetView))
    if isinstance(validation, str) and not is_set and not Path(validation).exists():
        problem = f"validation={shown(validation)} names a split, but the data have no splits"
        raise PhaseError(problem, hint="write validation=0.2")
    wired = wire(rules, column_names(data), features, target)
    if is_streamed(data):
        if isinstance(validation, (Real, str)):
            raise PhaseError(
                f"validation={validation!r} of a source of batches, which cannot be split",
                hint="pass the source of the validation: validation=other_loader",
            )
        source, has_counts = labelled_source(rules, wired, data)
        other: Any = None
        if validation is not None and is_streamed(validation):
            other, _ = labelled_source(rules, wired, validation)
        elif validation is not None:
            (rows,), _ = labelled_sets(rules, wired, [validation], counts=has_counts)
            other = {LABEL: rows}
        return LabelledData(source, source, other, *_wired(rules, source, wired, node, has_counts), wired)
    base = data.view().feature_set if is_set else data
    by_name = isinstance(validation, str) and is_set
    own_rows = None
    if is_set and isinstance(validation, FeatureSetView) and validation.feature_set is base:
        own_rows = validation.rows
    has_table_to_check = not (validation is None or by_name or isinstance(validation, Real) or own_rows is not None)
    if has_table_to_check and is_streamed(validation):
        problem = f"validation={shown(validation)} does not fit a table"
        raise PhaseError(problem, hint="pass a fraction of the rows, or another table: validation=0.2")
    parts = [base, validation] if has_table_to_check else [base]
    (made, *others), has_counts = labelled_sets(rules, wired, parts)
    for name, view in base.splits.items() if is_set else ():
        made.add_split(name, view.rows)
    chosen = data.rows if isinstance(data, FeatureSetView) else None
    checked: Any = {LABEL: others[0]} if others else None
    if own_rows is not None:
        made.add_split(VALIDATION, own_rows)
        checked = VALIDATION
    train, split = chosen_splits(made, chosen, None if checked else validation, seed)
    return LabelledData(made, train, checked or split, *_wired(rules, made, wired, node, has_counts), wired)


def rows_for(
    rules: ModelLoss, wired: InputColumns, data: Any, node: str, *, with_labels: bool
) -> tuple[FeatureSet | Source, Mapping[str, Reference], AppliedLoss]:
    """Return new rows with the reference of each argument, and the loss over them.

    Raises:
        DataError, ColumnError: Columns are missing or have wrong types or shapes.
    """
    data = readable(data)
    if is_streamed(data):
        made = {argument: argument for argument, name in wired.labels.items() if name in wired.inputs.values()}
        wired = InputColumns(wired.inputs, {**wired.labels, **made})  # labels that fit encoded from a table
        data, has_counts = labelled_source(rules, wired, data, with_labels=with_labels)
    else:
        (data,), has_counts = labelled_sets(rules, wired, [data], with_labels=with_labels)
    return data, *_wired(rules, data, wired, node, has_counts, with_labels=with_labels)


def _wired(
    rules: ModelLoss, data: Any, wired: InputColumns, node: str, has_counts: bool, *, with_labels: bool = True
) -> tuple[dict[str, Reference], AppliedLoss]:
    names = data.example.columns if isinstance(data, Source) else data.columns
    taken = dict.fromkeys([*wired.columns(with_labels=with_labels), rules.mask])
    inputs = {name: data.reference(name) for name in taken if name in names}
    mask = f"{LABEL}.{COUNTED}" if has_counts else None
    return inputs, AppliedLoss.from_output(node, rules.output, mask=mask)


# -- columns of arguments ----------------------------------------------------------------------------------------------


def is_streamed(data: Any) -> bool:
    """Return whether data come in batches, or row by row from code, unlike a table in memory."""
    return computes_rows(data) or not (isinstance(data, (FeatureSet, FeatureSetView)) or is_table(data))


def column_names(data: Any) -> list[str]:
    """Return the column names of a table, or of the first batch of a source."""
    if is_streamed(data):
        return list(_first_batch(data))
    if isinstance(data, (FeatureSet, FeatureSetView)):
        return list(data.view().feature_set.columns)
    names = tables.column_names(data)
    return list(_arrow(data, None)) if names is None else names


def _first_batch(data: Any) -> Mapping[str, Any]:
    """Return the first batch of a source, or the first row of a data set, and restore the random generators."""
    if isinstance(data, Source):
        example = data.example
        return {name: example.array(name) for name in example.columns}
    by_number = _gives_rows(data)
    if hasattr(data, "__next__"):
        raise SourceError(
            f"a {type(data).__name__} can be read only once, but fit reads its first batch for the names of columns",
            hint="pass a loader, a list of batches, or a generator function instead",
        )
    states = RandomStates(data)
    before = states.states(frameworks=True)
    try:
        batches = data() if callable(data) and not hasattr(data, "__iter__") else data
        first = data[0] if by_number else next(iter(batches), None)
    except TypeError as error:
        raise DataError(
            f"{shown(data)} is not data that a model can be fitted to",
            available="a data frame, a mapping of lists, a data set, a FeatureSet, a loader with dicts as batches",
            hint="pass a dict: {'COLUMN': rows}",
        ) from error
    finally:
        states.load(before)
    if first is None:
        raise SourceError("the data have no batches", hint="pass data with at least one row")
    if isinstance(data, list) and isinstance(first, (list, Real)):
        problem = (
            "a list of numbers has no names of columns, but a model that computes its own loss takes its inputs by name"
        )
        raise ColumnError(problem, hint="pass a dict: {'COLUMN': rows}")
    if not isinstance(first, Mapping):
        if isinstance(first, (list, tuple)) and any(map(are_dicts, first)):
            raise dicts_for_rows(f"the first {'row' if by_number else 'batch'}")
        raise ColumnError(
            f"the first {'row' if by_number else 'batch'} is a {type(first).__name__}, and {NAMED}",
            hint="return a dict from the collate function: {'COLUMN': tensor}",
        )
    return first


def wire(rules: ModelLoss, names: Sequence[str], features: Features, target: Names) -> InputColumns:
    """Match columns with arguments by name.

    Raises:
        ColumnError: No column exists for labels, for a required input, or for any argument.
    """
    targets = names_of(target)
    by_argument = features if isinstance(features, Mapping) else {name: name for name in names_of(features)}
    several = next((argument for argument, columns in by_argument.items() if len(names_of(columns)) != 1), None)
    if several is not None:
        raise ColumnError(
            f"features={shown(features)} name several columns for {several!r}, but {rules.name} takes each separately",
            hint=f"name one: features={{{several!r}: 'COLUMN'}}",
        )
    chosen = {argument: names_of(columns)[0] for argument, columns in by_argument.items()}
    for name in (*chosen.values(), *targets):
        if name not in names:
            raise ColumnError(f"no column is called {name!r}", available=listed(names), hint="correct the name")
    for name in chosen:
        if name not in rules.arguments:
            raise ColumnError(
                f"the feature {name!r} is not an argument of {rules.name}",
                available=listed(name for name in rules.arguments if name not in rules.labels),
                hint=f"name the argument: features={{'ARGUMENT': {chosen[name]!r}}}",
            )
    if targets and not set(targets) & set(rules.labels):
        if len(targets) > 1:
            raise ColumnError(
                f"target={list(targets)} are several columns, but none is named like the labels of {rules.name}",
                available=listed(rules.labels),
                hint="rename the columns to these names",
            )
        labels = {rules.labels[0]: targets[0]}
    else:
        named = {argument: (argument, *rules.other_label_names(argument)) for argument in rules.labels}
        columns = {argument: next((name for name in others if name in names), "") for argument, others in named.items()}
        labels = {argument: column for argument, column in columns.items() if column}
        labels = {argument: column for argument, column in labels.items() if not targets or column in targets}
    inputs = {name: name for name in names if name in rules.arguments and name not in rules.labels}
    inputs = inputs if features is None else {name: column for name, column in chosen.items() if name not in labels}
    if not inputs:
        raise rules.no_inputs(names)
    if not labels:
        raise rules.no_labels(names)
    missing = [name for name in rules.required if name not in (*inputs, *labels)]
    if missing:
        raise ColumnError(
            f"{rules.name} needs the input {missing[0]!r}, but no column has this name",
            available=listed(names),
            hint=f"rename the column to {missing[0]!r}",
        )
    return InputColumns(inputs, labels)


# -- tables ------------------------------------------------------------------------------------------------------------


def labelled_sets(
    rules: ModelLoss, wired: InputColumns, data: Sequence[Any], *, with_labels: bool = True, counts: bool = False
) -> tuple[list[FeatureSet], bool]:
    """Return a feature set of each table, with equal padding, and whether they have a mask of the labels that count.

    Args:
        rules: Fitting rules of the model.
        wired: Column of each argument.
        data: Tables or feature sets.
        with_labels: Whether labels are required.
        counts: Whether to add this mask even if each row counts the same.
    """
    pads: dict[str, Pad] = {}
    parts = [_columns(rules, wired, table, pads, with_labels=with_labels) for table in data]
    if with_labels:
        all_counts = [_counts(rules, wired, columns) for columns in parts]
        counts = counts or len({total for counts in all_counts if counts for total in counts[1].tolist()}) > 1
        if counts and all(counts is not None for counts in all_counts):
            for columns, part_counts in zip(parts, all_counts, strict=True):
                columns[COUNTED] = part_counts[0]  # type: ignore[index]
        else:
            counts = False
    for name in parts[0]:
        lengths = [_lengths(columns[name]) for columns in parts]
        ragged = [row_lengths for row_lengths in lengths if row_lengths is not None]
        if len({length for row_lengths in ragged for length in row_lengths.tolist()}) < 2 and len(ragged) == len(
            lengths
        ):
            pads.pop(name, None)
        elif ragged:
            if name not in pads and name != COUNTED and name not in rules.pads:
                column = {**wired.inputs, **wired.labels}.get(name, name)
                raise ColumnError(
                    f"the rows of {column!r} differ in length, and no padding value is set",
                    hint=f"pass a FeatureSet: FeatureSet.from_dict('data', table, [...], [...], pad={{{column!r}: 0}})",
                )
            pads[name] = pads.get(name) or Pad(0 if name == COUNTED else rules.pads[name])
    labels = tuple(name for name in wired.labels if with_labels)
    sets = []
    for columns in parts:
        names = RoleNames(tuple(name for name in columns if name not in labels), labels, ())
        made = FeatureSet(LABEL, table_from_arrow(LABEL, pa.table(columns), names, pads))
        values: dict[str, Any] = {}
        for name in made.columns:
            if name != COUNTED:
                ragged_column = made.ragged_column(name)
                values[name] = made.array(name) if ragged_column is None else ragged_column
        rules.check(values)
        sets.append(made)
    return sets, counts


def _columns(
    rules: ModelLoss, wired: InputColumns, data: Any, pads: dict[str, Pad], *, with_labels: bool
) -> dict[str, Any]:
    """Return Arrow columns by argument: numbers, fixed-size lists or lists; add a feature set's pads to `pads`."""
    wanted = wired.columns_in(column_names(data), rules, with_labels=with_labels)
    if isinstance(data, (FeatureSet, FeatureSetView)):
        schema = data.to_arrow().schema
        table = _arrow(data.to_arrow(), wanted.values())
        known = pads_of(schema)
        pads.update({argument: known[name] for argument, name in wanted.items() if name in known})
    else:
        for argument, name in wanted.items() if isinstance(data, Mapping) or hasattr(data, "iloc") else ():
            if name in data and are_dicts(data[name]):
                raise rules.no_numbers(argument, name, data[name])
        table = _arrow(data, wanted.values())
    if not len(table[next(iter(wanted.values()))]):
        raise DataError("the data have no rows", hint="pass a table with at least one row")
    columns: dict[str, Any] = {}
    for argument, name in wanted.items():
        column = table[name]
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        lengths = _lengths(column)
        if column.null_count:
            problem = f"column {name!r} has no value in {column.null_count} of {len(column)} rows"
            raise ColumnError(problem, hint="fill these places or leave the rows out")
        if lengths is not None and not lengths.all():
            row, n_empty = int(np.argmin(lengths)), int((lengths == 0).sum())
            raise DataError(f"row {row} of {name!r} is empty, one of {n_empty} such rows", hint="leave these rows out")
        if not is_numeric(list_leaf(column.type)):
            raise rules.no_numbers(argument, name, column)
        if rules.integers is not None:
            values, lengths = _flat(column)
            if values.dtype.kind in "iu" and values.dtype != rules.integers:
                column = _as_lists(values.astype(rules.integers), lengths)
        if argument in rules.pads and not is_list(column.type):
            values = to_numpy(name, column)  # rows of one length here may have another in other data
            is_rows = values.ndim == 2
            column = _as_lists(values, np.full(len(values), values.shape[1])) if is_rows else column
        columns[argument] = column
    lengths = None if rules.masked not in columns else _lengths(columns[rules.masked])
    takes_mask = rules.mask in rules.arguments and rules.mask not in columns
    if lengths is not None and len(set(lengths.tolist())) > 1 and takes_mask:
        columns[rules.mask] = _as_lists(np.ones(int(lengths.sum()), np.int64), lengths)
    for argument, name in wired.labels.items():
        if argument in columns and name in wired.inputs.values():
            values, lengths = _flat(columns[argument])
            mask = _flat(columns[rules.mask])[0] if rules.mask in columns else None
            columns[argument] = _as_lists(rules.labels_from_input(values, mask), lengths)
    return columns


def _arrow(data: Any, names: Iterable[str] | None) -> Mapping[str, Any]:
    """Return some or all columns of a table as Arrow columns.

    Raises:
        ColumnError: A column is missing.
        DataError: The table cannot be read.
    """
    if isinstance(data, (str, os.PathLike)):
        path = Path(data).expanduser()
        check_there(LABEL, str(path))
        data = text_table(path) if path.suffix.lower() in TEXT_SUFFIXES else pa.parquet.read_table(path)
    elif has_table(data):
        data = arrow_table(LABEL, data)
    is_columns = isinstance(data, Mapping) or hasattr(data, "iloc")
    if not is_columns and not isinstance(data, pa.Table):
        try:
            data = pa.table(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(
                f"the {type(data).__name__} cannot be read as a table: {error}",
                available="a data frame, a mapping of lists, a data set of Hugging Face, a path, an Arrow table",
                hint="pass a dict: {'COLUMN': rows}",
            ) from error
    there = list(data if is_columns else data.column_names)
    wanted = there if names is None else list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ColumnError(
            f"no column is called {missing[0]!r}",
            available=listed(there),
            hint="pass a table with the columns that the model was trained with",
        )
    columns: dict[str, Any] = {}
    for name in wanted:
        if not is_columns:
            columns[name] = data.column(name)
            continue
        values = data[name]
        is_column = isinstance(values, np.ndarray) or hasattr(values, "iloc") or hasattr(values, "__arrow_c_stream__")
        if isinstance(values, (list, tuple)) and values and is_tensor(values[0]):
            values = [number_array(name, row) for row in values]
        elif is_tensor(values) and not is_column:
            values = number_array(name, values)
        columns[name] = tag_column(name, values)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        cause = listed(f"{name}: {length}" for name, length in lengths.items())
        raise ColumnError("the columns differ in length", cause=cause, hint="use one entry per row in every column")
    return columns


def _counts(rules: ModelLoss, wired: InputColumns, columns: Mapping[str, Any]) -> tuple[Any, np.ndarray] | None:
    """Return the column that marks the labels that count, and their number per row; None if rows count the same."""
    if len(wired.labels) != 1:
        return None
    ((argument, name),) = wired.labels.items()
    values, lengths = _flat(columns[argument])
    counted = rules.counted(values, lengths)
    if counted is None:
        return None
    if lengths is None:
        totals = counted.reshape(len(counted), -1).sum(axis=1)
    else:
        totals = np.add.reduceat(counted, np.concatenate([[0], np.cumsum(lengths)[:-1]]), dtype=np.int64)
    if not totals.all():
        raise rules.nothing_counts(name, np.flatnonzero(totals == 0), len(totals))
    return _as_lists(counted.astype(np.int64), lengths), totals


def _lengths(column: Any) -> np.ndarray | None:
    """Return the lengths of the rows of a column of lists; None for numbers and fixed-size lists."""
    if not is_list(column.type):
        return None
    lengths: np.ndarray = np.diff(column.offsets.to_numpy())
    return lengths


def _flat(column: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the concatenated values of a column of lists, with the lengths; otherwise [n, *shape], with None."""
    lengths = _lengths(column)
    if lengths is not None:
        values = column.flatten()
        return values.to_numpy(zero_copy_only=False), lengths
    return to_numpy("", column), None


def _as_lists(values: np.ndarray, lengths: np.ndarray | None) -> Any:
    return fixed_lists(values) if lengths is None else lists_of(values.reshape(-1), lengths)


# -- sources of batches and of rows ------------------------------------------------------------------------------------


class LabelledBatches:
    """Batches of a source with columns named like a model's arguments, and a mask of the labels that count.

    Args:
        batches: Dicts of columns; an iterable that can be read again, or a function that returns one.
        rules: Fitting rules of the model.
        columns: Column by argument.
        labels: Argument of labels that may not all count; `""` if all labels count.
        makes_mask: Whether to add the model's mask; rows arrive unpadded, and are padded later.
    """

    def __init__(
        self, batches: Any, rules: ModelLoss, columns: Mapping[str, str], labels: str, *, makes_mask: bool
    ) -> None:
        self.batches, self.rules, self.columns, self.labels = batches, rules, columns, labels
        self.makes_mask = makes_mask

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self.batches() if callable(self.batches) and not hasattr(self.batches, "__iter__") else self.batches
        for number, batch in enumerate(batches):
            yield self.labelled(batch, f"batch {number}")

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of an epoch to the source, if it has a method for it."""
        tell = getattr(self.batches, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def labelled(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return a batch, or a row, by argument.

        Raises:
            ColumnError, DataError: A column is missing, or nothing counts.
        """
        missing = [name for name in self.columns.values() if name not in columns]
        if missing:
            raise ColumnError(
                f"{where} has no {missing[0]!r}", available=listed(columns), hint="use the same columns in each"
            )
        taken, wanted = {}, self.rules.integers
        for argument, name in self.columns.items():
            taken[argument] = columns[name]  # lists of integers are int64 already
            dtype = str(getattr(columns[name], "dtype", "")).rpartition(".")[2]
            if wanted is not None and dtype != wanted and dtype.startswith(("int", "uint")):
                taken[argument] = number_array(name, columns[name]).astype(wanted)
        if self.makes_mask:
            taken[self.rules.mask] = [np.ones(len(row), np.int64) for row in taken[self.rules.masked]]
        if self.labels:
            labels = taken[self.labels]
            if isinstance(labels, (list, tuple)) and len({np.shape(row) for row in labels}) > 1:
                counted: Any = [self._of_rows(np.asarray(row)[None])[0] for row in labels]
            else:
                counted = self._of_rows(number_array(self.labels, labels))
            if not any(np.any(row) for row in counted):
                raise self.rules.nothing_counts(self.columns[self.labels], None, where)
            taken[COUNTED] = counted
        return taken

    def _of_rows(self, labels: np.ndarray) -> np.ndarray:
        counted = self.rules.counted(labels, None)
        return np.ones(labels.shape, np.int64) if counted is None else counted.astype(np.int64)


class LabelledRows:
    """Rows of a data set with columns named like a model's arguments; see `LabelledBatches` for the arguments."""

    def __init__(
        self, rows: Any, rules: ModelLoss, columns: Mapping[str, str], labels: str, *, makes_mask: bool
    ) -> None:
        self.rows, self.batches = rows, LabelledBatches((), rules, columns, labels, makes_mask=makes_mask)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = self.batches.labelled({name: [value] for name, value in self.rows[number].items()}, f"row {number}")
        return {argument: value[0] for argument, value in row.items()}


def labelled_source(
    rules: ModelLoss, wired: InputColumns, data: Any, *, with_labels: bool = True
) -> tuple[Source, bool]:
    """Return a source of loaders and data sets, and whether it has a mask of the labels that count.

    Raises:
        DataError, ColumnError, SourceError: The data cannot be read.
    """
    if isinstance(data, Source):
        raise SourceError(
            f"the data are a {type(data).__name__}, but columns must be added for the weights of the loss",
            hint="pass the loader, data set or list of batches instead of the source",
        )
    first = _first_batch(data)
    columns = wired.columns_in(list(first), rules, with_labels=with_labels)
    missing = [name for name in columns.values() if name not in first]
    if missing:
        raise ColumnError(f"no column is called {missing[0]!r}", available=listed(first), hint="correct the name")
    for argument, name in wired.labels.items():
        if with_labels and name in wired.inputs.values():
            raise ColumnError(
                f"target={name!r} is an input, but labels are not created from the batches of a loader",
                available=listed(first),
                hint=f"add them in its collate function: batch[{argument!r}] = ...",
            )
    by_row = _gives_rows(data)
    arrays: dict[str, np.ndarray] = {}
    for argument, name in columns.items():
        value = [first[name]] if by_row else first[name]
        if isinstance(value, (list, tuple)) and len({np.shape(row) for row in value}) > 1:
            value = value[:1]  # of rows that differ in length, the first tells the dtype
        array: np.ndarray | None = None
        with contextlib.suppress(DataError):
            array = number_array(name, value)
        if array is None or array.dtype.kind not in "biuf":
            raise rules.no_numbers(argument, name, first[name])
        arrays[argument] = array
    labels = next(iter(wired.labels)) if with_labels and len(wired.labels) == 1 else ""
    labels = labels if labels and rules.counted(arrays[labels], None) is not None else ""
    rows_of = columns.get(rules.masked)
    as_rows = rows_of is not None and (by_row or isinstance(first[rows_of], (list, tuple)))
    makes_mask = as_rows and rules.mask in rules.arguments and rules.mask not in columns
    wide = [argument for argument in columns if arrays[argument].ndim > 1]
    pads = {argument: rules.pads[argument] for argument in wide if argument in rules.pads}
    pads |= {rules.mask: 0.0} if makes_mask else {}
    pads |= {COUNTED: 0.0} if labels in wide else {}
    added = [*([rules.mask] if makes_mask else []), *([COUNTED] if labels else [])]
    roles: Any = {
        "features": [*(name for name in columns if name not in wired.labels), *added],
        "target": [*wired.labels] if with_labels else [],
        "pad": pads,
    }
    if by_row:
        return MapSource(LABEL, LabelledRows(data, rules, columns, labels, makes_mask=makes_mask), **roles), bool(
            labels
        )
    return IterableSource(LABEL, LabelledBatches(data, rules, columns, labels, makes_mask=makes_mask), **roles), bool(
        labels
    )


def _gives_rows(data: Any) -> bool:
    """Return whether data are a map-style data set, which returns a row by its number."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (list, tuple))
