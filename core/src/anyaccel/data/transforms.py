"""The transforms that a feature set applied to its columns; anyaccel-sklearn fits, applies and undoes them."""

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
    """A transform fitted to columns of a feature set; `data.transforms` has them, the oldest first.

    Attributes:
        transform: The fitted object, a copy of the given one.
        columns: Names of its input columns, joined in this order.
        results: Names of its result columns: the same, or the one given as `into=`.
        fit_on: Name of the split or view that it was fitted to; `"all"` for all rows.
        role: The role requested for its results; None if each keeps that of its column.
        makes_features: Whether a result is a feature of the data that it was fitted to.
        shapes: Shape per sample of each of `columns`; `()` for text.
        result_shapes: Shape per sample of each of `results`.
        class_labels: The labels that it encodes as indices of classes; `()` for another transform.
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
        """Return this transform as plain data; its arrays of numbers are added to `arrays`, under `prefix`."""


Fitted = TypeVar("Fitted", bound=FittedTransform)


@dataclass(frozen=True, eq=False)
class Transforms:
    """The transforms of a feature set; the base class is empty. The transforms of anyaccel-sklearn derive from it.

    Attributes:
        fitted: The transforms, the oldest first.
        applied: The inverse of each.
    """

    fitted: tuple[FittedTransform, ...] = ()
    applied: tuple[Any, ...] = ()

    def undone(self, rows: Rows, count: int | None = None) -> tuple[Any, Transforms]:
        """Return the Arrow table of `rows` without the last `count` transforms, None for all, and the transforms left.

        Raises:
            TransformError: there is no transform.
        """
        raise TransformError(
            f"{rows.label!r} has no transform to undo",
            cause="its columns are unchanged",
            hint="undo each transform only once; use inverse() or prediction(..., undo=True) for predictions",
        )

    def inverse(self, rows: Rows, values: Any, columns: Names) -> np.ndarray:
        """Convert values of columns of `rows` to the units before all transforms; see `FeatureSet.inverse`."""
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
        TransformError: it has no transforms.
    """
    source = other.base if isinstance(other, Rows) else None
    transforms: tuple[FittedTransform, ...] = getattr(source, "transforms", ())
    if not transforms:
        raise TransformError(
            f"{rows.label!r} cannot be transformed like {other!r}",
            cause="it has no transforms",
            hint="pass the feature set that fit_transform returned; the original one is unchanged",
        )
    return transforms


def relevant_transforms(transforms: Sequence[Fitted], names: Sequence[str]) -> list[Fitted]:
    """Return the transforms that created columns or their sources; the last first.

    Args:
        transforms: Transforms of a feature set, the oldest first.
        names: Names of the columns.
    """
    reached, relevant = set(names), []
    for fitted in reversed(transforms):
        if reached & set(fitted.results):
            relevant.append(fitted)
            reached = reached - set(fitted.results) | set(fitted.columns)
    return relevant


def read_transforms(configs: Sequence[Any], arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> Transforms:
    """Rebuild transforms from the output of `get_config` of each.

    Args:
        configs: Configurations of the transforms, the oldest first.
        arrays: Arrays by name in the configurations.
        allow: Classes of transforms that may be named in addition to the known ones; nothing else is imported.

    Raises:
        ConfigError: malformed, of an unknown class, or its numbers differ from those when it was written.
        TransformError: its library is not installed.
        MissingDistributionError: anyaccel-sklearn is not installed.
    """
    if not configs:
        return Transforms()
    transforms: Transforms = load(SAVED, "data.transforms")(configs, arrays, allow)
    return transforms
