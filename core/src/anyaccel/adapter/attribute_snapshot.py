"""Attribute snapshot: save and restore the plain attributes of a model's parts around a trial call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

Restore = Callable[[], None]
"""Writes saved contents back into an object."""

_LARGEST_ARRAY = 256 * 2**20  # bytes; a copy of more would cost more than it is worth
_MOST_ITEMS = 1000  # of a container whose items are looked into
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
_NO_STATE = (*_PLAIN, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


class AttributeSnapshot:
    """The attributes of some objects, with the contents of their containers, arrays and plain objects.

    Args:
        parts: Objects; those without a `__dict__` are left out.
        names: Function that returns the names of the attributes of a part to save; others, and new ones, are ignored.
        save_tensor: Function that saves the values of a framework's tensor, or returns None for any other object. By
            default there are no tensors.
    """

    def __init__(
        self,
        parts: Iterable[Any],
        names: Callable[[Any], Iterable[str]],
        save_tensor: Callable[[Any], Restore | None] = lambda value: None,
    ) -> None:
        self._names = names
        listed = [part for part in parts if hasattr(part, "__dict__")]
        seen: dict[int, Any] = {id(part): part for part in listed}
        self._parts: list[tuple[Any, dict[str, Any], list[tuple[Any, list[Any]]], list[Restore]]] = []
        for part in listed:
            attributes = {name: vars(part)[name] for name in names(part)}
            containers: list[tuple[Any, list[Any]]] = []
            restores: list[Restore] = []
            pending = deque((value, False) for value in attributes.values())
            while pending:
                value, inside_object = pending.popleft()
                if isinstance(value, _NO_STATE) or id(value) in seen:
                    continue
                seen[id(value)] = value
                items: Iterable[Any] = ()
                if isinstance(value, (dict, list, set, deque)):
                    containers.append((value, _contents(value)))
                    if 0 < len(value) <= _MOST_ITEMS:
                        items = value.values() if isinstance(value, dict) else value
                elif (tensor := save_tensor(value)) is not None:
                    restores.append(tensor)
                elif isinstance(value, np.ndarray):
                    if value.flags.writeable and value.nbytes <= _LARGEST_ARRAY and not value.dtype.hasobject:
                        restores.append(partial(np.copyto, value, value.copy()))
                elif isinstance(value, tuple):
                    items = value if len(value) <= _MOST_ITEMS else ()
                elif hasattr(value, "__dict__") and not inside_object:
                    containers.append((vars(value), _contents(vars(value))))
                    items, inside_object = vars(value).values(), True
                pending.extend((item, inside_object) for item in items)
            self._parts.append((part, attributes, containers, restores))
        self._seen = seen  # keeps what was seen alive: the numbers of its objects stay theirs

    def restore(self, *, unless: Callable[[Any], bool] = lambda part: False) -> None:
        """Restore all attributes and their contents; new attributes are removed.

        Contents are written only if they changed, because other code may be reading them.

        Args:
            unless: Tells which parts to leave unchanged.
        """
        for part, attributes, containers, restores in self._parts:
            if unless(part):
                continue
            for container, saved in containers:
                now = _contents(container)
                if len(now) != len(saved) or any(map(_differ, now, saved)):
                    container.clear()
                    container.extend(saved) if isinstance(container, (list, deque)) else container.update(saved)
            for restore in restores:
                restore()
            for name in set(self._names(part)) - attributes.keys():
                del vars(part)[name]
            vars(part).update(attributes)


def _contents(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 2:
        return one[0] is not other[0] or one[1] is not other[1]  # an item of a dict
    return one is not other
