"""Cache keys: hashable stand-ins of single values, by which values of two times are compared. They hold no model."""

from __future__ import annotations

import enum
import hashlib
import weakref
from typing import Any

import numpy as np

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic, type(Ellipsis), enum.Enum)
"""Types of values that `plain_key` compares."""
_MAX_ARRAY_BYTES = 2**28


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


class Incomparable:
    """The key of a value that cannot be compared: it equals no other key, not even one of the same value."""


def plain_key(value: Any) -> Any:
    """The key of a value of a `PLAIN` type: equal for the same type and value, NaN included."""
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)  # -0.0 is not 0.0, NaN is NaN
    return type(value), value


def array_key(value: Any) -> Any:
    """The key of an array from its shape, dtype and bytes."""
    try:
        array = np.asarray(value)
    except Exception:  # a framework's placeholder without values
        return object_key(value)
    if array.nbytes > _MAX_ARRAY_BYTES or array.dtype.hasobject:
        return Incomparable()
    return array.shape, array.dtype.str, hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def object_key(value: Any) -> Any:
    """The identity of an object; itself, if it cannot be referenced weakly and has a value, as a device has."""
    try:
        return IdentityKey(value)
    except TypeError:
        pass
    kind: Any = type(value)
    if kind is object:
        return value  # a sentinel, which holds nothing
    if kind.__eq__ is object.__eq__ or kind.__hash__ is None:
        return Incomparable()
    return kind, value
