"""Host columns: the columns of a plan in host memory, cast and shaped as they are loaded; nothing moves here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet, RaggedColumn, Rows, joined_spec, loadable_array
from anyaccel.data.casting import first_unrepresentable
from anyaccel.data.roles import listed
from anyaccel.data.transforms.fitted_transform import relevant_transforms
from anyaccel.errors import ColumnError
from anyaccel.graph import Column, Plan, Resolution
from anyaccel.graph.loss_columns import class_axis
from anyaccel.phases.accumulation import ignored_target
from anyaccel.segment import LossTerm, TensorSpec

Batch = Mapping[str, np.ndarray]
"""Columns of a batch in host memory by name, [rows, *shape]."""
HostColumn = np.ndarray | RaggedColumn
"""All rows of a column in host memory: an array [n, *shape], or rows of different length."""


@dataclass(frozen=True, slots=True)
class TargetRange:
    """What losses take as targets.

    Attributes:
        n_classes: class indices are below it; None if they are not.
        probabilities: whether they are numbers from 0 to 1.
        ignored: a class index that counts for nothing and may be out of range; None for none.
        weights: whether they weigh a loss, and are at least 0.
        excluded: a class index that a loss leaves out of its mean, where batches are parted; None for none.
    """

    n_classes: int | None = None
    probabilities: bool = False
    ignored: int | None = None
    weights: bool = False
    excluded: int | None = None


def make_host_columns(
    plan: Plan,
    rows: Mapping[str, Rows],
    ranges: Mapping[str, TargetRange],
    known: Mapping[str, FeatureSet] = MappingProxyType({}),
) -> dict[str, HostColumn]:
    """The columns of a plan in host memory, cast and shaped as the plan loads them.

    Args:
        plan: whose columns.
        rows: the data, by feature set.
        ranges: what the losses take as targets, by value name.
        known: the feature sets that the graph was built for, by label, to explain a missing column.

    Raises:
        ColumnError: data that are not what the plan was made for, targets out of range, or numbers that are too large
            for the dtype in which they are loaded.
    """
    arrays: dict[str, HostColumn] = {}
    for column in plan.columns:
        same = next((other for other in plan.columns if other.name in arrays and same_array(other, column)), None)
        target_range = ranges.get(column.name)
        _check_transformed(column, rows[column.feature_set], known.get(column.feature_set))
        if same is None or ranges.get(same.name) != target_range:
            arrays[column.name] = _host_column(column, rows[column.feature_set], target_range)
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
            cause=f"columns: {listed(rows.columns)}; the transform: {makers[0]}",
            hint="give fresh.transform_like(data), where fresh has the columns that the transform takes",
        )


def _host_column(column: Column, rows: Rows, target_range: TargetRange | None) -> HostColumn:
    stored = joined_spec(rows, column.columns)
    ragged = rows.ragged_column(column.columns[0]) if column.ragged else None
    if ragged is not None and replace(stored, shape=stored.shape[1:]) == _of_entry(column):
        return _ragged_column(column, ragged, rows, target_range)
    if stored != column.stored:
        hint = "give data of this dtype: feature_set.cast({'COLUMN': 'DTYPE'}); a source casts them itself"
        if stored.shape != column.stored.shape:
            hint = f"give rows of this shape: an array of shape {['rows', *column.stored.shape]}".replace("'", "")
            hint += "; a row alone is an array of one row: x[None]" if column.stored.shape[1:] == stored.shape else ""
        raise ColumnError(
            f"{column.shown} is {stored} in these data", cause=f"the graph was built for {column.stored}", hint=hint
        )
    try:
        with np.errstate(over="raise"):
            array = loadable_array(rows, column.columns, column.spec.dtype).reshape(len(rows), *column.spec.shape)
    except FloatingPointError:
        raise _too_large(column, rows.array) from None
    except TypeError:
        raise _no_dtype(column) from None
    if target_range is not None:
        _check_range(column, array, target_range)
    return array


def _of_entry(column: Column) -> TensorSpec:
    """The spec of one entry of the rows of a ragged column."""
    return replace(column.stored, shape=column.stored.shape[1:])


def _ragged_column(column: Column, ragged: RaggedColumn, rows: Rows, target_range: TargetRange | None) -> RaggedColumn:
    try:
        with np.errstate(over="raise"):
            cast = ragged.astype(column.spec.dtype)
    except FloatingPointError:
        raise _too_large(column, rows.array) from None
    except TypeError:
        raise _no_dtype(column) from None
    if target_range is not None:
        _check_range(column, cast.used_values(), target_range)
    return replace(cast, values=cast.values.reshape(-1, *column.spec.shape[1:]))


def _no_dtype(column: Column) -> ColumnError:
    return ColumnError(
        f"{column.shown} cannot be made {column.spec.dtype} in host memory", hint="keep the model in float32"
    )


def _too_large(column: Column, array_of: Callable[[str], np.ndarray]) -> ColumnError:
    """The error for numbers that are infinite in the dtype in which a column is loaded."""
    dtype = np.dtype(column.spec.dtype)
    held = np.dtype(np.float32) if dtype.name == "bfloat16" else dtype  # of the same range
    for name in column.columns:
        array = array_of(name)
        first = first_unrepresentable(array, held) if array.dtype.kind == held.kind == "f" else None
        if first is not None:
            return ColumnError(
                f"column {name!r} is loaded as {dtype}: row {first[0]} holds {first[1]}, which would be infinite",
                cause=f"{dtype} holds numbers up to {np.finfo(held).max}",
                hint="scale the column, as with fit_transform() and a scaler, or give the model a wider dtype",
            )
    return ColumnError(f"{column.shown} has numbers that are too large for {dtype}", hint="scale the column")


def _class_hint(low: int, high: int, n_classes: int) -> str:
    if low >= 1 and high == n_classes:
        return "class indices begin at 0: subtract 1 from the column"
    return (
        "change the model's output_shape, or the column; targets that do not count have an ignore_index: "
        f"Loss('cross_entropy', ignore_index={low if low < 0 else high})"
    )


def _check_range(column: Column, array: np.ndarray, target_range: TargetRange) -> None:
    n_classes, ignored = target_range.n_classes, target_range.ignored
    counted = array if ignored is None else array[array != ignored]
    # the extremes beside NaN, which other checks tell
    low, high = (np.fmin.reduce(counted, None), np.fmax.reduce(counted, None)) if counted.size else (0, 0)
    if target_range.weights and low < 0:
        raise ColumnError(
            f"{column.shown} has the weight {low}",
            cause="weights of a loss are at least 0, and 0 where a row or position does not count",
            hint="give weights of at least 0",
        )
    if target_range.probabilities and (low < 0 or high > 1):
        raise ColumnError(
            f"{column.shown} has the target {low if low < 0 else high}",
            cause="binary_cross_entropy takes targets from 0 to 1",
            hint="write 0 for no and 1 for yes, or use 'mse' for numbers of any size",
        )
    if n_classes is not None and (low < 0 or high >= n_classes):
        raise ColumnError(
            f"{column.shown} has the class index {low if low < 0 else high}",
            cause=f"the model gives {n_classes} classes, 0 to {n_classes - 1}",
            hint=_class_hint(int(low), int(high), n_classes),
        )
    if target_range.excluded is not None and (array == target_range.excluded).any():
        raise ColumnError(
            f"{column.shown} has targets of {target_range.excluded}, which the loss leaves out of its mean, and "
            "batches are accumulated, or shared among replicas: a step would not be that of one batch of all rows",
            hint="leave accumulate out, or write replicas=1; or name the loss: Loss('cross_entropy', ignore_index=...)",
        )


def target_ranges(resolution: Resolution, *, accumulates: bool) -> dict[str, TargetRange]:
    """What losses take as targets, by value name; the fewest classes if several losses take a column."""
    loaded = {column.name: column.spec for column in resolution.plan.columns}
    ranges: dict[str, TargetRange] = {}
    for term in (term for segment in resolution.segments for term in segment.losses):
        for name in (name for name in term.inputs if name in loaded):
            if name in term.inputs[2:] and term.loss.own is None:
                ranges[name] = replace(ranges.get(name, TargetRange()), weights=True)
                continue
            changes = _range_of(term, loaded[name].dtype, resolution, accumulates=accumulates)
            before = ranges.get(name, TargetRange())
            if changes.get("n_classes") is not None and before.n_classes is not None:
                changes["n_classes"] = min(before.n_classes, changes["n_classes"])
                changes["ignored"] = before.ignored if before.ignored == changes["ignored"] else None
            if changes:
                ranges[name] = replace(ranges.get(name, TargetRange()), **changes)
    return ranges


def _range_of(term: LossTerm, dtype: str, resolution: Resolution, *, accumulates: bool) -> dict[str, Any]:
    """What a loss says of a column of this dtype that it takes."""
    if term.loss.own is not None:
        excluded = ignored_target(term.loss) if accumulates and "int" in dtype else None
        return {} if excluded is None else {"excluded": excluded}
    if term.loss.name == "binary_cross_entropy":
        return {"probabilities": True}
    logits = resolution.shapes.specs.get(term.inputs[0])
    if term.loss.name == "cross_entropy" and "int" in dtype and logits is not None:
        axis = class_axis(term.loss.kwargs, logits)
        return {"n_classes": logits.shape[axis], "ignored": term.loss.kwargs.get("ignore_index")}
    return {}


def copy_batch(column: Column, batch: Batch, out: np.ndarray, target_range: TargetRange | None) -> None:
    """Copy the columns of a batch that make up a column of the plan into memory: joined, cast and shaped.

    Raises:
        ColumnError: targets out of range, numbers that are too large for the dtype, or integers that are not exact as
            the floats they are joined with.
    """
    try:
        with np.errstate(over="raise"):
            if len(column.columns) == 1:
                np.copyto(out, batch[column.columns[0]].reshape(out.shape), casting="unsafe")
            else:
                _join(column, batch, out)
    except FloatingPointError:
        raise _too_large(column, batch.__getitem__) from None
    if target_range is not None:
        _check_range(column, out, target_range)


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
            cause=f"{dtype} holds integers to 2**{np.finfo(dtype).nmant + 1} exactly",
            hint=f"make them smaller in the source, or leave {name!r} out of this reference",
        )
