"""Attribute snapshot: the plain attributes of a model's parts, so that a trial call leaves them as they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
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
    """The attributes of some objects, with the contents of the containers, arrays and plain objects that they are.

    Args:
        parts: objects; those without a `__dict__` are left out.
        names: gives the names of the attributes of a part that are saved; others, and new ones, are left alone.
        save_tensor: saves the values of a framework's tensor; None for any other object. By default there are none.
    """

    def __init__(
        self,
        parts: Iterable[Any],
        names: Callable[[Any], Iterable[str]],
        save_tensor: Callable[[Any], Restore | None] = lambda value: None,
    ) -> None:
        self._names, self._save_tensor = names, save_tensor
        listed = [part for part in parts if hasattr(part, "__dict__")]
        self._seen: dict[int, Any] = {id(part): part for part in listed}
        self._parts = [self._saved(part) for part in listed]

    def _saved(self, part: Any) -> tuple[Any, dict[str, Any], list[Restore]]:
        attributes = {name: vars(part)[name] for name in self._names(part)}
        restores: list[Restore] = []
        for value in attributes.values():
            self._save(value, restores)
        return part, attributes, restores

    def restore(self, *, unless: Callable[[Any], bool] = lambda part: False) -> None:
        """Set all attributes, and what they hold, to what they were; new attributes are removed.

        Args:
            unless: parts that are left as they are now.
        """
        for part, attributes, restores in self._parts:
            if unless(part):
                continue
            for restore in restores:
                restore()
            for name in set(self._names(part)) - attributes.keys():
                del vars(part)[name]
            vars(part).update(attributes)

    def _save(self, value: Any, restores: list[Restore], *, inside_object: bool = False) -> None:
        """Add what writes the contents of a value back; nothing for values without contents, or that were seen."""
        if isinstance(value, _NO_STATE) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if (tensor := self._save_tensor(value)) is not None:
            restores.append(tensor)
            return
        items: Iterable[Any] = ()
        if isinstance(value, np.ndarray):
            if value.flags.writeable and value.nbytes <= _LARGEST_ARRAY and not value.dtype.hasobject:
                restores.append(partial(np.copyto, value, value.copy()))
        elif isinstance(value, (dict, list, set, deque)):
            restores.append(_save_container(value))
            items = list(value.values() if isinstance(value, dict) else value) if len(value) <= _MOST_ITEMS else ()
        elif isinstance(value, tuple):
            items = value if len(value) <= _MOST_ITEMS else ()
        elif hasattr(value, "__dict__") and not inside_object:
            restores.append(_save_container(vars(value)))
            items, inside_object = list(vars(value).values()), True
        for item in items:
            self._save(item, restores, inside_object=inside_object)


def _save_container(value: Any) -> Restore:
    """Contents are written back only where they have changed: others may be reading them."""
    saved = list(value.items()) if isinstance(value, Mapping) else list(value)

    def restore() -> None:
        now = list(value.items()) if isinstance(value, Mapping) else list(value)
        if len(now) != len(saved) or any(not _is_same(*pair) for pair in zip(now, saved, strict=True)):
            value.clear()
            value.extend(saved) if isinstance(value, (list, deque)) else value.update(saved)

    return restore


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]  # an item of a dict
    return one is other
