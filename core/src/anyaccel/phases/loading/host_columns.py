"""Host columns: the columns of a plan in host memory, with the dtype and shape for loading; nothing moves here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet, RaggedColumn, Rows, joined_spec, loadable_array
from anyaccel.data.arrow_columns import first_unrepresentable
from anyaccel.data.joined_columns import gather
from anyaccel.errors import ColumnError, PhaseError, ShapeError
from anyaccel.graph import Column, Plan, Resolution
from anyaccel.graph.resolve import class_axis
from anyaccel.phases.accumulation import ignored_target
from anyaccel.phases.loading.input_data import check_created_columns
from anyaccel.printable import printable
from anyaccel.segment import LossTerm
from anyaccel.specs import LossTargets, takes_classes
from anyaccel.user_level import user_level

Batch = Mapping[str, np.ndarray]
"""Columns of a batch in host memory by name, [rows, *shape]."""
HostColumn = np.ndarray | RaggedColumn
"""All rows of a column in host memory: an array [n, *shape], or rows of different length; the functions below take both
so that loaders do not ask which one they have."""


def one_shape(columns: Iterable[Column]) -> bool:
    """Whether all batches of as many rows have one shape; otherwise each is padded to its longest row."""
    return not any(column.ragged for column in columns)


def check_resident(phase: str, columns: Iterable[Column]) -> None:
    """Check that the rows of a phase can be resident.

    Raises:
        PhaseError: they differ in length.
    """
    ragged = next((column for column in columns if column.ragged), None)
    if ragged is not None:
        raise PhaseError(
            f"phase {phase!r} has residency='resident', and the rows of {ragged.shown} differ in length",
            cause="batches that are padded to different lengths are always streamed",
            hint="leave residency out, or pad all to one length: pad={'COLUMN': Pad(..., length=...)}",
        )


def note_lengths(error: Exception, columns: Iterable[Column]) -> None:
    """Add a note to an error of a step if rows differ in length.

    A model may have been made for one length, which is known only when a batch of another comes.
    """
    ragged = [column.shown for column in columns if column.ragged]
    if ragged:
        error.add_note(
            f"the rows of {', '.join(ragged)} differ in length, and each batch is padded to its longest row; a model "
            "with a fixed length needs pad={'COLUMN': Pad(..., length=...)}"
        )


def as_arrays(columns: Mapping[str, HostColumn]) -> dict[str, np.ndarray] | None:
    """Return the columns, if the rows of none differ in length."""
    arrays: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        if isinstance(column, RaggedColumn):
            return None
        arrays[name] = column
    return arrays


def stored_values(column: HostColumn) -> np.ndarray:
    """Return the numbers of all rows, without padding."""
    return column.values if isinstance(column, RaggedColumn) else column


def batch_shape(column: HostColumn, n_rows: int, rows: np.ndarray | slice = slice(None)) -> tuple[int, ...]:
    """Return the shape of a batch of `n_rows` rows, which are at most as long as the longest of `rows`."""
    if isinstance(column, RaggedColumn):
        return (n_rows, column.width(rows), *column.values.shape[1:])
    return (n_rows, *column.shape[1:])


def row_shape(column: Column, batch: Batch) -> tuple[int, ...]:
    """Return the shape of the rows of a column in a batch of a source; the length may be the batch's own."""
    shape = column.spec.shape
    return (batch[column.columns[0]].shape[1], *shape[1:]) if column.ragged else shape


def copy_rows(column: HostColumn, rows: np.ndarray | slice, out: np.ndarray) -> None:
    """Copy some rows to `out`, of the shape of their batch."""
    if isinstance(column, RaggedColumn):
        column.fill(rows, out)
    elif isinstance(rows, slice):
        np.copyto(out, column[rows])
    else:
        gather(column, rows, out)


_SUM_TOLERANCE = 0.01
"""Probabilities in 16 bits add up to 1 about so."""


@dataclass(frozen=True, slots=True)
class TargetRange:
    """The targets that losses accept.

    Attributes:
        n_classes: Class indices must be below it; None if they are not class indices.
        probabilities: Whether they are numbers from 0 to 1.
        non_negative: Whether they are at least 0.
        signs: Whether they are -1 or 1.
        class_axis: Axis of class probabilities, which add up to 1; None for other targets.
        loss: Name of the loss that takes them, for messages.
        ignored: A class index that is ignored and may be out of range; None for none.
        weights: Whether they weight a loss, and are at least 0.
        excluded: A class index that a loss leaves out of its mean, if batches are split; None for none.
    """

    n_classes: int | None = None
    probabilities: bool = False
    non_negative: bool = False
    signs: bool = False
    class_axis: int | None = None
    loss: str = ""
    ignored: int | None = None
    weights: bool = False
    excluded: int | None = None


