"""Whether two fitted objects are in the same state."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_state(first: Any, second: Any) -> bool:
    """Whether two objects are the same, or of one type and in the same state: arrays by value, others by attributes.

    Objects that cannot be compared, such as one that refers to itself, count as different.
    """
    try:
        return _equal(first, second)
    except (RecursionError, TypeError, ValueError):
        return False


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return _equal_arrays(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if hasattr(first, "__dict__") and not isinstance(first, type):
        return _equal(vars(first), vars(second))
    return bool(first == second) or bool(first != first and second != second)


def _equal_arrays(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype == np.object_:
        return _equal(first.tolist(), second.tolist())
    return bool(((first == second) | ((first != first) & (second != second))).all())
