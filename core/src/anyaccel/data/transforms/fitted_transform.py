"""Fitted transforms as values: which columns they take and make, and the way back for predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.data.transforms.sklearn_calls import described, inverted, narrowed
from anyaccel.errors import TransformError
from anyaccel.printable import printable

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FittedTransform:
    """A transform as it was fitted to columns of a feature set; `data.transforms` has them, the oldest first.

    Attributes:
        transform: the fitted object, a copy of the given one.
        columns: names of the columns that it takes, joined in this order.
        results: names of the columns that it makes: the same, or the one given as `into=`.
        fit_on: name of the split or view whose rows it was fitted to; `"all"` for all rows.
        role: the role requested for its results; None: each keeps that of its column.
        makes_features: whether a result is a feature of the data that it was fitted to.
        shapes: shape per sample of each of `columns`; `()` for text.
        result_shapes: shape per sample of each of `results`.
    """

    transform: Any
    columns: tuple[str, ...]
    results: tuple[str, ...]
    fit_on: str
    role: str | None
    makes_features: bool
    shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    fillers: np.ndarray = field(repr=False)  # [3, numbers], each in the range of the output in fitting

    def __repr__(self) -> str:
        into = "" if self.results == self.columns else f" into {', '.join(self.results)}"
        name = type(self.transform).__name__
        return printable(f"FittedTransform({name} on {', '.join(self.columns)}{into}, fitted on {self.fit_on!r})")

    @property
    def width(self) -> int:
        """How many numbers a row of its results has."""
        return sum(map(math.prod, self.result_shapes))

    def is_like(self, other: FittedTransform) -> bool:
        """Whether another does the same: it is this one, or was fitted to the same state for the same columns."""
        own, others = ((each.columns, each.results, each.shapes, each.result_shapes) for each in (self, other))
        return own == others and same_state(self.transform, other.transform)

    def undo(self, pieces: Mapping[str, np.ndarray], label: str) -> dict[str, np.ndarray]:
        """Columns as they were before this transform, [n, *shape] by name, from some of its results and others.

        Results that are not among `pieces` are filled with values of their range; if these matter, it is an error.

        Raises:
            TransformError: it has no inverse, or none for these columns alone.
        """
        what = described(self.transform, self.columns, label)
        given = [name for name in self.results if name in pieces]
        tries = self.fillers[: 1 if len(given) == len(self.results) else None]
        first, *others = [self._before(pieces, given, filler, what) for filler in tries]
        for other in others:
            if not all(_same(first[name], other[name]) for name in first):
                missing = [name for name in self.results if name not in pieces]
                raise TransformError(
                    f"{what} cannot be inverted for {', '.join(given)} alone: the result depends on "
                    f"{', '.join(missing)}",
                    hint=f"give all of {', '.join(self.results)} together, or fit a transform to each column",
                )
        rest = {name: values for name, values in pieces.items() if name not in self.results}
        twice = [name for name in first if name in rest]
        if twice:
            raise TransformError(
                f"undoing {what} gives {', '.join(twice)}, which is among the given columns, too",
                hint="bring the columns back one after the other",
            )
        return {**rest, **first}

    def _before(
        self, pieces: Mapping[str, np.ndarray], given: Sequence[str], filler: np.ndarray, what: str
    ) -> dict[str, np.ndarray]:
        first = pieces[given[0]]
        n, fillers = len(first), split_flat(filler[None], self.result_shapes)
        flat = [
            (pieces[name] if name in pieces else np.repeat(part, n, axis=0)).reshape(n, math.prod(part.shape[1:]))
            for name, part in zip(self.results, fillers, strict=True)
        ]
        before = inverted(self.transform, np.concatenate(flat, axis=1), sum(map(math.prod, self.shapes)), what)
        parts = dict(zip(self.columns, split_flat(narrowed(before, first.dtype), self.shapes), strict=True))
        return {name: parts[name] for name in given} if self.results == self.columns else parts


def relevant_transforms(transforms: Sequence[FittedTransform], names: Sequence[str]) -> list[FittedTransform]:
    """The transforms that made columns, or what these were made of; the last first.

    Args:
        transforms: of a feature set, the oldest first.
        names: of the columns.
    """
    reached, relevant = set(names), []
    for fitted in reversed(transforms):
        if reached & set(fitted.results):
            relevant.append(fitted)
            reached = reached - set(fitted.results) | set(fitted.columns)
    return relevant


def result_layout(
    columns: Sequence[str], shapes: Sequence[Shape], width: int, into: str | None, what: str
) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
    """Names and shapes of the columns that a transform makes, of `width` numbers a row together."""
    same = width == sum(map(math.prod, shapes))
    if into is not None or len(columns) == 1:
        return (into or columns[0],), (shapes[0] if same and len(columns) == 1 else (width,),)
    if not same:
        raise TransformError(
            f"{what} gives rows of width {width}, which do not fit into these {len(columns)} columns",
            cause=f"together they are of width {sum(map(math.prod, shapes))}",
            hint="name the one new column with into='NAME', or transform the columns one by one",
        )
    return tuple(columns), tuple(shapes)


def fillers_of(output: np.ndarray) -> np.ndarray:
    """Three rows [3, k] in the range of each of the k numbers of `output` [n, k]: least, any, greatest."""
    if output.dtype == np.object_ or output.dtype.kind in "US":
        output = np.array([sorted(column, key=str) for column in output.T.tolist()], dtype=object).T
        return output[[0, len(output) // 2, -1]]
    return np.stack([np.fmin.reduce(output), output[len(output) // 2], np.fmax.reduce(output)])


def split_flat(flat: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Columns [n, *shape] from their numbers side by side, [n, numbers]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(flat, ends, axis=1)
    return [part.reshape(len(flat), *shape) for part, shape in zip(parts, shapes, strict=True)]


def split_joined(values: np.ndarray, shapes: Sequence[Shape], what: str) -> list[np.ndarray]:
    """Columns [n, *shape] from one array of them, joined along the last axis as models take and give them."""
    leads = {_as_tensor(shape)[:-1] for shape in shapes}
    joined = shapes[0] if len(shapes) == 1 else (*min(leads), sum(_as_tensor(shape)[-1] for shape in shapes))
    if not values.ndim or len(leads) > 1 or _without_ones(values.shape[1:]) != _without_ones(joined):
        raise TransformError(
            f"values of shape {['n', *values.shape[1:]] if values.ndim else []} are not those of {what}",
            cause=f"shapes per sample: {', '.join(str(list(shape)) for shape in shapes)}",
            hint="name the columns that these values stand for",
        )
    if len(shapes) == 1:
        return [values.reshape(len(values), *joined)]
    ends = np.cumsum([_as_tensor(shape)[-1] for shape in shapes])[:-1]
    parts = np.split(values.reshape(len(values), *joined), ends, axis=-1)
    return [part.reshape(len(values), *shape) for part, shape in zip(parts, shapes, strict=True)]


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Columns [n, *shape] as one array: one as it is, several along the last axis, flat if their shapes differ."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part.reshape(len(part), *_as_tensor(part.shape[1:])) for part in parts]
    if len({tensor.shape[1:-1] for tensor in tensors}) > 1:
        tensors = [part.reshape(len(part), math.prod(part.shape[1:])) for part in parts]
    return np.concatenate(tensors, axis=-1)


def _as_tensor(shape: Shape) -> Shape:
    return shape or (1,)


def _without_ones(shape: Shape) -> Shape:
    return tuple(extent for extent in shape if extent != 1)


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


# -- whether two fitted objects are in the same state ------------------------------------------------------------------


def same_state(first: Any, second: Any) -> bool:
    """Whether two objects are the same, or of one type and in the same state: arrays by value, others by attributes.

    Objects that cannot be compared, such as one that refers to itself, count as different.
    """
    try:
        return _equal(first, second)
    except (RecursionError, TypeError, ValueError):
        return False


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        if first.dtype == np.object_:
            return _equal(first.tolist(), second.tolist())
        return bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if hasattr(first, "__dict__") and not isinstance(first, type):
        return _equal(vars(first), vars(second))
    return bool(first == second) or bool(first != first and second != second)
