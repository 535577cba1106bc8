"""Likeness: whether two fitted objects are in the same state."""

from __future__ import annotations

from typing import Any

import numpy as np


def alike(one: Any, other: Any) -> bool:
    """Whether two objects are the same, or of one type and in the same state: arrays by value, others by attributes.

    What cannot be compared, such as an object that refers to itself, counts as different.
    """
    try:
        return _alike(one, other)
    except (RecursionError, TypeError, ValueError):
        return False


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if hasattr(one, "__dict__") and not isinstance(one, type):
        return _alike(vars(one), vars(other))
    return bool(one == other) or bool(one != one and other != other)


def _same_arrays(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == np.object_:
        return _alike(one.tolist(), other.tolist())
    return bool(((one == other) | ((one != one) & (other != other))).all())
