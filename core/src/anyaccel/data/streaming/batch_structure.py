"""Structure: which part of a batch, or of an item, is which column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pyarrow as pa

from anyaccel.data.roles import listed
from anyaccel.data.streaming.to_numpy import is_tensor
from anyaccel.errors import SourceError
from anyaccel.suggestions import did_you_mean


@dataclass(frozen=True, slots=True)
class Parts:
    """The columns of a batch or item.

    Attributes:
        values: of the columns that have a role, by name, as they were given.
        keys: names of all that was given by name; empty where it came by position.
    """

    values: Mapping[str, Any]
    keys: frozenset[str]


def parts_of(place: object, given: Any, names: Sequence[str]) -> Parts:
    """The columns `names` of a batch or item.

    Taken by name from mappings, data classes, named tuples and Arrow tables; else by position from tuples and lists,
    one part for each name, those within parts in their turn; what is neither is the only column.

    Raises:
        SourceError: a column is missing, or there are more or fewer parts than names.
    """
    named = _named(given, names)
    if named is not None:
        keys, read = named
        return Parts({name: _picked(place, name, keys, read) for name in names}, frozenset(map(str, keys)))
    if not _has_parts(given, names):
        return _by_position(place, [given], names)
    listed_parts = list(given)
    if len(listed_parts) != len(names) or any(_named(part, ()) for part in listed_parts):
        return _mixed(place, listed_parts, names)
    return _by_position(place, listed_parts, names)


def _named(given: Any, names: Sequence[str]) -> tuple[list[str], Callable[[str], Any]] | None:
    """Names of what is given by name, and how to read it; None where it comes by position."""
    if isinstance(given, (pa.Table, pa.RecordBatch)):
        return list(given.schema.names), given.column
    if is_dataclass(given) and not isinstance(given, type):
        return [field.name for field in fields(given)], lambda name: getattr(given, name)
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        there = [str(name) for name in given._fields]
        return (there, lambda name: getattr(given, name)) if names and set(names) <= set(there) else None
    is_series = hasattr(given, "iloc") and not hasattr(given, "columns")
    if isinstance(given, Mapping) or (hasattr(given, "keys") and hasattr(given, "__getitem__") and not is_series):
        return list(given.keys()), given.__getitem__
    return None


def _picked(place: object, name: str, keys: Iterable[str], read: Callable[[str], Any]) -> Any:
    if name not in keys:
        raise SourceError(f"{place} has no column {name!r}", available=listed(keys), hint=did_you_mean(name, keys))
    return read(name)


def _has_parts(given: Any, names: Sequence[str]) -> bool:
    """Whether a batch consists of parts; a list of numbers, or of lists of them, may be the only column itself."""
    if isinstance(given, tuple):
        return True
    return isinstance(given, list) and (len(names) > 1 or _are_columns(given))


def _are_columns(given: Sequence[Any]) -> bool:
    """Whether a list is of arrays or tensors with rows, not of numbers."""
    return bool(given) and all(is_tensor(part) and len(part.shape) > 0 for part in given)


def _by_position(place: object, given: Sequence[Any], names: Sequence[str]) -> Parts:
    if len(given) != len(names):
        shown = f"{len(given)} part{'' if len(given) == 1 else 's'}"
        raise SourceError(
            f"{place} has {shown} for {len(names)} columns",
            available=f"columns: {listed(names)}; parts: {listed(type(part).__name__ for part in given)}",
            hint="name one column for each part (features=, targets=, tags=), or give mappings by name",
        )
    return Parts(dict(zip(names, given, strict=True)), frozenset())


def _mixed(place: object, given: Sequence[Any], names: Sequence[str]) -> Parts:
    """Parts within parts: columns by name from mappings among them, and the rest by position."""
    values: dict[str, Any] = {}
    keys: list[str] = []
    rest: list[Any] = []
    for part in given:
        named = _named(part, ())
        if named is not None:
            keys += map(str, named[0])
            values.update({name: named[1](name) for name in names if name in named[0]})
        elif isinstance(part, tuple) or (isinstance(part, list) and _are_columns(part)):
            rest += part
        else:
            rest.append(part)
    left = [name for name in names if name not in values]
    return Parts({**values, **_by_position(place, rest, left).values}, frozenset(keys))
