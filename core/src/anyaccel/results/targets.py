"""Columns that belong beside predictions: targets to compare with, and titles in one table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anyaccel.data import FeatureSet, Rows, SavedRows, joined_array
from anyaccel.data.readers.array_conversion import tag_column
from anyaccel.errors import ResultError


def prediction_table(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return an Arrow table of predictions ([n, *shape] by name). Samples of a single value, such as [n, 1], become
    [n].
    """
    arrays = {name: array.reshape(len(array)) if _single(array.shape[1:]) else array for name, array in arrays.items()}
    texts = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    numbers = [name for name in arrays if name not in texts]
    if not numbers:
        return pa.table({name: tag_column(name, array) for name, array in arrays.items()})
    table = FeatureSet.from_dict("predictions", arrays, numbers, (), texts).to_arrow()
    return table.select(list(arrays))


def plain_column(rows: Rows, name: str) -> Any:
    """Return a column as an Arrow chunked array; samples of shape [1], [1, 1], ... become plain values."""
    column = rows.column(name)
    if not isinstance(column.type, pa.FixedShapeTensorType) or not _single(column.type.shape):
        return column
    return pa.chunked_array([chunk.storage.flatten() for chunk in column.chunks], column.type.value_type)


def _single(shape: Sequence[int]) -> bool:
    """Whether samples of this shape hold a single value in at least one axis."""
    return bool(shape) and math.prod(shape) == 1


def matching_columns(
    rows: Mapping[str, Rows], lengths: Collection[int], taken: Iterable[str], most: int | None = None
) -> Iterator[tuple[str, Rows, str]]:
    """Yield targets and tags of the data that have as many rows as the predictions, as (title, rows, column).

    Args:
        rows: The data of a run, by feature set; `FEATURE_SET@STREAM` for more streams of a sampler.
        lengths: Row counts of the predictions; data with another count (which only a metric needed) are left out.
        taken: Titles in use already.
        most: Maximum number of columns per feature set, None for all.
    """
    titles = set(taken)
    for label, table in rows.items():
        if len(table) in lengths:
            for name in [*table.targets, *table.tags][:most]:
                title = f"{name}{stream_of(label, table)}"
                full = f"{table.label}.{title}"
                numbered = (f"{full}#{i}" for i in itertools.count(2))
                if title in titles:
                    title = full if full not in titles else next(free for free in numbered if free not in titles)
                titles.add(title)
                yield title, table, name


def stream_of(label: str, rows: Rows) -> str:
    """Return `@STREAM` if the label of the rows in a run names a stream, otherwise `""`."""
    return label.removeprefix(rows.label) if label.startswith(f"{rows.label}@") else ""


class Target(NamedTuple):
    """Target columns (mostly one): full name, joined values [n, ...], label of the rows, names of the columns."""

    name: str
    values: np.ndarray
    label: str
    columns: tuple[str, ...]


def target_of(label: str, names: Sequence[str], rows: Mapping[str, Rows]) -> Target:
    """Return the given columns of the rows with this label."""
    table = rows[label]
    return Target(full_name(label, table, names), joined_array(table, names), label, tuple(names))


def find_target(prediction: np.ndarray, rows: Mapping[str, Rows], column: str | None, what: str) -> Target:
    """Return the target column to compare predictions [n, ...] with.

    Args:
        prediction: The predictions.
        rows: The data of the run, by feature set.
        column: `"COLUMN"` or `"FEATURE_SET.COLUMN"`; None for the only target column that fits.
        what: Subject of error messages.

    Raises:
        ResultError: none fits, several fit, or the one named does not.
    """
    places = {
        full_name(label, table, (name,)): (label, name) for label, table in rows.items() for name in table.targets
    }
    if column is not None:
        matches = [full for full, (_, name) in places.items() if column in (full, name)]
        if len(matches) != 1:
            raise _ambiguous(f"{what}: targets={column!r} matches {len(matches) or 'no'} target columns", places)
        target = _target_at(matches[0], places, rows)
        if not fits(prediction, target.values) and not is_map(prediction, target.values):
            shapes = f"{list(prediction.shape)} and {list(target.values.shape)}"
            raise _ambiguous(f"{what} and the target {target.name} have different shapes: {shapes}", places)
        return target
    values = {full: _target_at(full, places, rows).values for full in places}
    fitting = [full for full in places if fits(prediction, values[full])]
    fitting = fitting or [full for full in places if is_map(prediction, values[full])]
    if len(fitting) != 1:
        none = "no target column of the data matches" if places else "the data have no targets"
        raise _ambiguous(
            f"{what} could be compared with {', '.join(fitting)}" if fitting else f"{what}: {none}", places
        )
    return _target_at(fitting[0], places, rows)


def full_name(label: str, rows: Rows, names: Sequence[str]) -> str:
    """Return `FEATURE_SET.COLUMN`, with `@STREAM` for a stream of a sampler other than the first."""
    return f"{rows.label}.{'+'.join(names)}{stream_of(label, rows)}"


def _target_at(full: str, places: Mapping[str, tuple[str, str]], rows: Mapping[str, Rows]) -> Target:
    label, name = places[full]
    return target_of(label, (name,), rows)


def fits(prediction: np.ndarray, values: np.ndarray) -> bool:
    """Whether targets [n, ...] fit predictions: element by element, or as class indices of scores."""
    if values.size == prediction.size:
        return True
    scores = prediction.ndim == 2 and prediction.dtype.kind == "f"
    indices = values.dtype.kind in "iu" and values.size == len(values)
    return bool(scores and indices and values.min() >= 0 and values.max() < prediction.shape[1])


def is_map(prediction: np.ndarray, values: np.ndarray) -> bool:
    """Whether predictions [n, 2] can be plotted as points colored by labels [n]."""
    points = prediction.shape[1:] == (2,) and prediction.dtype.kind == "f"
    return points and values.dtype.kind in "iu" and values.size == len(values)


def class_count(target: Target, rows: Rows) -> int:
    """Return the number of classes: one more than the largest index in the whole feature set."""
    whole = rows.base
    if isinstance(whole, SavedRows) and (largest := whole.largest(target.columns)) is not None:
        return 1 + largest
    is_stored = target.columns[0] in whole.columns
    return 1 + int(joined_array(whole, target.columns).max() if is_stored else target.values.max())


def _ambiguous(problem: str, known: Mapping[str, object]) -> ResultError:
    hint = "name a matching one: plot(targets='COLUMN')" if known else "compare with your own arrays"
    return ResultError(problem, available=", ".join(known), hint=hint)
