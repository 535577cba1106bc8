"""Cache keys: a hashable fingerprint of what a model's code depends on beside its arrays. Keys hold no model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, np.dtype)
_MAX_DEPTH = 6
_MAX_ARRAY_BYTES = 2**20


class IdentityKey:
    """The identity of an object, by a weak reference: once the object is gone, the key equals nothing.

    Raises:
        TypeError: the object does not support weak references.
    """

    def __init__(self, obj: Any) -> None:
        self._ref = weakref.ref(obj)
        self._hash = id(obj)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey):
            return NotImplemented
        obj = self._ref()
        return obj is not None and obj is other._ref()


def attributes_key(
    parts: Iterable[tuple[str, Any]], ignored: Callable[[Any], Container[str]], is_part: Callable[[Any], bool]
) -> tuple[Any, ...] | None:
    """A key from the plain attributes of a model's parts, by path; other objects count by identity.

    Args:
        parts: the path of each part, and the part.
        ignored: the names of attributes of a part that do not matter.
        is_part: whether a value is itself among `parts`, or a variable, whose value compiled functions are given.

    Returns:
        the key; None where an attribute can neither be compared nor be referenced weakly.
    """
    try:
        return tuple((path, type(part), _attributes(part, ignored(part), is_part)) for path, part in parts)
    except _NoKey:
        return None


class _NoKey(Exception):
    pass


def _attributes(part: Any, ignored: Container[str], is_part: Callable[[Any], bool]) -> tuple[Any, ...]:
    attributes = getattr(part, "__dict__", {})
    return tuple((name, _key(attributes[name], is_part, 0)) for name in sorted(attributes) if name not in ignored)


def _key(value: Any, is_part: Callable[[Any], bool], depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if is_part(value):
        return "part"
    if depth >= _MAX_DEPTH:
        raise _NoKey
    if isinstance(value, Mapping):
        return tuple((str(key), _key(item, is_part, depth + 1)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_key(item, is_part, depth + 1) for item in value)
    return _array_key(value) if hasattr(value, "__array__") else _object_key(value)


def _array_key(value: Any) -> Any:
    try:
        array = np.asarray(value)
    except Exception:  # a framework's placeholder without values
        return _object_key(value)
    if array.nbytes > _MAX_ARRAY_BYTES or array.dtype.hasobject:
        raise _NoKey
    return array.shape, array.dtype.str, array.tobytes()


def _object_key(value: Any) -> Any:
    try:
        return IdentityKey(value)
    except TypeError:
        pass
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__ or kind.__hash__ is None:
        raise _NoKey
    return type(value), value  # a value type, such as a device
