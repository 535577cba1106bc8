"""What a feature set knows of the transforms that made its columns; anyaccel-sklearn fits, applies and undoes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from anyaccel.data.roles import Names, listed, names_of, no_column
from anyaccel.data.rows import Rows
from anyaccel.distributions import SAVED, load
from anyaccel.errors import TransformError


class FittedTransform(Protocol):
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
        class_labels: the labels that it encodes as indices of classes; `()` for another transform.
    """

    @property
    def transform(self) -> Any: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def results(self) -> tuple[str, ...]: ...
    @property
    def fit_on(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def makes_features(self) -> bool: ...
    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def class_labels(self) -> Sequence[Any]: ...

    def is_like(self, other: Any) -> bool:
        """Whether another does the same: it is this one, or was fitted to the same state for the same columns."""

    def get_config(self, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
        """This transform as plain data; its arrays of numbers are added to `arrays`, under `prefix`."""


Fitted = TypeVar("Fitted", bound=FittedTransform)


@dataclass(frozen=True, eq=False)
class Transforms:
    """The transforms of a feature set: none. Those that anyaccel-sklearn makes derive from it.

    Attributes:
        fitted: the transforms, the oldest first.
        applied: what takes each of them back.
    """

    fitted: tuple[FittedTransform, ...] = ()
    applied: tuple[Any, ...] = ()

    def undone(self, rows: Rows, count: int | None = None) -> tuple[Any, Transforms]:
        """Return the Arrow table of `rows` without the last `count` transforms, None for all, and the transforms left.

        Raises:
            TransformError: there is none.
        """
        raise TransformError(
            f"{rows.label!r} has no transform to undo",
            cause="its columns are as they came",
            hint="undo each transform once; predictions come back with inverse() or prediction(..., undo=True)",
        )

    def inverse(self, rows: Rows, values: Any, columns: Names) -> np.ndarray:
        """Values of columns of `rows` in the units before all transforms; see `FeatureSet.inverse`."""
        transform_columns(rows, columns)
        return np.asarray(values)


def transform_columns(rows: Rows, columns: Names, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns of a transform; those in `more` are allowed in addition to the columns of the
    rows.
    """
    names = names_of(columns)
    for name in names:
        if name not in rows.columns and name not in more:
            raise no_column(rows.label, name, rows.columns)
    if not names or len(set(names)) < len(names):
        raise TransformError(
            f"columns={columns!r} of {rows.label!r} names {'a column twice' if names else 'no column'}",
            available=listed(rows.columns),
            hint="name each column once",
        )
    return names


def transforms_of(rows: Rows, other: Any) -> tuple[FittedTransform, ...]:
    """The transforms of a feature set or view, to be applied to `rows`.

    Raises:
        TransformError: it has none.
    """
    source = other.base if isinstance(other, Rows) else None
    transforms: tuple[FittedTransform, ...] = getattr(source, "transforms", ())
    if not transforms:
        raise TransformError(
            f"{rows.label!r} cannot be transformed like {other!r}",
            cause="it has no transforms",
            hint="give the feature set that fit_transform returned; the one that it was called on stays as it is",
        )
    return transforms


def relevant_transforms(transforms: Sequence[Fitted], names: Sequence[str]) -> list[Fitted]:
    """Return the transforms that made columns, or what these were made of; the last first.

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


def read_transforms(configs: Sequence[Any], arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> Transforms:
    """Return the transforms that `get_config` of each wrote.

    Args:
        configs: of the transforms, the oldest first.
        arrays: by the names that they have for them.
        allow: classes of transforms that may be named in addition to those that are known; nothing else is imported.

    Raises:
        ConfigError: malformed, of a class that is not known, or it gives other numbers than when it was written.
        TransformError: its library is not installed.
        MissingDistributionError: anyaccel-sklearn is not installed.
    """
    if not configs:
        return Transforms()
    transforms: Transforms = load(SAVED, "data.transforms")(configs, arrays, allow)
    return transforms
