"""Which columns of the data belong to predictions, and what they are called in one table with these."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anyaccel.data import FeatureSetView, Rows, joined_array
from anyaccel.errors import ResultError


def belonging(
    rows: Mapping[str, Rows], lengths: Collection[int], taken: Iterable[str], most: int | None = None
) -> Iterator[tuple[str, Rows, str]]:
    """The targets and tags of data with as many rows as some predictions: the title of each, whose it is, its name.

    Args:
        rows: the data of a run, by feature set, with `@STREAM` where a sampler drew them by another stream.
        lengths: how many rows the predictions have; others (of a feature set that a metric alone needed) are left out.
        taken: titles that there are already.
        most: columns of a feature set at most, None for all.
    """
    titles = set(taken)
    for label, its in rows.items():
        if len(its) in lengths:
            for name in [*its.targets, *its.tags][:most]:
                title = _free(f"{name}{stream_of(label, its)}", its.label, titles)
                titles.add(title)
                yield title, its, name


def stream_of(label: str, rows: Rows) -> str:
    """`@STREAM` where the label under which a run has rows says so; data of another label may be given for it."""
    return label.removeprefix(rows.label) if label.startswith(f"{rows.label}@") else ""


def _free(name: str, label: str, taken: Collection[str]) -> str:
    """A title that no other column has: the name, else with the label of its feature set, else with a number."""
    full = f"{label}.{name}"
    counted = (f"{full}#{i}" for i in itertools.count(2))
    return next(one for one in itertools.chain((name, full), counted) if one not in taken)


class Wanted(NamedTuple):
    """Target columns (mostly one) of some rows, `name` in full, and their values [n, ...], joined."""

    name: str
    values: np.ndarray
    label: str
    columns: tuple[str, ...]


def wanted(label: str, names: Sequence[str], rows: Mapping[str, Rows]) -> Wanted:
    """These columns of the rows under this label."""
    its = rows[label]
    return Wanted(full_name(label, its, names), joined_array(its, names), label, tuple(names))


def wanted_for(prediction: np.ndarray, rows: Mapping[str, Rows], column: str | None, what: str) -> Wanted:
    """The targets to compare predictions [n, ...] with.

    Args:
        prediction: what was predicted.
        rows: the data of the run, by feature set.
        column: `"COLUMN"` or `"FEATURE_SET.COLUMN"`; None is the only target column that fits.
        what: whose predictions, for messages.

    Raises:
        ResultError: there is none, several fit, or the one named does not.
    """
    there = {full_name(label, one, (name,)): (label, name) for label, one in rows.items() for name in one.targets}
    if column is not None:
        found = [full for full, (_, name) in there.items() if column in (full, name)]
        if len(found) != 1:
            raise _not_clear(f"{what}: targets={column!r} names {len(found) or 'no'} target columns", there)
        return _checked(prediction, _wanted(found[0], there, rows), what, there)
    values = {full: _wanted(full, there, rows).values for full in there}
    fitting = [full for full in there if fits(prediction, values[full])]
    fitting = fitting or [full for full in there if is_map(prediction, values[full])]
    if len(fitting) != 1:
        few = "no target column of the data fits" if there else "the data have no targets"
        raise _not_clear(f"{what} could be compared with {', '.join(fitting)}" if fitting else f"{what}: {few}", there)
    return _wanted(fitting[0], there, rows)


def full_name(label: str, rows: Rows, names: Sequence[str]) -> str:
    """`FEATURE_SET.COLUMN`, with `@STREAM` where the rows are those of another stream than a sampler's first."""
    return f"{rows.label}.{'+'.join(names)}{stream_of(label, rows)}"


def _wanted(full: str, there: Mapping[str, tuple[str, str]], rows: Mapping[str, Rows]) -> Wanted:
    label, name = there[full]
    return wanted(label, (name,), rows)


def fits(prediction: np.ndarray, values: np.ndarray) -> bool:
    """Whether targets [n, ...] can be compared with predictions: number by number, or as indices of scores."""
    if values.size == prediction.size:
        return True
    scores = prediction.ndim == 2 and prediction.dtype.kind == "f"
    indices = values.dtype.kind in "iu" and values.size == len(values)
    return bool(scores and indices and values.min() >= 0 and values.max() < prediction.shape[1])


def is_map(prediction: np.ndarray, values: np.ndarray) -> bool:
    """Whether predictions [n, 2] can be drawn as points in the colours of labels [n]."""
    points = prediction.shape[1:] == (2,) and prediction.dtype.kind == "f"
    return points and values.dtype.kind in "iu" and values.size == len(values)


def class_count(found: Wanted, rows: Rows) -> int:
    """How many classes indices number, at least: one more than the largest in the whole feature set."""
    whole = rows.feature_set if isinstance(rows, FeatureSetView) else rows
    there = found.columns[0] in whole.columns
    return 1 + int(joined_array(whole, found.columns).max() if there else found.values.max())


def _checked(prediction: np.ndarray, found: Wanted, what: str, there: Mapping[str, object]) -> Wanted:
    if not fits(prediction, found.values) and not is_map(prediction, found.values):
        shapes = f"{list(prediction.shape)} and {list(found.values.shape)}"
        raise _not_clear(f"{what} and the target {found.name} do not fit: {shapes}", there)
    return found


def _not_clear(asked: str, there: Mapping[str, object]) -> ResultError:
    remedy = "name one that fits: plot(targets='COLUMN')" if there else "compare with arrays of your own"
    return ResultError(asked, available=", ".join(there), hint=remedy)
