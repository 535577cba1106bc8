"""Calls of the user's transforms: arrays in, checked arrays out, and errors that name the transform and its columns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.data.roles import listed
from anyaccel.errors import ENVIRONMENT_ERRORS, TransformError

_METHODS = ("fit", "transform")


def described(transform: Any, columns: Sequence[str], label: str) -> str:
    """Return a transform and its columns for a message: `StandardScaler on x, y of 'sensors'`."""
    return f"{type(transform).__name__} on {listed(columns)} of {label!r}"


def check_transform(transform: Any) -> None:
    """Check that an object has `fit(X)` and `transform(X)`."""
    if isinstance(transform, type):
        name = transform.__name__
        raise TransformError(f"{name} is a class, not a transform", hint=f"create an object: {name}()")
    missing = [f"{name}(X)" for name in _METHODS if not callable(getattr(transform, name, None))]
    if missing:
        is_pipeline = hasattr(transform, "steps") and hasattr(transform, "named_steps")
        raise TransformError(
            f"a {type(transform).__name__} is not a transform: it has no {' and no '.join(missing)}",
            cause="a transform has fit(X), transform(X) and, for predictions in original units, inverse_transform(X)",
            hint="leave its last step out, which is no transform: pipeline[:-1]"
            if is_pipeline
            else "pass an object in the style of scikit-learn, such as StandardScaler()",
        )


def columns_by_name(transform: Any) -> list[str]:
    """Return the columns that a ColumnTransformer, or one inside an object, selects by name, as errors list them."""
    try:
        parts = [transform, *transform.get_params(deep=True).values()]
    except Exception:  # of a user's class; its fit reports mistakes
        return []
    chosen = [
        item[2] for part in parts for item in getattr(part, "transformers", None) or () if isinstance(item, tuple)
    ]
    lists = [[choice] if isinstance(choice, str) else choice for choice in chosen if isinstance(choice, (str, list))]
    return list(dict.fromkeys(name for names in lists for name in names if isinstance(name, str)))


def by_position(names: Sequence[str], columns: Sequence[str]) -> str:
    """Return the replacement for column names in an array with one number per column."""
    positions = [columns.index(name) for name in names if name in columns]
    if len(positions) < len(names):
        return f"choose columns by their positions in the array, 0 to {len(columns) - 1} for {listed(columns)}"
    return f"choose them by their positions in the array: {positions} for {list(names)}"


def fitted_copy(transform: Any, x: np.ndarray, what: str, columns: Sequence[str] | None = None) -> Any:
    """Return a copy of a transform, fitted to `x` [n, numbers]; the original stays unfitted."""
    names = columns_by_name(transform)
    if names and columns is not None:
        problem = f"{what} chooses columns by name, but it gets an array [n, {x.shape[1]}], which has no names"
        raise TransformError(problem, hint=by_position(names, columns))
    try:
        copied = copy.deepcopy(transform)
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {what}")
        raise
    except Exception as error:
        raise TransformError(
            f"{what} cannot be copied: {_text(error)}",
            cause="a copy of the transform is fitted, so that one object can be used twice",
            hint="pass a transform that copy.deepcopy can copy",
        ) from error
    try:
        copied.fit(x)
    except TransformError as error:
        raise _with_columns(what, error) from None
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {what}")
        raise
    except Exception as error:
        raise TransformError(
            f"{what} cannot be fitted: {_text(error)}",
            cause=f"it was called with fit(X) alone, X {list(x.shape)} of {x.dtype}",
            hint="choose compatible columns, or another transform",
        ) from error
    return copied


def transformed(transform: Any, x: np.ndarray, owners: Sequence[str], what: str) -> np.ndarray:
    """Return the output of a fitted transform for `x` [n, numbers]: [n, k], neither sparse nor a frame.

    Args:
        transform: Object with `transform(X)`.
        x: Its input.
        owners: Column of each of the numbers of `x`, for messages.
        what: Beginning of messages.
    """
    was_finite = _finite_rows(x)
    try:
        output = _dense(transform.transform(x))
    except TransformError as error:
        raise _with_columns(what, error) from None
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {what}")
        raise
    except Exception as error:
        raise _unseen(transform, x, owners, what, error) or TransformError(
            f"{what} cannot be applied: {_text(error)}",
            cause=f"X {list(x.shape)} of {x.dtype}",
            hint="choose compatible columns, or another transform",
        ) from error
    rows = _as_rows(output, len(x), what, "transform")
    broken = was_finite & ~_finite_rows(rows)
    if rows.dtype.kind == "f" and broken.any():
        raise TransformError(
            f"{what} returns NaN or infinity in {int(broken.sum())} of {len(broken)} rows, the first in row "
            f"{int(broken.argmax())}",
            cause="its input rows are complete and finite",
            hint="choose another transform, or other settings of this one",
        )
    return rows


def inverted(transform: Any, y: np.ndarray, width: int, what: str) -> np.ndarray:
    """Return the output of the inverse of a fitted transform for `y` [n, k]: [n, width]."""
    if not _has_inverse(transform):
        raise TransformError(
            f"{what} cannot be inverted: it has no inverse_transform",
            cause="undo_transform() restores the columns of the data without one",
            hint="for predictions, choose a transform with one (a FunctionTransformer needs inverse_func=)",
        )
    try:
        output = _dense(transform.inverse_transform(y))
    except TransformError as error:
        raise _with_columns(what, error) from None
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {what}")
        raise
    except Exception as error:
        raise TransformError(
            f"{what} cannot be inverted for these values: {_text(error)}",
            cause=f"inverse_transform(X) with X {list(y.shape)} of {y.dtype}",
        ) from error
    rows = _as_rows(output, len(y), what, "inverse_transform")
    if rows.shape[1] != width:
        raise TransformError(
            f"{what}: inverse_transform returns rows of width {rows.shape[1]}",
            cause=f"it was fitted to rows of {width}",
        )
    return rows


def narrowed(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Return floating values in the floating `dtype` if it is narrower and does not overflow; others unchanged."""
    target = None if dtype is None else np.dtype(dtype)
    if target is None or values.dtype.kind != "f" or target.kind != "f" or target.itemsize >= values.dtype.itemsize:
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(target)
    return narrow if np.array_equal(np.isfinite(narrow), np.isfinite(values)) else values


