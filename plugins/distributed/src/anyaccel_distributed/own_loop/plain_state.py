"""Plain state: nested values as JSON and arrays, for files and messages; no pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anyaccel.errors import StateError


def encoded(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a nested value as JSON: a pair of its kind and its content. Arrays are added to `arrays`, by their path.

    Raises:
        StateError: It holds something that only pickle could write.
    """
    if isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype != object:
        place = name or "value"
        while place in arrays:
            place += "'"
        arrays[place] = np.asarray(value)
        return ["array", place]
    if value is None or isinstance(value, (bool, int, str)):
        return ["value", value]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]

    def inner(part: Any, key: Any) -> Any:
        return encoded(part, f"{name}/{key}" if name else str(key), arrays)

    if isinstance(value, Mapping):
        return ["dict", [[inner(key, f"{key}#"), inner(part, key)] for key, part in value.items()]]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else type(value).__name__
        return [kind, [inner(part, i) for i, part in enumerate(value)]]
    raise StateError(
        f"{name or 'the value'!r} is a {type(value).__name__}, which only pickle could write",
        hint="return only numbers, text, tensors, and dicts, lists and tuples of these from state_dict() of the object",
    )


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "deque": list, "tuple": tuple, "set": set, "frozenset": frozenset,
}  # fmt: skip


def decoded(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value that was encoded; a deque becomes a list."""
    kind, content = plain
    if kind == "array":
        return arrays[content]
    if kind == "value":
        return content
    if kind in ("float", "bytes"):
        return float.fromhex(content) if kind == "float" else bytes.fromhex(content)
    if kind == "dict":
        return {decoded(key, arrays): decoded(part, arrays) for key, part in content}
    return _CONTAINERS[kind]([decoded(part, arrays) for part in content])


def packed(value: Any) -> dict[str, Any]:
    """Return a nested value as plain values and bytes.

    >>> from anyaccel_distributed.own_loop.plain_state import packed, unpacked
    >>> unpacked(packed({"step": 3, "rates": (0.1, 0.2)}))
    {'step': 3, 'rates': (0.1, 0.2)}

    Raises:
        StateError: It holds something that only pickle could write.
    """
    arrays: dict[str, np.ndarray] = {}
    plain = encoded(value, "", arrays)
    held = {name: [array.dtype.name, list(array.shape), array.tobytes()] for name, array in arrays.items()}
    return {"plain": plain, "arrays": held}


def unpacked(message: Mapping[str, Any]) -> Any:
    """Return the value that was packed."""
    arrays = {}
    for name, (dtype, shape, contents) in message["arrays"].items():
        arrays[name] = np.frombuffer(contents, _dtype(dtype)).reshape(shape).copy()
    return decoded(message["plain"], arrays)


def _dtype(name: str) -> Any:
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return getattr(ml_dtypes, name)
    return np.dtype(name)
