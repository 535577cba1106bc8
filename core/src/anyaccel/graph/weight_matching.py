"""Weight matching: which arrays of a file go where in a model, and all that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ENVIRONMENT_ERRORS, StateError

Names = Mapping[str, str | None] | Callable[[str], str | None] | None
"""Names in a file to names in a model; None leaves out."""
Change = Callable[[str, np.ndarray], np.ndarray]
_MAX_PERMUTED = 6  # axes, of which all orders are tried


@dataclass(kw_only=True)
class Match:
    """Arrays of a file for the names of a model.

    Attributes:
        arrays: what fits, by name in the model, in the model's dtypes.
        missing: names in the model that the file has nothing for.
        unexpected: names in the file that the model does not have.
        mismatched: names in the model, and how the file's array differs in shape or dtype.
        cast: names in the model, and from which dtype to which other.
        transposed: those of the mismatched that would fit with their axes in another order, and the order.
        ambiguous: names in the model whose arrays may have another order of axes, which their shape does not show.
        narrowed: those of the cast that were rounded to a narrower dtype.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    transposed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ambiguous: list[str] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)


def match(
    theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray], names: Names, change: Change | None
) -> Match:
    """Find the array of a file for each name of a model.

    Args:
        theirs: the file's arrays.
        ours: the model's, by every name that it has for them.
        names: the names in the model of those in the file, where they differ.
        change: called with the name in the model and the file's array; gives the array to load.

    Raises:
        StateError: `names` or `change` cannot be used.
    """
    result = Match()
    sources = renamed(theirs, ours, names)
    result.unexpected = [name for target, name in sources.items() if target not in ours]
    for target, name in sources.items():
        if target in ours:
            _take(result, target, name, theirs[name], ours[target], change)
    result.missing = [name for name in ours if name not in sources]
    return result


def renamed(theirs: Mapping[str, np.ndarray], ours: Mapping[str, Any], names: Names) -> dict[str, str]:
    """The name in the file for each name in the model, or for one that the model should have."""
    if isinstance(names, Mapping):
        unknown = [shown(name) for name in names if name not in theirs]
        if unknown:
            reversed_too = all(name in ours and value in theirs for name, value in names.items())
            raise StateError(
                f"names={shown(dict(names))}: the file has no {', '.join(unknown)}",
                available=", ".join(theirs),
                hint="write it the other way round: " * reversed_too + "names={'IN THE FILE': 'IN THE MODEL'}",
            )
    sources: dict[str, str] = {}
    for name in theirs:
        target = _called("names", names, name) if callable(names) else (names or {}).get(name, name)
        if target is None:
            continue
        if not isinstance(target, str):
            raise StateError(
                f"names gives {shown(target)} for {name!r}", hint="give text, or None to leave the array out"
            )
        if target in sources:
            problem = f"names gives {target!r} for {sources[target]!r} and for {name!r}"
            raise StateError(problem, hint="give each array of the file a name of its own")
        sources[target] = name
    return sources


def _called(argument: str, function: Callable[..., Any], name: str, *further: Any) -> Any:
    """What a function of the user gives; its failure names the array."""
    try:
        return function(name, *further)
    except ENVIRONMENT_ERRORS as error:
        error.add_note(f"raised by {argument}={shown(function)} for {name!r}")
        raise
    except Exception as error:
        problem = f"{argument}={shown(function)} failed for {name!r}: {type(error).__name__}: {error}"
        example = "lambda name, array: array" if further else "lambda name: name"
        raise StateError(problem, hint=f"give a function such as {example}") from error


def _take(result: Match, target: str, name: str, given: np.ndarray, own: np.ndarray, change: Change | None) -> None:
    """Add an array of the file to what fits, or to what does not, and why."""
    array = given if change is None else np.asarray(_called("change", change, target, given))
    if array.shape != own.shape:
        result.mismatched[target] = f"{_described(array)} in the file and {_described(own)} in the model"
        order = _order_of_axes(array.shape, own.shape) if change is None else None
        if order is not None:
            result.transposed[target] = order
        return
    if array.dtype != own.dtype:
        if not _is_castable(array, own.dtype):
            lost = _first_lost(array, own.dtype)
            holds = "" if lost is None else f", and holds {lost}, which would be infinite there"
            result.mismatched[target] = f"{_described(array)} in the file and {_described(own)} in the model{holds}"
            return
        result.cast[target] = f"{array.dtype} to {own.dtype}"
        if not np.can_cast(array.dtype, own.dtype, "safe"):
            result.narrowed.append(target)
    if change is None and has_unknown_axes(name, target, array.shape):
        result.ambiguous.append(target)
    result.arrays[target] = array.astype(own.dtype, copy=False)


def _described(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def has_unknown_axes(source: str, target: str, shape: tuple[int, ...]) -> bool:
    """Whether an array may have its axes in another order in the target: its names end with other words, as they do in
    frameworks with another order (weight, kernel), and its shape would be the same.
    """
    lengths = [length for length in shape if length > 1]
    return source.rpartition(".")[2] != target.rpartition(".")[2] and len(set(lengths)) < len(lengths)


def transposing(name: str, order: tuple[int, ...] = (1, 0)) -> str:
    """The argument that brings arrays with this last part of their names into an order of axes, as code."""
    moved = "array.T" if order == (1, 0) else f"array.transpose{order}"
    word, n_axes = name.rpartition(".")[2], len(order)
    return f"change=lambda name, array: {moved} if name.endswith({word!r}) and array.ndim == {n_axes} else array"


def _order_of_axes(given: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of axes in which an array would have the model's shape; None if there is none."""
    if sorted(given) != sorted(own) or len(given) > _MAX_PERMUTED:
        return None
    orders = permutations(range(len(given)))
    return next((order for order in orders if tuple(given[axis] for axis in order) == own), None)


def _is_castable(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether every value keeps its meaning: integers exactly, floats but for rounding."""
    if is_float(array.dtype) and is_float(dtype):
        if np.can_cast(array.dtype, dtype, "safe"):
            return True
        with np.errstate(over="ignore"):
            return bool(np.array_equal(np.isfinite(array), np.isfinite(array.astype(dtype))))
    same_kind = array.dtype.kind == dtype.kind or {array.dtype.kind, dtype.kind} == {"i", "u"}
    return same_kind and np.can_cast(array.dtype, dtype, "safe")


def _first_lost(array: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """The first finite value of a floating array that a floating dtype does not hold; None if there is none."""
    if not (is_float(array.dtype) and is_float(dtype)):
        return None
    with np.errstate(over="ignore"):
        lost = np.isfinite(array) & ~np.isfinite(array.astype(dtype))
    return array[lost].flat[0] if lost.any() else None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating, of NumPy or of those that it lacks (bfloat16, float8)."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))
