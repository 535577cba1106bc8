"""A model computed in another precision: arrays are cast on their way in, and back on their way out."""

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
    """What `apply(parameters, buffers, inputs)` gives, computed in a precision; differentiable as the casts are.

    Floating parameters and inputs are cast, buffers too unless the precision is mixed. Outputs come back in the dtype
    of the parameters (of the inputs, where there are none), and buffers in their own.

    Args:
        ops: the framework.
        precision: in which to compute.
        dtype: the framework's own dtype for it.
        apply: the model.
        parameters: by name.
        buffers: by name.
        inputs: of the model.
        scope: a context in which the model's own library casts, so that nothing is cast on the way in.
    """
    if scope is not None:
        with scope:
            outputs, after = apply(parameters, buffers, inputs)
    else:
        cast_in = partial(cast_floating, ops, dtype=dtype)
        held = buffers if precision.is_mixed else {name: cast_in(array) for name, array in buffers.items()}
        given = {name: cast_in(array) for name, array in parameters.items()}
        outputs, after = apply(given, held, tuple(map(cast_in, inputs)))
    own = own_dtype(ops, parameters, inputs)
    outputs = tuple(output if output is None or own is None else _back(ops, output, dtype, own) for output in outputs)
    if after is not None:
        after = {name: cast(ops, array, buffers[name].dtype) for name, array in after.items()}
    return outputs, after


def cast_floating(ops: ArrayOps, array: Any, dtype: Any) -> Any:
    """Return the array in a dtype if it is floating; others are as they are."""
    return cast(ops, array, dtype) if ops.kind(array) == "floating" else array


def own_dtype(ops: ArrayOps, parameters: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
    """Return the dtype of the first floating parameter, otherwise input; None without any."""
    floating = (array.dtype for array in (*parameters.values(), *inputs) if ops.kind(array) == "floating")
    return next(floating, None)


def _back(ops: ArrayOps, output: Any, dtype: Any, own: Any) -> Any:
    return ops.astype(output, own) if output.dtype == dtype else output