def make_host_columns(
    plan: Plan,
    rows: Mapping[str, Rows],
    ranges: Mapping[str, TargetRange],
    known: Mapping[str, FeatureSet] = MappingProxyType({}),
) -> dict[str, HostColumn]:
    """Return the columns of a plan in host memory, with the dtype and shape of the plan.

    Args:
        plan: The plan with the columns.
        rows: Data, by feature set.
        ranges: Targets that the losses accept, by value name.
        known: Feature sets that the graph was built for, by label, to explain a missing column.

    Raises:
        ColumnError: data that do not match the plan, targets out of range, or numbers that are too large for the dtype
            of the plan.
    """
    arrays: dict[str, HostColumn] = {}
    made: dict[tuple[Column, TargetRange | None], HostColumn] = {}
    for column in plan.columns:
        data, built_on = rows[column.feature_set], known.get(column.feature_set)
        if built_on is not None and not set(column.columns) <= set(data.columns):
            check_created_columns(data, built_on, column.columns)
        target_range = ranges.get(column.name)
        key = (replace(column, name="", stream="", role=""), target_range)  # the same array in the same place
        if key not in made:
            made[key] = _host_column(column, data, target_range)
        arrays[column.name] = made[key]
    return arrays


def same_array(one: Column, other: Column) -> bool:
    """Whether two columns are one array in one place: only their streams differ."""
    return replace(one, name="", stream="", role="") == replace(other, name="", stream="", role="")


def _host_column(column: Column, rows: Rows, target_range: TargetRange | None) -> HostColumn:
    stored = joined_spec(rows, column.columns)
    ragged = rows.ragged_column(column.columns[0]) if column.ragged else None
    if ragged is not None and replace(column.stored, shape=(stored.shape[0], *column.stored.shape[1:])) == stored:
        _check_integers(column, lambda _: ragged.used_values())
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
    if stored != column.stored:
        hint = "cast the data: feature_set.cast({'COLUMN': 'DTYPE'}); in a source, cast each batch"
        if stored.shape != column.stored.shape:
            hint = f"pass rows of this shape: an array of shape {['rows', *column.stored.shape]}".replace("'", "")
            hint += "; for a single row, pass x[None]" if column.stored.shape[1:] == stored.shape else ""
        raise ColumnError(
            f"{column.shown} is {stored} in these data", cause=f"the graph was built for {column.stored}", hint=hint
        )
    _check_integers(column, rows.array)
    try:
        with np.errstate(over="raise"):
            array = loadable_array(rows, column.columns, column.spec.dtype).reshape(len(rows), *column.spec.shape)
    except FloatingPointError:
        raise _too_large(column, rows.array) from None
    except TypeError:
        raise _no_dtype(column) from None
    if target_range is not None:
        if target_range.class_axis is not None and target_range.class_axis >= array.ndim:
            casts = ", ".join(f"{name!r}: 'int64'" for name in column.columns)
            raise ShapeError(
                f"{column.shown} is {stored}, one number for each position; {target_range.loss} takes floats as "
                "probabilities, one for each class",
                hint=f"if these are class indices, cast them: feature_set.cast({{{casts}}}), or y.astype('int64')",
            )
        _check_range(column, array, target_range)
        if target_range.class_axis is not None:
            # Warn of probabilities of classes that do not add up to 1; rows of zeros are ignored on purpose.
            sums = array.sum(axis=target_range.class_axis, dtype=np.float64)
            wrong = (np.abs(sums - 1) > _SUM_TOLERANCE) & (sums != 0)
            if wrong.any():
                first = tuple(int(index) for index in np.argwhere(wrong)[0])
                warnings.warn(
                    printable(
                        f"{column.shown} has probabilities of classes that add up to {sums[first]:.4g} in row "
                        f"{first[0]}, and "
                        f"not to 1 in {int(wrong.sum())} places: the loss weights these rows by their sums. Hint: "
                        "divide them "
                        "by their sum, or set weights explicitly: sample_weight= of the AppliedLoss."
                    ),
                    UserWarning,
                    stacklevel=user_level(),
                )
    return array


