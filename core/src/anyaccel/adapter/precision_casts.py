"""Computation of a model in another precision: arrays are cast before the call, and results are cast back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.adapter.layer_introspection import LayerLibrary
from anyaccel.adapter.model_specs import ModelSpec
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
    if whole_dtype is not None:
        outputs = tuple(
            output if output is None or output.dtype != dtype else ops.astype(output, whole_dtype) for output in outputs
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


# -- precisions of layers and of the models that exist in every framework ----------------------------------------------


def layers_reason(model: Any, precision: str) -> str:
    """Return why layers of a library cannot be computed in a precision; `""` if they can."""
    wanted = NodePrecision(precision)
    if wanted.is_mixed or precision == model.compute_dtype == "float32":
        return ""
    return f"its layers compute in {wanted.dtype} only if they are created with dtype={wanted.dtype!r}"


@contextmanager
def layers_computing_in(library: LayerLibrary, model: Any, precision: NodePrecision) -> Iterator[None]:
    """Give the layers of a model that compute in float32 the dtype policy of a mixed precision, inside this context."""
    layers = [part for _, part in library.walk(model) if library.is_layer(part)] if precision.is_mixed else []
    plain = [(layer, layer.dtype_policy) for layer in layers if layer.dtype_policy.name == "float32"]
    policy = library.module.DTypePolicy(f"mixed_{precision.dtype}") if plain else None
    try:
        for layer, _ in plain:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, before in plain:
            layer.dtype_policy = before


def codes_reason(spec: ModelSpec, precision: str) -> str:
    """Return why a precision cannot hold the codes of a `TabularSpec` exactly, as 16-bit floats hold few integers; `""`
    if it can, and for other specs.
    """
    dtype = NodePrecision(precision).dtype
    exact = {"bfloat16": 2**8, "float16": 2**11}.get(dtype, 2**24)
    most = max(getattr(spec, "cardinalities", ()), default=0)
    if most <= exact:
        return ""
    return f"its codes of up to {most - 1} are not exact in {dtype}, which is exact up to {exact}"
