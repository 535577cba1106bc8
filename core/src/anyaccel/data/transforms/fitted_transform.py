"""Fitted transforms as values: which columns they take and make, and the way back for predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.data.transforms.sklearn_calls import described, inverted, narrowed
from anyaccel.data.transforms.state_equality import alike
from anyaccel.errors import TransformError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FittedTransform:
    """A transform as it was fitted to columns of a feature set; `data.transforms` has them, the oldest first.

    Attributes:
        transform: the fitted object, a copy of what was given.
        columns: names of the columns that it takes, joined in this order.
        results: names of the columns that it makes: the same, or the one of `into=`.
        fit_on: name of the split or view whose rows it was fitted to; `"all"` for all rows.
        role: the role that was asked for its results; None: each keeps that of its column.
        makes_features: whether a result is a feature of the data that it was fitted to.
        shapes: shape per sample of each of `columns`; `()` for text.
        result_shapes: the same of each of `results`.
    """

    transform: Any
    columns: tuple[str, ...]
    results: tuple[str, ...]
    fit_on: str
    role: str | None
    makes_features: bool
    shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    fillers: np.ndarray = field(repr=False)  # [3, numbers], each in the range of what the transform made in fitting

    def __repr__(self) -> str:
        made = "" if self.results == self.columns else f" into {', '.join(self.results)}"
        name = type(self.transform).__name__
        return f"FittedTransform({name} on {', '.join(self.columns)}{made}, fitted on {self.fit_on!r})"

    @property
    def width(self) -> int:
        """How many numbers a row of its results has."""
        return sum(map(math.prod, self.result_shapes))

    def is_like(self, other: FittedTransform) -> bool:
        """Whether another does the same: it is this one, or was fitted to the same result for the same columns."""
        mine, theirs = ((one.columns, one.results, one.shapes, one.result_shapes) for one in (self, other))
        return mine == theirs and alike(self.transform, other.transform)

    def undo(self, pieces: Mapping[str, np.ndarray], label: str) -> dict[str, np.ndarray]:
        """Columns as they were before this transform, [n, *shape] by name, from some of its results and others.

        Results that are not among `pieces` are filled with values of their range; if it matters which, it is an error.

        Raises:
            TransformError: there is no way back, or none from these columns alone.
        """
        what = described(self.transform, self.columns, label)
        given = [name for name in self.results if name in pieces]
        outcomes = [self._before(pieces, given, filler, what) for filler in self._tries(given)]
        for other in outcomes[1:]:
            if not all(_same(outcomes[0][name], other[name]) for name in outcomes[0]):
                missing = [name for name in self.results if name not in pieces]
                raise TransformError(
                    f"{what} cannot be turned round for {', '.join(given)} alone: the outcome depends on "
                    f"{', '.join(missing)}",
                    hint=f"give all of {', '.join(self.results)} together, or fit a transform to each column",
                )
        rest = {name: values for name, values in pieces.items() if name not in self.results}
        twice = [name for name in outcomes[0] if name in rest]
        if twice:
            raise TransformError(
                f"{what} was undone to give {', '.join(twice)}, which is asked for itself, too",
                hint="bring the columns back one after the other",
            )
        return {**rest, **outcomes[0]}

    def _tries(self, given: Sequence[str]) -> np.ndarray:
        """Fillers to try: one is enough where nothing is filled."""
        return self.fillers[: 1 if len(given) == len(self.results) else None]

    def _before(
        self, pieces: Mapping[str, np.ndarray], given: Sequence[str], filler: np.ndarray, what: str
    ) -> dict[str, np.ndarray]:
        first = pieces[given[0]]
        n, fillers = len(first), cut(filler[None], self.result_shapes)
        flat = [
            (pieces[name] if name in pieces else np.repeat(part, n, axis=0)).reshape(n, math.prod(part.shape[1:]))
            for name, part in zip(self.results, fillers, strict=True)
        ]
        found = inverted(self.transform, np.concatenate(flat, axis=1), sum(map(math.prod, self.shapes)), what)
        parts = dict(zip(self.columns, cut(narrowed(found, first.dtype), self.shapes), strict=True))
        return {name: parts[name] for name in given} if self.results == self.columns else parts


def result_layout(
    columns: Sequence[str], shapes: Sequence[Shape], width: int, into: str | None, what: str
) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
    """Names and shapes of the columns that a transform makes of some, `width` numbers a row.

    Raises:
        TransformError: it takes several columns and makes another number of numbers of them, with no name given.
    """
    same = width == sum(map(math.prod, shapes))
    if into is not None or len(columns) == 1:
        return (into or columns[0],), (shapes[0] if same and len(columns) == 1 else (width,),)
    if not same:
        raise TransformError(
            f"{what} gives rows of width {width}, which do not fit into these {len(columns)} columns",
            available=f"together they are of width {sum(map(math.prod, shapes))}",
            hint="name the one new column with into='NAME', or transform the columns one by one",
        )
    return tuple(columns), tuple(shapes)


def fillers_of(made: np.ndarray) -> np.ndarray:
    """Three rows [3, k] within the range of each of the k numbers of `made` [n, k]: the least, some, the greatest."""
    if made.dtype == np.object_ or made.dtype.kind in "US":
        made = np.array([sorted(column, key=str) for column in made.T.tolist()], dtype=object).T
        return made[[0, len(made) // 2, -1]]
    return np.stack([np.fmin.reduce(made), made[len(made) // 2], np.fmax.reduce(made)])


def cut(flat: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Columns [n, *shape] of their numbers side by side, [n, numbers]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(flat, ends, axis=1)
    return [part.reshape(len(flat), *shape) for part, shape in zip(parts, shapes, strict=True)]


def split_joined(values: np.ndarray, shapes: Sequence[Shape], what: str) -> list[np.ndarray]:
    """Columns [n, *shape] of one array of them, joined along the last axis as models get and give them.

    Raises:
        TransformError: the array is not of that shape; axes of length 1 do not count.
    """
    leads = {_as_tensor(shape)[:-1] for shape in shapes}
    joined = shapes[0] if len(shapes) == 1 else (*min(leads), sum(_as_tensor(shape)[-1] for shape in shapes))
    if not values.ndim or len(leads) > 1 or _without_ones(values.shape[1:]) != _without_ones(joined):
        raise TransformError(
            f"values of shape {['n', *values.shape[1:]] if values.ndim else []} are not those of {what}",
            available=f"shapes per sample: {', '.join(str(list(shape)) for shape in shapes)}",
            hint="name the columns that these values stand for",
        )
    if len(shapes) == 1:
        return [values.reshape(len(values), *joined)]
    ends = np.cumsum([_as_tensor(shape)[-1] for shape in shapes])[:-1]
    parts = np.split(values.reshape(len(values), *joined), ends, axis=-1)
    return [part.reshape(len(values), *shape) for part, shape in zip(parts, shapes, strict=True)]


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Columns [n, *shape] in one array: one as it is, several along the last axis, flat where they differ."""
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


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