def _no_dtype(column: Column) -> ColumnError:
    return ColumnError(
        f"{column.shown} cannot be made {column.spec.dtype} in host memory", hint="keep the model in float32"
    )


def _too_large(column: Column, array_of: Callable[[str], np.ndarray]) -> ColumnError:
    """Create the error for numbers that become infinite in the dtype of the plan."""
    dtype = np.dtype(column.spec.dtype)
    held = np.dtype(np.float32) if dtype.name == "bfloat16" else dtype  # of the same range
    for name in column.columns:
        array = array_of(name)
        first = first_unrepresentable(array, held) if array.dtype.kind == held.kind == "f" else None
        if first is not None:
            return ColumnError(
                f"column {name!r} is loaded as {dtype}: row {first[0]} holds {first[1]}, which would be infinite",
                cause=f"{dtype} holds numbers up to {np.finfo(held).max}",
                hint="scale the column, as with fit_transform() and a scaler, or use a model with a wider dtype",
            )
    return ColumnError(f"{column.shown} has numbers that are too large for {dtype}", hint="scale the column")


def _check_integers(column: Column, array_of: Callable[[str], np.ndarray]) -> None:
    """Check that integers keep their value in the dtype of the plan, which may be narrower.

    Raises:
        ColumnError: one does not.
    """
    stored, dtype = np.dtype(column.stored.dtype), np.dtype(column.spec.dtype)
    if stored.kind not in "iu" or dtype.kind not in "iu" or np.can_cast(stored, dtype, "safe"):
        return
    for name in column.columns:
        first = first_unrepresentable(array_of(name), dtype)
        if first is not None:
            raise ColumnError(
                f"column {name!r} is loaded as {dtype}: row {first[0]} holds {first[1]}",
                cause=f"{dtype} holds integers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}",
                hint="number the values from 0: np.unique(values, return_inverse=True)",
            )


def _class_hint(low: int, high: int, n_classes: int) -> str:
    if low >= 1 and high == n_classes:
        return "class indices start at 0: subtract 1 from the column"
    ignored = f"Loss('cross_entropy', ignore_index={low if low < 0 else high})"
    if low < 0:
        return f"number the classes from 0: np.unique(values, return_inverse=True); to ignore these targets: {ignored}"
    return f"use a model with {high + 1} outputs, one for each class; or, to ignore targets of {high}, {ignored}"


def _check_range(column: Column, array: np.ndarray, target_range: TargetRange) -> None:
    n_classes, ignored = target_range.n_classes, target_range.ignored
    counted = array if ignored is None else array[array != ignored]
    # the extremes beside NaN, which other checks tell
    low, high = (np.fmin.reduce(counted, None), np.fmax.reduce(counted, None)) if counted.size else (0, 0)
    if target_range.weights and low < 0:
        raise ColumnError(
            f"{column.shown} has the weight {low}",
            cause="loss weights must be at least 0; 0 ignores a row or position",
            hint="pass weights of at least 0",
        )
    if (target_range.probabilities and (low < 0 or high > 1)) or (target_range.non_negative and low < 0):
        of_classes, bounded = target_range.class_axis is not None, target_range.probabilities
        what = "probabilities of classes" if of_classes else "targets"
        raise ColumnError(
            f"{column.shown} has the target {low if low < 0 else high}",
            cause=f"{target_range.loss} takes {what} {'from 0 to 1' if bounded else 'of at least 0'}",
            hint="pass probabilities that add up to 1, or integer class indices"
            if of_classes
            else "write 0 for no and 1 for yes, or use 'mse' for numbers of any size"
            if bounded
            else "correct the column, or use 'mse' for numbers of any size",
        )
    if target_range.signs and not np.isin(counted, (-1, 1)).all():
        wrong = counted[~np.isin(counted, (-1, 1))].flat[0]
        if wrong == wrong:  # NaN is told elsewhere
            raise ColumnError(
                f"{column.shown} has the target {wrong}",
                cause=f"{target_range.loss} takes the targets -1 and 1",
                hint="use -1 for no and 1 for yes: 2 * column - 1 converts 0 and 1",
            )
    if n_classes is not None and (low < 0 or high >= n_classes):
        raise ColumnError(
            f"{column.shown} has the class index {low if low < 0 else high}",
            cause=f"the model has {n_classes} classes, 0 to {n_classes - 1}",
            hint=_class_hint(int(low), int(high), n_classes),
        )
    if target_range.excluded is not None and (array == target_range.excluded).any():
        raise ColumnError(
            f"{column.shown} has targets of {target_range.excluded}, which the loss leaves out of its mean, but "
            "batches are accumulated or split over replicas: a step would differ from one on the whole batch",
            hint="leave accumulate out, or write replicas=1; or name the loss: Loss('cross_entropy', ignore_index=...)",
        )


