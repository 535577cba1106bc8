"""Calling transforms of the user's: arrays in, checked arrays out, and errors that name transform and columns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.data.roles import listed
from anyaccel.errors import TransformError

_NEEDED = ("fit", "transform")


def described(transform: Any, columns: Sequence[str], label: str) -> str:
    """A transform and what it is for, as messages begin: `StandardScaler on x, y of 'sensors'`."""
    return f"{type(transform).__name__} on {listed(columns)} of {label!r}"


def check_transform(transform: Any) -> None:
    """Make sure that something is an object with `fit(X)` and `transform(X)`.

    Raises:
        TransformError: it is none.
    """
    if isinstance(transform, type):
        name = transform.__name__
        raise TransformError(f"{name} is a class, not a transform", hint=f"make one of it: {name}()")
    missing = [f"{name}(X)" for name in _NEEDED if not callable(getattr(transform, name, None))]
    if missing:
        raise TransformError(
            f"a {type(transform).__name__} is no transform: it has no {' and no '.join(missing)}",
            available="a transform has fit(X), transform(X) and, to bring predictions back, inverse_transform(X)",
            hint="give an object in the style of scikit-learn, such as StandardScaler()",
        )


def fitted_copy(transform: Any, x: np.ndarray, what: str) -> Any:
    """A copy of a transform, fitted to `x` [n, numbers]; what was given stays as it is.

    Raises:
        TransformError: it cannot be copied or fitted.
    """
    try:
        own = copy.deepcopy(transform)
    except Exception as error:
        raise TransformError(
            f"{what} cannot be copied: {_told(error)}",
            available="a copy is fitted, so that one object can be used twice",
            hint="give a transform that copy.deepcopy takes",
        ) from error
    try:
        own.fit(x)
    except Exception as error:
        raise TransformError(
            f"{what} cannot be fitted: {_told(error)}",
            available=f"it was called with fit(X) alone, X {list(x.shape)} of {x.dtype}",
            hint="choose columns that it takes, or another transform",
        ) from error
    return own


def transformed(transform: Any, x: np.ndarray, owners: Sequence[str], what: str) -> np.ndarray:
    """What a fitted transform makes of `x` [n, numbers]: [n, k], never sparse and no frame.

    Args:
        owners: the column of each of the numbers.

    Raises:
        TransformError: it fails, gives another number of rows, or makes NaN or infinity of finite numbers.
    """
    whole = _whole_rows(x)
    try:
        given = _array(transform.transform(x))
    except Exception as error:
        raise _unseen(transform, x, owners, what, error) or TransformError(
            f"{what} cannot be applied: {_told(error)}",
            available=f"X {list(x.shape)} of {x.dtype}",
            hint="choose columns that it takes, or another transform",
        ) from error
    rows = _rows_of(given, len(x), what, "transform")
    broken = whole & ~_whole_rows(rows)
    if rows.dtype.kind == "f" and broken.any():
        raise TransformError(
            f"{what} gives NaN or infinity in {int(broken.sum())} of {len(broken)} rows, the first in row "
            f"{int(broken.argmax())}",
            available="before it, these rows are complete and finite",
            hint="choose another transform, or other settings of this one",
        )
    return rows


def inverted(transform: Any, y: np.ndarray, width: int, what: str) -> np.ndarray:
    """What a fitted transform makes when it is turned round: of `y` [n, k], [n, width].

    Raises:
        TransformError: it cannot be turned round, fails, or gives another shape.
    """
    if not _has_inverse(transform):
        raise TransformError(
            f"{what} cannot be turned round: it has no inverse_transform that undoes it",
            available="the columns of the data come back without one: undo_transform()",
            hint="for predictions, choose a transform with one (a FunctionTransformer needs inverse_func=)",
        )
    try:
        given = _array(transform.inverse_transform(y))
    except Exception as error:
        raise TransformError(
            f"{what} cannot be turned round for these values: {_told(error)}",
            available=f"inverse_transform(X) with X {list(y.shape)} of {y.dtype}",
        ) from error
    rows = _rows_of(given, len(y), what, "inverse_transform")
    if rows.shape[1] != width:
        raise TransformError(
            f"{what}: inverse_transform gives rows of width {rows.shape[1]}",
            available=f"it was fitted to rows of {width}",
        )
    return rows


def narrowed(values: np.ndarray, like: Any) -> np.ndarray:
    """Floating values in the floating dtype `like` if that is narrower and has room; everything else as it is."""
    wanted = None if like is None else np.dtype(like)
    if wanted is None or values.dtype.kind != "f" or wanted.kind != "f" or wanted.itemsize >= values.dtype.itemsize:
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(wanted)
    return narrow if np.array_equal(np.isfinite(narrow), np.isfinite(values)) else values


def _array(given: Any) -> np.ndarray:
    if hasattr(given, "toarray"):
        given = given.toarray()
    elif hasattr(given, "to_numpy"):
        given = given.to_numpy()
    return np.asarray(given)


def _rows_of(given: np.ndarray, n: int, what: str, method: str) -> np.ndarray:
    """An array [n, k] of what was given; [n] counts as [n, 1]."""
    rows = given[:, None] if given.ndim == 1 else given
    if rows.ndim != 2 or len(rows) != n or not rows.shape[1]:
        raise TransformError(
            f"{what}: {method} gives an array of shape {list(given.shape)} for {n} rows",
            available=f"[{n}, numbers] is wanted, one row for each that goes in",
            hint="leave rows out beforehand, with filter()",
        )
    return rows


def _whole_rows(x: np.ndarray) -> np.ndarray:
    """Which rows of [n, k] have neither NaN, infinity nor null, bool [n]."""
    if x.dtype.kind in "fc":
        return np.asarray(np.isfinite(x).all(axis=1))
    if x.dtype == np.object_:
        return np.array([all(value is not None and value == value for value in row) for row in x], dtype=bool)
    return np.ones(len(x), dtype=bool)


def _has_inverse(transform: Any) -> bool:
    """Whether a transform can be turned round; one of a function without its inverse would change nothing."""
    if getattr(transform, "func", None) is not None and getattr(transform, "inverse_func", transform) is None:
        return False
    parts = [part for _, part in getattr(transform, "steps", ()) if part not in (None, "passthrough")]
    return callable(getattr(transform, "inverse_transform", None)) and all(map(_has_inverse, parts))


def _unseen(transform: Any, x: np.ndarray, owners: Sequence[str], what: str, error: Exception) -> TransformError | None:
    """The error for categories that an encoder has not seen in fitting; None if it does not look like that."""
    steps = getattr(transform, "steps", ())
    encoder = steps[0][1] if steps else transform
    known = getattr(encoder, "categories_", ())
    if len(known) != x.shape[1] or getattr(encoder, "handle_unknown", "error") != "error":
        return None
    for owner, values, categories in zip(owners, x.T.tolist(), known, strict=True):
        seen = [repr(one) for one in np.asarray(categories).tolist()]
        strange = sorted({repr(one) for one in values if one == one} - set(seen))
        if strange:
            return TransformError(
                f"{what} has not seen {listed(strange)} of column {owner!r} in fitting: {_told(error)}",
                available=f"fitted to {listed(seen)}",
                hint="give the encoder handle_unknown= ('ignore', or 'use_encoded_value' with unknown_value=), "
                "or fit it on rows that have all categories",
            )
    return None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
