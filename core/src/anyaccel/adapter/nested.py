"""Containers of tensors: the same container with other contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def map_items(obj: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to the items of a dict, list, tuple or named tuple.

    Returns the same object if no item changed, and if it is not a container.
    """
    if not isinstance(obj, (Mapping, list, tuple)):
        return obj
    before = list(obj.values() if isinstance(obj, Mapping) else obj)
    after = [function(item) for item in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return obj
    if hasattr(obj, "_make"):
        return obj._make(after)
    make: Callable[[Any], Any] = type(obj)
    return make(zip(obj, after, strict=True) if isinstance(obj, Mapping) else after)
