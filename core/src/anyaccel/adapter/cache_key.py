"""Natures: what the code of a model depends on beside its arrays, as values that can be compared and hold no model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, np.dtype)
_DEEPEST = 6
_LARGEST = 2**20  # bytes of an array that are compared


class IdentityKey:
    """An object that is compared by identity, and not held: once it is gone, it equals nothing.

    Raises:
        TypeError: there are no weak references to such objects.
    """

    def __init__(self, obj: Any) -> None:
        self._held = weakref.ref(obj)
        self._hash = id(obj)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey):
            return NotImplemented
        mine = self._held()
        return mine is not None and mine is other._held()


def attributes_key(
    parts: Iterable[tuple[str, Any]], skipped: Callable[[Any], Container[str]], is_part: Callable[[Any], bool]
) -> tuple[Any, ...] | None:
    """The plain attributes of a model's parts, by path; other objects count as themselves.

    Args:
        parts: each part and the path to it.
        skipped: the names of attributes of a part that do not matter.
        is_part: whether a value is told by `parts`, or is a variable, whose values are given to compiled functions.

    Returns:
        what can be compared; None where something cannot be.
    """
    try:
        return tuple((path, type(part), _attributes(part, skipped(part), is_part)) for path, part in parts)
    except _Unknown:
        return None


class _Unknown(Exception):
    pass


def _attributes(part: Any, skipped: Container[str], is_part: Callable[[Any], bool]) -> tuple[Any, ...]:
    held = getattr(part, "__dict__", {})
    return tuple((name, _plain(held[name], is_part, 0)) for name in sorted(held) if name not in skipped)


def _plain(value: Any, is_part: Callable[[Any], bool], depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if is_part(value):
        return "part"
    if depth >= _DEEPEST:
        raise _Unknown
    if isinstance(value, Mapping):
        return tuple((str(key), _plain(one, is_part, depth + 1)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_plain(one, is_part, depth + 1) for one in value)
    return _array(value) if hasattr(value, "__array__") else _same(value)


def _array(value: Any) -> Any:
    try:
        array = np.asarray(value)
    except Exception:  # a framework's own stands for values that it has not
        return _same(value)
    if array.nbytes > _LARGEST or array.dtype.hasobject:
        raise _Unknown
    return array.shape, array.dtype.str, array.tobytes()


def _same(value: Any) -> Any:
    try:
        return IdentityKey(value)
    except TypeError:
        pass
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__ or kind.__hash__ is None:
        raise _Unknown
    return type(value), value  # a value such as a device
