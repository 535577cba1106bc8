"""Containers of tensors: apply a function to every leaf of nested dicts, lists, tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from anyaccel.errors import MoveError

Function = Callable[[Any], Any]


def map_leaves(obj: Any, function: Function, is_leaf: Callable[[Any], Any]) -> Any:
    """Return `obj` with `function` applied to each leaf; the same object if no leaf changed.

    Args:
        obj: A leaf, or a container: a mapping, list, tuple, named tuple or dataclass, or an object whose class has
            `__anyaccel_move__(self, move)`, which is called with this mapping as `move`.
        function: Function called with each leaf.
        is_leaf: Whether an object of any other type than dict, list and tuple is a leaf although it is a container.

    Raises:
        MoveError: a container cannot be rebuilt from its content.
    """
    hook = getattr(type(obj), "__anyaccel_move__", None)
    if hook is not None:
        return hook(obj, lambda inner: map_leaves(inner, function, is_leaf))
    if type(obj) not in (dict, list, tuple) and is_leaf(obj):
        return function(obj)
    if isinstance(obj, Mapping):
        mapped = {key: map_leaves(value, function, is_leaf) for key, value in obj.items()}
        return obj if _unchanged(mapped.values(), obj.values()) else _mapping(obj, mapped)
    if isinstance(obj, (list, tuple)):
        items = [map_leaves(value, function, is_leaf) for value in obj]
        return obj if _unchanged(items, obj) else _sequence(obj, items)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return _dataclass(obj, lambda value: map_leaves(value, function, is_leaf))
    return function(obj)


def leaves(obj: Any, is_leaf: Callable[[Any], Any]) -> list[Any]:
    """The leaves of `obj` in order; see `map_leaves`."""
    collected: list[Any] = []

    def collect(leaf: Any) -> Any:
        collected.append(leaf)
        return leaf

    map_leaves(obj, collect, is_leaf)
    return collected


def _unchanged(after: Iterable[Any], before: Iterable[Any]) -> bool:
    return all(new is old for new, old in zip(after, before, strict=True))


def _mapping(obj: Any, mapped: dict[Any, Any]) -> Any:
    if type(obj) is dict:
        return mapped
    if isinstance(obj, MutableMapping):
        result = copy.copy(obj)  # keeps what else the mapping has, such as a default factory
        for key, value in mapped.items():  # some, such as the outputs of transformers, have no `update`
            result[key] = value
        return result
    return _rebuilt(obj, mapped)


def _sequence(obj: Any, items: list[Any]) -> Any:
    if hasattr(obj, "_make"):
        return obj._make(items)
    return items if type(obj) is list else _rebuilt(obj, items)


def _rebuilt(obj: Any, content: Any) -> Any:
    try:
        return type(obj)(content)
    except TypeError:
        problem = f"a {type(obj).__name__} cannot be rebuilt from its content"
        raise MoveError(problem, hint="define __anyaccel_move__(self, move) in its class") from None


def _dataclass(obj: Any, mapping: Function) -> Any:
    """Return a copy with mapped fields, made without the constructor, which may take other arguments."""
    values = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj) if hasattr(obj, field.name)}
    mapped = {name: mapping(value) for name, value in values.items()}
    if _unchanged(mapped.values(), values.values()):
        return obj
    result = copy.copy(obj)
    for name, value in mapped.items():
        object.__setattr__(result, name, value)
    return result
