"""Attribute snapshot: the plain attributes of a model's parts, so that a trial call leaves them as they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

Restore = Callable[[], None]
"""Writes saved contents back into an object."""

_LARGEST_ARRAY = 256 * 2**20  # bytes; a copy of more would cost more than it is worth
_MOST_ITEMS = 1000  # of a container whose items are looked into
_NO_STATE = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, MethodType)


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
        return part, attributes, [restore for value in attributes.values() for restore in self._of(value)]

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

    def _of(self, value: Any, *, inside_object: bool = False) -> Iterator[Restore]:
        """What writes the contents of a value back; nothing for values without contents, or that were seen before."""
        if isinstance(value, (*_NO_STATE, BuiltinFunctionType)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        tensor = self._save_tensor(value)
        if tensor is not None:
            yield tensor
        elif isinstance(value, np.ndarray):
            yield from _save_array(value)
        elif isinstance(value, (dict, list, set, deque)):
            yield _save_container(value)
            items = list(value.values() if isinstance(value, dict) else value)
            for item in items if len(items) <= _MOST_ITEMS else ():
                yield from self._of(item, inside_object=inside_object)
        elif isinstance(value, tuple):
            for item in value if len(value) <= _MOST_ITEMS else ():
                yield from self._of(item, inside_object=inside_object)
        elif hasattr(value, "__dict__") and not inside_object:
            yield _save_container(vars(value))
            for item in list(vars(value).values()):
                yield from self._of(item, inside_object=True)


def _save_array(array: np.ndarray) -> Iterator[Restore]:
    if array.flags.writeable and array.nbytes <= _LARGEST_ARRAY and not array.dtype.hasobject:
        copy = array.copy()
        yield lambda: np.copyto(array, copy)


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
