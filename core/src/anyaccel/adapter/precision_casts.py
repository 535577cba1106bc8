"""Computation of a model in another precision: arrays are cast before the call, and results are cast back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.formulas import cast
from anyaccel.precision import NodePrecision

OutputsAndBuffers = tuple[tuple[Any, ...], Mapping[str, Any] | None]


def apply_in_precision(
    ops: ArrayOps,
    precision: NodePrecision,
    dtype: Any,
    apply: Callable[..., OutputsAndBuffers],
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
    inputs: tuple[Any, ...],
    scope: AbstractContextManager[Any] | None = None,
) -> OutputsAndBuffers:
    """Call `apply(parameters, buffers, inputs)` in a precision, differentiably.

    Floating parameters and inputs are cast, and so are buffers unless the precision is mixed. Outputs are returned in
    the dtype of the parameters, or of the inputs if no parameter is floating; buffers in their original dtypes.

    Args:
        ops: The framework.
        precision: Precision of the computation.
        dtype: The framework's dtype for it.
        apply: Function that applies the model.
        parameters: Parameters by name.
        buffers: Buffers by name.
        inputs: Inputs of the model.
        scope: Autocast context of the model's library; if set, nothing is cast before the call.
    """
    if scope is not None:
        with scope:
            outputs, after = apply(parameters, buffers, inputs)
    else:
        cast_in = partial(cast_floating, ops, dtype=dtype)
        held = buffers if precision.is_mixed else {name: cast_in(array) for name, array in buffers.items()}
        in_precision = {name: cast_in(array) for name, array in parameters.items()}
        outputs, after = apply(in_precision, held, tuple(map(cast_in, inputs)))
    whole_dtype = own_dtype(ops, parameters, inputs)
    outputs = tuple(
        output if output is None or whole_dtype is None else _back(ops, output, dtype, whole_dtype)
        for output in outputs
    )
    if after is not None:
        after = {name: cast(ops, array, buffers[name].dtype) for name, array in after.items()}
    return outputs, after


def cast_floating(ops: ArrayOps, array: Any, dtype: Any) -> Any:
    """Return the array in a dtype if it is floating; other arrays are returned unchanged."""
    return cast(ops, array, dtype) if ops.kind(array) == "floating" else array


def own_dtype(ops: ArrayOps, parameters: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
    """Return the dtype of the first floating parameter, or of the first floating input; None if neither exists."""
    floating = (array.dtype for array in (*parameters.values(), *inputs) if ops.kind(array) == "floating")
    return next(floating, None)


def _back(ops: ArrayOps, output: Any, dtype: Any, own: Any) -> Any:
    return ops.astype(output, own) if output.dtype == dtype else output
