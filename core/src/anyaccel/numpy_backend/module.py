"""The facts that the backend needs from a Module: its only input, and the specs of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyaccel.adapter.array_module import Module as Module
from anyaccel.adapter.array_module import Values as Values
from anyaccel.errors import ShapeError
from anyaccel.numpy_backend.sim_array import Array, SimArray, put_like
from anyaccel.segment import TensorSpec


def single_input(layer: str, inputs: Sequence[Array]) -> Array:
    """Return the only input of a layer.

    Raises:
        ShapeError: none, or several.
    """
    if len(inputs) != 1:
        raise ShapeError(f"{layer} takes one input, got {len(inputs)}", hint="join them with a ConcatNode")
    return inputs[0]


def output_specs(module: Module, inputs: Sequence[TensorSpec], *, train: bool = False) -> tuple[TensorSpec, ...]:
    """Return the specs of a built module's outputs, from a batch of two samples (`Module.example`).

    Raises:
        ShapeError: its outputs are not arrays [batch, ...].
        Exception: any exception of the module.
    """
    like = next(iter(module.parameters.values()), None)
    batch = tuple(array if isinstance(array, SimArray) else put_like(array, like) for array in module.example(inputs))
    outputs = module.apply({**module.parameters, **module.buffers}, batch, train=train, key=0).outputs
    for output in outputs:
        if not isinstance(output, (np.ndarray, np.generic)) or output.shape[:1] != (2,):
            shape = list(output.shape) if hasattr(output, "shape") else type(output).__name__
            raise ShapeError(
                f"{type(module).__name__} returned {shape} for a batch of 2 samples",
                hint="return arrays with the batch as their first axis",
            )
    return tuple(TensorSpec(tuple(output.shape[1:]), output.dtype.name) for output in outputs)
