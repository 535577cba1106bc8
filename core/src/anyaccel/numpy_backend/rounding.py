"""Modules in other precisions: what enters and leaves a module is rounded to the precision, also on the way back.

NumPy has no bfloat16, and computes float16 slowly and by its own rules. So values of 16 bits are kept in float32 as the
nearest ones that the narrow dtype has: a module computes in float32 inside, as units for matrix products do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend.sim_array import Array, bare, put_like
from anyaccel.precision import NodePrecision

Round = Callable[[Any], Any]


def rounded_vjp(
    precision: NodePrecision,
    vjp: Callable[[Mapping[str, Array], tuple[Array, ...]], VjpResult],
    parameters: Mapping[str, Array],
    inputs: tuple[Array, ...],
) -> VjpResult:
    """A module in a precision: what enters it and leaves it is rounded, and so are its cotangents and gradients.

    Args:
        precision: in which to compute.
        vjp: the module, of parameters and inputs.
        parameters: by name, of any floating dtype, which is that of gradients and outputs.
        inputs: of the module.
    """
    into = _rounding(precision.dtype)
    quiet = partial(np.errstate, over="ignore", invalid="ignore")  # as other frameworks compute with infinities
    with quiet():
        applied = vjp({name: into(array) for name, array in parameters.items()}, tuple(map(into, inputs)))
    own = next((array.dtype for array in (*parameters.values(), *inputs) if array.dtype.kind == "f"), None)

    def back(array: Any) -> Any:
        is_floating = array is not None and own is not None and array.dtype.kind == "f"
        return into(array).astype(own) if is_floating else array

    def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], Sequence[Any]]:
        with quiet():
            gradients, pulled = applied.pullback(tuple(map(into, cotangents)))
        return {name: back(array) for name, array in gradients.items()}, [
            None if array is None else into(array).astype(x.dtype) for array, x in zip(pulled, inputs, strict=True)
        ]

    return VjpResult(tuple(map(back, applied.outputs)), pullback, applied.buffers)


def _rounding(dtype: str) -> Round:
    """What rounds floating arrays to a dtype: 16 bits in float32, other dtypes as they are."""
    narrow = {"bfloat16": _to_bfloat16, "float16": _to_float16}.get(dtype)

    def into(array: Any) -> Any:
        if array.dtype.kind != "f":
            return array
        return array.astype(dtype) if narrow is None else put_like(narrow(bare(array)), array)

    return into


def _to_float16(array: Array) -> Array:
    with np.errstate(over="ignore"):  # what float16 does not reach is infinite there
        return np.asarray(array, np.float32).astype(np.float16).astype(np.float32)


def _to_bfloat16(array: Array) -> Array:
    """To the nearest with 8 significant bits, to the even one of two; NaN and infinities stay."""
    plain = np.ascontiguousarray(array, np.float32)
    bits = plain.view(np.uint32)
    with np.errstate(over="ignore"):
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(plain), nearest.astype(np.uint32).view(np.float32), plain).reshape(np.shape(array))
