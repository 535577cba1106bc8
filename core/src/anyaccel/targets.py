"""Which targets of the data belong to some predictions, and these targets as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anyaccel.data import Rows
from anyaccel.errors import ResultError


class Wanted(NamedTuple):
    """A target column and its values [n, ...]."""

    name: str
    values: np.ndarray


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
        return _checked(prediction, Wanted(found[0], _values(found[0], there, rows)), what, there)
    fitting = [full for full in there if fits(prediction, _values(full, there, rows))]
    if len(fitting) != 1:
        few = "no target column of the data fits" if there else "the data have no targets"
        raise _not_clear(f"{what} could be compared with {', '.join(fitting)}" if fitting else f"{what}: {few}", there)
    return Wanted(fitting[0], _values(fitting[0], there, rows))


def full_name(label: str, rows: Rows, names: Sequence[str]) -> str:
    """`FEATURE_SET.COLUMN`, with `@STREAM` where the rows are those of another stream than a sampler's first."""
    return f"{rows.label}.{'+'.join(names)}{label.removeprefix(rows.label)}"


def _values(full: str, there: Mapping[str, tuple[str, str]], rows: Mapping[str, Rows]) -> np.ndarray:
    label, name = there[full]
    return rows[label].array(name)


def fits(prediction: np.ndarray, values: np.ndarray) -> bool:
    """Whether targets [n, ...] can be compared with predictions: number by number, or as indices of scores."""
    indices = values.dtype.kind in "iu" and values.size == len(values)
    return values.size == prediction.size or (indices and prediction.ndim == 2 and prediction.dtype.kind == "f")


def _checked(prediction: np.ndarray, found: Wanted, what: str, there: Mapping[str, object]) -> Wanted:
    if not fits(prediction, found.values):
        shapes = f"{list(prediction.shape)} and {list(found.values.shape)}"
        raise _not_clear(f"{what} and the target {found.name} do not fit: {shapes}", there)
    return found


def _not_clear(asked: str, there: Mapping[str, object]) -> ResultError:
    remedy = "name one that fits: plot(targets='COLUMN')" if there else "compare with arrays of your own"
    return ResultError(asked, there=", ".join(there), remedy=remedy)
