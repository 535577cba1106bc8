"""`anyaccel checkpoint diff`: in what two checkpoints or saved graphs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anyaccel.cli.checkpoint.saved import Saved, find_saved
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.saved_folder import shards

_POSITION = ("phase", "epoch", "step", "score", "stop_reason")
_NONE = "-"


def run(first: str, second: str, as_json: bool) -> int:
    """Print in what two folders differ; returns 1 if they do, otherwise 0."""
    one, other = find_saved(first), find_saved(second)
    plain = list(_plain_differences(_plain(one), _plain(other)))
    arrays = list(_array_differences(_arrays(one), _arrays(other)))
    if as_json:
        named = [{"name": name, "first": a, "second": b} for name, a, b in plain]
        print_json({"first": one.name, "second": other.name, "values": named, "arrays": arrays})
        return int(bool(plain or arrays))
    if not plain and not arrays:
        print_line(f"{one.name} and {other.name} are equal")
        return 0
    if plain:
        print_table(("value", one.name, other.name), [(name, _shown(a), _shown(b)) for name, a, b in plain])
    if arrays:
        header = ("array", "first", "second", "largest difference")
        print_table(
            header,
            [(array["name"], array["first"] or _NONE, array["second"] or _NONE, _largest(array)) for array in arrays],
        )
    return 1


def _plain(saved: Saved) -> dict[str, Any]:
    """Return configuration and position, by path."""
    position = {name: saved.position[name] for name in _POSITION if name in saved.position}
    return {**dict(_flat("graph", saved.config)), **dict(_flat("position", position))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{path}.{name}", item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            label = item.get("label", i) if isinstance(item, Mapping) else i
            yield from _flat(f"{path}.{label}", item)
    else:
        yield path, value


def _plain_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a != b or (name in one) != (name in other):
            yield name, a, b


def _arrays(saved: Saved) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for file in saved.files:
        prefix = "" if file.group == "state" else f"{file.group}:"
        arrays.update({f"{prefix}{name}": array for name, array in shards.read(saved.storage, file).items()})
    return arrays


def _array_differences(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
            yield {"name": name, "first": _spec(a), "second": _spec(b), "largest": None}
        elif a.tobytes() != b.tobytes():
            yield {"name": name, "first": _spec(a), "second": _spec(b), "largest": _largest_difference(a, b)}


def _spec(array: np.ndarray | None) -> str | None:
    return None if array is None else f"{array.dtype}{list(array.shape)}"


def _largest_difference(one: np.ndarray, other: np.ndarray) -> float | int | str:
    """Return the largest absolute difference, exact for integers; text if it is not finite."""
    if one.dtype.kind in "iu":
        unsigned = np.dtype(f"u{one.dtype.itemsize}")
        high, low = np.maximum(one, other), np.minimum(one, other)
        return int((high.astype(unsigned) - low.astype(unsigned)).max())
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    with np.errstate(all="ignore"):
        difference = float(np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)).max())
    return difference if np.isfinite(difference) else str(difference)


def _shown(value: Any) -> str:
    return _NONE if value is None else str(value)


def _largest(difference: Mapping[str, Any]) -> str:
    largest = difference["largest"]
    return f"{largest:.6g}" if isinstance(largest, float) else str(largest or "")