def target_ranges(resolution: Resolution, *, accumulates: bool) -> dict[str, TargetRange]:
    """Return the targets that losses accept, by value name; the fewest classes if several losses take a column."""
    loaded = {column.name: column.spec for column in resolution.plan.columns}
    ranges: dict[str, TargetRange] = {}
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for term in segment.losses:
            for name in term.inputs:
                if name not in loaded:
                    continue
                if name in term.inputs[2:] and term.loss.own is None:
                    ranges[name] = replace(ranges.get(name, TargetRange()), weights=True)
                    continue
                loss, dtype = term.loss, loaded[name].dtype
                logits, changes = resolution.shapes.specs.get(term.inputs[0]), dict[str, Any]()
                if loss.own is not None:
                    excluded = ignored_target(loss) if accumulates and "int" in dtype else None
                    changes = {} if excluded is None else {"excluded": excluded}
                    if name == term.inputs[1]:
                        changes |= _range_of_own(term, dtype, resolution, backend.loss_targets(loss))
                elif loss.name == "binary_cross_entropy":
                    changes = {"probabilities": True, "loss": loss.name}
                elif takes_classes(loss) and logits is not None:
                    axis = class_axis(loss.kwargs, logits)
                    if "int" in dtype:
                        changes = {"n_classes": logits.shape[axis], "ignored": loss.kwargs.get("ignore_index")}
                    else:  # the axis is beside the batch
                        changes = {"probabilities": True, "class_axis": axis + 1, "loss": loss.name}
                before = ranges.get(name, TargetRange())
                if changes.get("n_classes") is not None and before.n_classes is not None:
                    changes["n_classes"] = min(before.n_classes, changes["n_classes"])
                    changes["ignored"] = before.ignored if before.ignored == changes["ignored"] else None
                if changes:
                    ranges[name] = replace(ranges.get(name, TargetRange()), **changes)
    return ranges


def _range_of_own(term: LossTerm, dtype: str, resolution: Resolution, takes: LossTargets | None) -> dict[str, Any]:
    """Return the requirements of a framework's loss for a target column with this dtype."""
    logits = resolution.shapes.specs.get(term.inputs[0])
    if takes is None or logits is None:
        return {}
    changes: dict[str, Any] = {"loss": term.loss.name}
    if takes.kind == "numbers" or (takes.kind != "classes" and len(term.inputs) > 2):  # others may say which count
        return {}
    if takes.kind != "classes":
        return changes | {takes.kind: True}
    if not logits.shape or takes.class_axis == 0:
        return {}
    axis = takes.class_axis - 1 if takes.class_axis > 0 else takes.class_axis % len(logits.shape)
    if "int" in dtype:
        return changes | {"n_classes": logits.shape[axis], "ignored": takes.ignored}
    return changes | {"probabilities": True, "class_axis": axis + 1} if "float" in dtype else {}


def copy_batch(column: Column, batch: Batch, out: np.ndarray, target_range: TargetRange | None) -> None:
    """Copy the columns of a batch that make up a column of the plan into memory: joined, cast and shaped.

    Raises:
        ColumnError: targets out of range, numbers that are too large for the dtype, or integers that are not exact as
            the floats they are joined with.
    """
    _check_integers(column, batch.__getitem__)
    try:
        with np.errstate(over="raise"):
            if len(column.columns) == 1:
                np.copyto(out, batch[column.columns[0]].reshape(out.shape), casting="unsafe")
            else:
                start = 0
                for name in column.columns:
                    part = batch[name]
                    _check_exact(column, name, part, out.dtype)
                    part = part[:, None] if part.ndim == 1 else part
                    np.copyto(out[..., start : start + part.shape[-1]], part, casting="unsafe")
                    start += part.shape[-1]
    except FloatingPointError:
        raise _too_large(column, batch.__getitem__) from None
    if target_range is not None:
        _check_range(column, out, target_range)


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
