"""Loss columns: the form in which a loss takes its targets and weights; nothing broadcasts or changes silently."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from anyaccel.backend import ComputingBackend
from anyaccel.data import joined_spec
from anyaccel.data.roles import brief
from anyaccel.errors import ShapeError, SpecError
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.input_columns import ColumnSelection
from anyaccel.graph.shape_inference import cast, is_floating
from anyaccel.segment import TensorSpec
from anyaccel.specs import LossTargets, takes_classes


def target_spec(
    loss: AppliedLoss, selection: ColumnSelection, output: TensorSpec, takes: LossTargets | None
) -> TensorSpec:
    """The form in which a loss compares columns with an output.

    Args:
        loss: the loss.
        selection: the columns.
        output: what the loss compares them with.
        takes: what a loss of a framework says of them; numbers are compared as floats, also where they are stored as
            integers or bools, which several losses of torch refuse.

    Raises:
        ShapeError: the shapes do not fit; names the node and both shapes.
        SpecError: the dtype does not fit.
    """
    names = selection.names
    stored, name = joined_spec(selection.feature_set, names), f"{selection.feature_set.label}.{brief(names)}"
    if loss.loss.own is not None:
        own_dtype = "float32" if output.dtype == "bfloat16" else output.dtype  # NumPy has no bfloat16
        compared = takes is not None and takes.kind != "classes"
        stored = replace(stored, dtype=own_dtype) if compared else cast(stored, own_dtype)
        # For a framework's own loss, which compares as it likes: [n] is aligned with [n, 1], so that none broadcasts
        same = _without_ones(stored.shape) == _without_ones(output.shape)
        return replace(stored, shape=output.shape) if same else stored
    _refuse_one_class(loss, output)
    if takes_classes(loss.loss) and not is_floating(stored.dtype):
        wanted = positions(loss, output)
        if not output.shape or _without_ones(stored.shape) != _without_ones(wanted) or stored.dtype == "bool":
            raise _unfit(loss, stored, output, name)
        return TensorSpec(wanted, "int64")
    if not is_floating(stored.dtype):
        dtypes = dict.fromkeys(names, output.dtype if is_floating(output.dtype) else "float32")
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} compares {output.dtype} outputs with {name}, which is {stored.dtype}",
            hint=f"build the graph on a copy with another dtype: feature_set.cast({dtypes})",
        )
    chosen = [key for key in ("ignore_index", "class_weights") if key in loss.loss.kwargs]
    if chosen:
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} has {chosen[0]}, which is for class indices, and {name} has "
            "probabilities",
            hint="give mask= or sample_weight= instead",
        )
    dtype = "float32" if output.dtype in ("bfloat16", "float16") else output.dtype  # in which losses are computed
    return replace(stored, dtype=dtype, shape=_aligned(loss, stored, output, name))


def check_outputs(loss: AppliedLoss, output: TensorSpec, other: TensorSpec, name: str) -> None:
    """Check that a named loss can compare two outputs.

    Raises:
        ShapeError: it would have to broadcast or reshape one.
    """
    _refuse_one_class(loss, output)
    indices = takes_classes(loss.loss) and not is_floating(other.dtype)
    if other.shape != (positions(loss, output) if indices else output.shape):
        raise _unfit(loss, other, output, name)


def is_indices(loss: AppliedLoss, target: TensorSpec) -> bool:
    """Whether a target of this spec has class indices."""
    return takes_classes(loss.loss) and not is_floating(target.dtype)


def class_axis(settings: Any, output: TensorSpec) -> int:
    """The axis of the classes within a sample, from the settings of `cross_entropy`; -1 without axes."""
    axis: int = settings.get("class_axis", -1)
    return axis - 1 if axis > 0 else axis % len(output.shape) if output.shape else -1


def positions(loss: AppliedLoss, output: TensorSpec) -> tuple[int, ...]:
    """The shape of what a named loss is a mean over, per sample: elements, or positions that have classes each.

    Raises:
        ShapeError: the output has no such axis of classes.
    """
    if not takes_classes(loss.loss) or not output.shape:
        return output.shape
    axis, given = class_axis(loss.loss.kwargs, output), loss.loss.kwargs.get("class_axis", -1)
    if given == 0 or axis >= len(output.shape) or given < -len(output.shape):
        raise ShapeError(
            f"{loss.loss.name} on node {loss.on!r} has class_axis={given}, and its output is {output} after the batch",
            cause="axis 0 is the batch",
            available=f"1 to {len(output.shape)}, or -1",
            hint="write class_axis=1 for [batch, classes, ...], or leave it out for [batch, ..., classes]",
        )
    return (*output.shape[:axis], *output.shape[axis + 1 :])


def check_weighing(loss: AppliedLoss, output: TensorSpec, backend: ComputingBackend, *, by_column: bool) -> None:
    """Check that a backend has what a named loss asks for, and that what counts is known before anything is computed.

    Args:
        loss: the loss.
        output: that it takes.
        backend: of its node.
        by_column: whether its targets are a column.

    Raises:
        SpecError: it is not so.
    """
    if loss.loss.own is not None:
        return
    settings = loss.loss.kwargs
    has_positions = takes_classes(loss.loss) and math.prod(positions(loss, output)) > 1
    if not backend.weighs_losses and (settings or loss.weights or has_positions):
        asked = [*settings, *(name for name in ("sample_weight", "mask") if getattr(loss, name) is not None)]
        raise SpecError(
            f"node {loss.on!r}: {backend.framework} does not support {loss.loss.name!r} with "
            f"{', '.join(asked) or 'classes at several positions'}",
            hint="use a loss of the framework's own, or a node of another framework",
        )
    chosen = [name for name in ("ignore_index", "class_weights") if name in settings]
    if chosen and not by_column:
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} has {chosen[0]}, and its targets are an output of another node",
            cause=f"{chosen[0]} where the targets are a column",
            hint="name a column of targets in inputs=, or give mask= or sample_weight= instead",
        )
    n_weights = len(settings.get("class_weights", ()))
    n_classes = output.shape[class_axis(settings, output)] if n_weights and output.shape else n_weights
    if n_weights != n_classes:
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} has {n_weights} class_weights, and its output has {n_classes} classes",
            hint="give a weight for each class, in the order of their indices",
        )


def weight_spec(
    loss: AppliedLoss, selection: ColumnSelection, output: TensorSpec, shape: tuple[int, ...] | None
) -> TensorSpec:
    """The form in which a loss takes a column that weighs it.

    Args:
        loss: the loss.
        selection: the column.
        output: what the loss takes.
        shape: of the loss's positions per sample; None where any will do.

    Raises:
        ShapeError: the column has neither one weight for each sample nor one for each position.
    """
    stored = joined_spec(selection.feature_set, selection.names)
    dtype = "float64" if output.dtype == "float64" else "float32"
    if shape is None:
        return TensorSpec(stored.shape, dtype)
    for n_axes in range(len(shape) + 1):
        if _without_ones(stored.shape) == _without_ones(shape[:n_axes]):
            return TensorSpec(shape[:n_axes], dtype)
    name = f"{selection.feature_set.label}.{brief(selection.names)}"
    raise ShapeError(
        f"{loss.loss.name} on node {loss.on!r} is weighted by {name}, {stored} per sample, and has losses of shape "
        f"{list(shape)} per sample",
        available="one weight for each sample, [], or for each position: the first axes of that shape",
        hint="choose another column, or give this one such a shape",
    )


def _refuse_one_class(loss: AppliedLoss, output: TensorSpec) -> None:
    """The softmax of a single logit is always 1: the loss would be 0 and train nothing."""
    if not takes_classes(loss.loss) or not output.shape:
        return
    positions(loss, output)
    if output.shape[class_axis(loss.loss.kwargs, output)] == 1:
        raise ShapeError(
            f"{loss.loss.name} on node {loss.on!r} needs at least two classes, and its output {output} has one",
            hint="use 'mse' for a number, 'binary_cross_entropy' for yes or no, or one output for each class",
        )


def _aligned(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> tuple[int, ...]:
    if _without_ones(stored.shape) != _without_ones(output.shape):
        raise _unfit(loss, stored, output, name)
    return output.shape


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _unfit(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> ShapeError:
    wants = (
        "logits [..., classes] and class indices [...], or probabilities [..., classes]"
        if takes_classes(loss.loss)
        else "the same shape"
    )
    return ShapeError(
        f"{loss.loss.name} on node {loss.on!r} cannot compare its output {output} with {name}, {stored}; "
        "losses never broadcast",
        available=wants,
        hint=_class_axis_hint(loss, stored, output)
        or f"change the model's output_shape, or choose another column{_class_cast(loss, stored, name)}",
    )


def _class_axis_hint(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec) -> str:
    """Where the classes come first, as in torch's own loss."""
    fits = takes_classes(loss.loss) and len(output.shape) > 1 and output.shape[1:] == stored.shape
    return "if the classes come first, say so: Loss('cross_entropy', class_axis=1)" if fits else ""


def _class_cast(loss: AppliedLoss, stored: TensorSpec, name: str) -> str:
    if not takes_classes(loss.loss) or not is_floating(stored.dtype) or math.prod(stored.shape) != 1:
        return ""
    return f", or if these are class indices say so: feature_set.cast({{{name.partition('.')[2]!r}: 'int64'}})"
