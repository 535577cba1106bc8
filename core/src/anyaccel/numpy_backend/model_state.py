"""Shapes, dtype, batch coupling and state of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.model_outputs import CODE_ERRORS, code_error
from anyaccel.adapter.state_check import check_state, state_names
from anyaccel.errors import ENVIRONMENT_ERRORS, EstimatorError, ShapeError
from anyaccel.numpy_backend.layers import BatchNorm
from anyaccel.numpy_backend.module import Module, output_specs
from anyaccel.numpy_backend.sim_array import Array, SimArray, download, upload
from anyaccel.segment import TensorSpec


def infer(model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """The specs of a module's outputs for inputs of these specs; builds it if it is not built.

    Raises:
        ShapeError: it does not accept them, or is not a `Module`.
    """
    if not isinstance(model, Module):
        raise ShapeError(
            f"a {type(model).__name__} is not a NumPy model: its gradients are not known",
            hint="derive a class from anyaccel.numpy_backend.Module, and write its pullback",
        )
    foreign = next((spec for spec in inputs if not _is_numpy_dtype(spec.dtype)), None)
    if foreign is not None:
        raise ShapeError(
            f"{type(model).__name__} does not accept {foreign}: NumPy has no {foreign.dtype}",
            hint="feed it float32, from a model that ends in it, or a column cast to it",
        )
    try:
        if not model.is_built:
            model.build(inputs, seed)
        snapshot = AttributeSnapshot([model], vars)
        try:
            return output_specs(model, inputs)
        finally:
            snapshot.restore()
    except (ShapeError, EstimatorError, *ENVIRONMENT_ERRORS):
        raise
    except CODE_ERRORS as error:
        raise code_error(type(model).__name__, error, str(error)) from error
    except Exception as error:  # a user's module may raise anything
        raise ShapeError(
            f"{type(model).__name__} does not accept {', '.join(map(str, inputs))}: {error}",
            cause=f"parameters {_shapes(model)}" if model.parameters else "",
            hint=model.input_hint,
        ) from error


def infer_training(model: Any, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The specs of a built module's outputs in training mode; none where it does not take zeros then.

    Raises:
        ShapeError: outputs that are not arrays [batch, ...].
    """
    if not isinstance(model, Module):
        return ()
    snapshot = AttributeSnapshot([model], vars)
    try:
        return output_specs(model, inputs, train=True)
    except (ShapeError, *ENVIRONMENT_ERRORS):
        raise
    except Exception:  # a user's module may raise anything; the first step has the right error
        return ()
    finally:
        snapshot.restore()


def _is_numpy_dtype(dtype: str) -> bool:
    """Other packages register dtypes such as bfloat16 with NumPy; the answer must not depend on them."""
    try:
        return np.dtype(dtype).kind in "biufc"
    except TypeError:
        return False


def _shapes(model: Module) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in model.parameters.items())


def dtype_of(model: Module) -> str | None:
    """The dtype that a module's floating inputs must have; None for any."""
    if model.dtype is not None:
        return model.dtype
    return next((array.dtype.name for array in model.parameters.values() if array.dtype.kind == "f"), None)


def batch_coupling(model: Any) -> str:
    """`"BatchNorm"` if the module is or contains one; else `""`."""
    if isinstance(model, BatchNorm):
        return "BatchNorm"
    values = vars(model).values()
    parts = [part for value in values for part in (value if isinstance(value, (tuple, list)) else [value])]
    return next(filter(None, (batch_coupling(part) for part in parts if isinstance(part, Module))), "")


def state(model: Module) -> dict[str, Array]:
    """Copies of a module's values in host memory, named `parameters/NAME` and `buffers/NAME`."""
    arrays = state_names(model.parameters, model.buffers)
    return {name: download(a) if isinstance(a, SimArray) else np.array(a) for name, a in arrays.items()}


def load_state(model: Module, state: Mapping[str, Array]) -> None:
    """Write back what `state` returned, on the device where the module is now.

    Raises:
        StateError: names, shapes or dtypes differ; nothing is written.
    """
    current = state_names(model.parameters, model.buffers)
    check_state(state, {name: TensorSpec(tuple(a.shape), a.dtype.name) for name, a in current.items()})
    for kind, values in (("parameters", model.parameters), ("buffers", model.buffers)):
        for name, array in values.items():
            loaded = np.array(state[f"{kind}/{name}"], array.dtype)
            values[name] = upload(loaded, array.on) if isinstance(array, SimArray) else loaded