def _dense(output: Any) -> np.ndarray:
    if hasattr(output, "toarray"):
        output = output.toarray()
    elif hasattr(output, "to_numpy"):
        output = output.to_numpy()
    return np.asarray(output)


def _as_rows(output: np.ndarray, n: int, what: str, method: str) -> np.ndarray:
    """Return an array [n, k]; [n] becomes [n, 1]."""
    rows = output[:, None] if output.ndim == 1 else output
    if rows.ndim != 2 or len(rows) != n or not rows.shape[1]:
        raise TransformError(
            f"{what}: {method} returns an array of shape {list(output.shape)} for {n} rows",
            cause=f"it must return [{n}, numbers], one row for each row of its input",
            hint="leave rows out beforehand: FeatureSet.from_arrow('LABEL', data.filter({...}))",
        )
    return rows


def _finite_rows(x: np.ndarray) -> np.ndarray:
    """Return which rows of [n, k] have neither NaN, infinity nor null, bool [n]."""
    if x.dtype.kind in "fc":
        return np.asarray(np.isfinite(x).all(axis=1))
    if x.dtype == np.object_:
        return np.array([all(value is not None and value == value for value in row) for row in x], dtype=bool)
    return np.ones(len(x), dtype=bool)


def _has_inverse(transform: Any) -> bool:
    """Return whether a transform has an inverse; a FunctionTransformer without inverse_func would change nothing."""
    if getattr(transform, "func", None) is not None and getattr(transform, "inverse_func", transform) is None:
        return False
    parts = [part for _, part in getattr(transform, "steps", ()) if part not in (None, "passthrough")]
    return callable(getattr(transform, "inverse_transform", None)) and all(map(_has_inverse, parts))


def _unseen(transform: Any, x: np.ndarray, owners: Sequence[str], what: str, error: Exception) -> TransformError | None:
    """Return the error for categories that an encoder did not see in fitting; None for other failures."""
    steps = getattr(transform, "steps", ())
    encoder = steps[0][1] if steps else transform
    categories_by_column = getattr(encoder, "categories_", ())
    if len(categories_by_column) != x.shape[1] or getattr(encoder, "handle_unknown", "error") != "error":
        return None
    for owner, values, categories in zip(owners, x.T.tolist(), categories_by_column, strict=True):
        seen = [repr(category) for category in np.asarray(categories).tolist()]
        unseen = sorted({repr(value) for value in values if value == value} - set(seen))
        if unseen:
            return TransformError(
                f"{what} was not fitted to {listed(unseen)} of column {owner!r}: {_text(error)}",
                cause=f"fitted to {listed(seen)}",
                hint="set handle_unknown= of the encoder ('ignore', or 'use_encoded_value' with unknown_value=), "
                "or fit it on rows that have all categories",
            )
    return None


def _with_columns(what: str, error: TransformError) -> TransformError:
    """Return an error that this library raised in a transform, with the columns added."""
    return TransformError(f"{what}: {error.problem}", available=error.available, hint=error.hint)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
