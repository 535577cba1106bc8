"""Host columns: the columns of a plan in host memory, cast and shaped as they are loaded; nothing moves here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet, Rows, joined_spec, loadable_array
from anyaccel.data.casting import first_unrepresentable
from anyaccel.data.roles import listed
from anyaccel.data.transforms.fitted_transform import relevant_transforms
from anyaccel.errors import ColumnError
from anyaccel.graph import Column, Plan, Resolution

Batch = Mapping[str, np.ndarray]
"""Columns of a batch in host memory by name, [rows, *shape]."""


def make_host_columns(
    plan: Plan,
    rows: Mapping[str, Rows],
    classes: Mapping[str, int],
    known: Mapping[str, FeatureSet] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """The columns of a plan in host memory, cast and shaped as the plan loads them.

    Args:
        plan: whose columns.
        rows: the data, by feature set.
        classes: the number of classes of each column of class indices, by value name.
        known: the feature sets that the graph was built for, by label, to explain a missing column.

    Raises:
        ColumnError: data that are not what the plan was made for, or class indices out of range.
    """
    arrays: dict[str, np.ndarray] = {}
    for column in plan.columns:
        same = next((other for other in plan.columns if other.name in arrays and same_array(other, column)), None)
        n_classes = classes.get(column.name)
        _check_transformed(column, rows[column.feature_set], known.get(column.feature_set))
        if same is None or classes.get(same.name) != n_classes:
            arrays[column.name] = _host_column(column, rows[column.feature_set], n_classes)
        else:
            arrays[column.name] = arrays[same.name]
    return arrays


def same_array(one: Column, other: Column) -> bool:
    """Whether two columns are one array in one place: only their streams differ."""
    return replace(one, name="", stream="", role="") == replace(other, name="", stream="", role="")


def _check_transformed(column: Column, rows: Rows, known: FeatureSet | None) -> None:
    """Explain a column that is missing because a transform of the graph's data made it."""
    missing = [name for name in column.columns if name not in rows.columns]
    makers = relevant_transforms(known.transforms, missing[:1]) if known is not None else []
    if makers and not any(missing[0] in transform.columns for transform in makers):
        raise ColumnError(
            f"{rows.label!r} has no column {missing[0]!r}, which the graph's data have from a transform",
            available=f"columns: {listed(rows.columns)}; the transform: {makers[0]}",
            hint="give fresh.transform_like(data), where fresh has the columns that the transform takes",
        )


def _host_column(column: Column, rows: Rows, classes: int | None) -> np.ndarray:
    stored = joined_spec(rows, column.columns)
    if stored != column.stored:
        raise ColumnError(
            f"{column.shown} is {stored} in these data", available=f"the graph was built for {column.stored}"
        )
    try:
        array = loadable_array(rows, column.columns, column.spec.dtype).reshape(len(rows), *column.spec.shape)
        if classes is not None:
            _check_classes(column, array, classes)
        return array
    except TypeError:
        raise ColumnError(
            f"{column.shown} cannot be made {column.spec.dtype} in host memory", hint="keep the model in float32"
        ) from None


def _check_classes(column: Column, array: np.ndarray, classes: int) -> None:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise ColumnError(
            f"{column.shown} has the class index {low if low < 0 else high}",
            available=f"the model gives {classes} classes, 0 to {classes - 1}",
            hint="change the model's output_shape, or the column",
        )


def class_counts(resolution: Resolution) -> dict[str, int]:
    """The number of classes of each column of class indices, by value name; the smallest if several losses take it."""
    loaded = {column.name: column.spec for column in resolution.plan.columns}
    counts: dict[str, int] = {}
    for term in (term for segment in resolution.segments for term in segment.losses):
        if term.loss.name == "cross_entropy" and term.loss.own is None:
            logits, target = term.inputs
            if target in loaded and "int" in loaded[target].dtype and logits in resolution.shapes.specs:
                n_classes = resolution.shapes.specs[logits].shape[0]
                counts[target] = min(n_classes, counts.get(target, n_classes))
    return counts


def copy_batch(column: Column, batch: Batch, out: np.ndarray, classes: int | None) -> None:
    """Copy the columns of a batch that make up a column of the plan into memory: joined, cast and shaped.

    Raises:
        ColumnError: class indices out of range, or integers that are not exact as the floats they are joined with.
    """
    if len(column.columns) == 1:
        np.copyto(out, batch[column.columns[0]].reshape(out.shape), casting="unsafe")
    else:
        _join(column, batch, out)
    if classes is not None:
        _check_classes(column, out, classes)


def _join(column: Column, batch: Batch, out: np.ndarray) -> None:
    start = 0
    for name in column.columns:
        part = batch[name]
        _check_exact(column, name, part, out.dtype)
        part = part[:, None] if part.ndim == 1 else part
        np.copyto(out[..., start : start + part.shape[-1]], part, casting="unsafe")
        start += part.shape[-1]


def _check_exact(column: Column, name: str, part: np.ndarray, dtype: np.dtype[Any]) -> None:
    if part.dtype.kind not in "iu" or dtype.kind != "f":
        return
    first = first_unrepresentable(part, dtype)
    if first is not None:
        raise ColumnError(
            f"column {name!r} is joined with floats as {dtype}: row {first[0]} holds {first[1]}",
            available=f"{dtype} holds integers to 2**{np.finfo(dtype).nmant + 1} exactly",
            hint=f"make them smaller in the source, or leave {name!r} out of this reference",
        )
