"""Columns of the data that belong beside predictions: targets to compare with, and titles in one table."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anyaccel.data import Rows, SavedRows, joined_array
from anyaccel.errors import ResultError


def matching_columns(
    rows: Mapping[str, Rows], lengths: Collection[int], taken: Iterable[str], most: int | None = None
) -> Iterator[tuple[str, Rows, str]]:
    """Targets and tags of the data that have as many rows as the predictions, as (title, rows, column).

    Args:
        rows: the data of a run, by feature set; `FEATURE_SET@STREAM` for further streams of a sampler.
        lengths: row counts of the predictions; data with another count (which only a metric needed) are left out.
        taken: titles in use already.
        most: maximum number of columns per feature set, None for all.
    """
    titles = set(taken)
    for label, table in rows.items():
        if len(table) in lengths:
            for name in [*table.targets, *table.tags][:most]:
                title = _unused_title(f"{name}{stream_of(label, table)}", table.label, titles)
                titles.add(title)
                yield title, table, name


def stream_of(label: str, rows: Rows) -> str:
    """`@STREAM` if the label of the rows in a run names a stream, else `""`."""
    return label.removeprefix(rows.label) if label.startswith(f"{rows.label}@") else ""


def _unused_title(name: str, label: str, taken: Collection[str]) -> str:
    """The name if it is free, else `LABEL.NAME`, else `LABEL.NAME#2`, ..."""
    full = f"{label}.{name}"
    counted = (f"{full}#{i}" for i in itertools.count(2))
    return next(title for title in itertools.chain((name, full), counted) if title not in taken)


class Target(NamedTuple):
    """Target columns (mostly one): full name, joined values [n, ...], label of the rows, names of the columns."""

    name: str
    values: np.ndarray
    label: str
    columns: tuple[str, ...]


def target_of(label: str, names: Sequence[str], rows: Mapping[str, Rows]) -> Target:
    """The given columns of the rows with this label."""
    table = rows[label]
    return Target(full_name(label, table, names), joined_array(table, names), label, tuple(names))


def find_target(prediction: np.ndarray, rows: Mapping[str, Rows], column: str | None, what: str) -> Target:
    """The target column to compare predictions [n, ...] with.

    Args:
        prediction: the predictions.
        rows: the data of the run, by feature set.
        column: `"COLUMN"` or `"FEATURE_SET.COLUMN"`; None for the only target column that fits.
        what: subject of error messages.

    Raises:
        ResultError: none fits, several fit, or the one named does not.
    """
    places = {
        full_name(label, table, (name,)): (label, name) for label, table in rows.items() for name in table.targets
    }
    if column is not None:
        matches = [full for full, (_, name) in places.items() if column in (full, name)]
        if len(matches) != 1:
            raise _ambiguous(f"{what}: targets={column!r} names {len(matches) or 'no'} target columns", places)
        return _checked(prediction, _target_at(matches[0], places, rows), what, places)
    values = {full: _target_at(full, places, rows).values for full in places}
    fitting = [full for full in places if fits(prediction, values[full])]
    fitting = fitting or [full for full in places if is_map(prediction, values[full])]
    if len(fitting) != 1:
        none = "no target column of the data fits" if places else "the data have no targets"
        raise _ambiguous(
            f"{what} could be compared with {', '.join(fitting)}" if fitting else f"{what}: {none}", places
        )
    return _target_at(fitting[0], places, rows)


def full_name(label: str, rows: Rows, names: Sequence[str]) -> str:
    """`FEATURE_SET.COLUMN`, with `@STREAM` for a further stream of a sampler."""
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
    """Whether predictions [n, 2] can be plotted as points coloured by labels [n]."""
    points = prediction.shape[1:] == (2,) and prediction.dtype.kind == "f"
    return points and values.dtype.kind in "iu" and values.size == len(values)


def class_count(target: Target, rows: Rows) -> int:
    """Number of classes: one more than the largest index in the whole feature set."""
    whole = rows.base
    if isinstance(whole, SavedRows) and (largest := whole.largest(target.columns)) is not None:
        return 1 + largest
    is_stored = target.columns[0] in whole.columns
    return 1 + int(joined_array(whole, target.columns).max() if is_stored else target.values.max())


def _checked(prediction: np.ndarray, target: Target, what: str, known: Mapping[str, object]) -> Target:
    if not fits(prediction, target.values) and not is_map(prediction, target.values):
        shapes = f"{list(prediction.shape)} and {list(target.values.shape)}"
        raise _ambiguous(f"{what} and the target {target.name} do not fit: {shapes}", known)
    return target


def _ambiguous(problem: str, known: Mapping[str, object]) -> ResultError:
    hint = "name one that fits: plot(targets='COLUMN')" if known else "compare with arrays of your own"
    return ResultError(problem, available=", ".join(known), hint=hint)
