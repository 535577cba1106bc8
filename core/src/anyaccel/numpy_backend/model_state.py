"""What can be asked of a module: shapes, dtype, and its values by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from anyaccel.errors import EstimatorError, ShapeError, StateError
from anyaccel.numpy_backend.layers import BatchNorm
from anyaccel.numpy_backend.module import Module, traced
from anyaccel.numpy_backend.sim_array import Array, SimArray, download, upload
from anyaccel.segment import TensorSpec


def infer(model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """What a module gives for inputs of these specifications; builds it if it is not built.

    Raises:
        ShapeError: it does not take them, or is no module.
    """
    if not isinstance(model, Module):
        raise ShapeError(
            f"a {type(model).__name__} is no model of numpy: its gradients are not known",
            hint="derive a class from anyaccel.numpy_backend.Module, and give its pullback",
        )
    foreign = next((spec for spec in inputs if not _is_numpys(spec.dtype)), None)
    if foreign is not None:
        raise ShapeError(
            f"{type(model).__name__} does not take {foreign}: NumPy has no {foreign.dtype} of its own",
            hint="give it float32, with a model that ends in it, or a column cast to it",
        )
    try:
        if not model.is_built:
            model.build(inputs, seed)
        return traced(model, inputs)
    except (ShapeError, EstimatorError):
        raise
    except Exception as error:  # a user's module may raise anything
        raise ShapeError(
            f"{type(model).__name__} does not take {', '.join(map(str, inputs))}: {error}",
            available=f"parameters {_shapes(model)}" if model.parameters else "",
            hint="change what feeds it, or the module",
        ) from error


def _is_numpys(dtype: str) -> bool:
    """Others register dtypes with NumPy under names such as bfloat16; whether they are there must not matter."""
    try:
        return np.dtype(dtype).kind in "biufc"
    except TypeError:
        return False


def _shapes(model: Module) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in model.parameters.items())


def dtype_of(model: Module) -> str | None:
    """Dtype of the floating inputs that a module wants."""
    if model.dtype is not None:
        return model.dtype
    return next((array.dtype.name for array in model.parameters.values() if array.dtype.kind == "f"), None)


def mixes(model: Any) -> str:
    """The kind of a module that computes over its batch while it trains, wherever it is inside; `""` of others."""
    if isinstance(model, BatchNorm):
        return "BatchNorm"
    parts = [part for held in vars(model).values() for part in (held if isinstance(held, (tuple, list)) else [held])]
    return next(filter(None, (mixes(part) for part in parts if isinstance(part, Module))), "")


def _named(model: Module) -> dict[str, tuple[MutableMapping[str, Array], str]]:
    kinds = {"parameters": model.parameters, "buffers": model.buffers}
    return {f"{kind}/{name}": (values, name) for kind, values in kinds.items() for name in values}


def state(model: Module) -> dict[str, Array]:
    """Copies of a module's values in host memory, named `parameters/NAME` and `buffers/NAME`."""
    found = {full: values[name] for full, (values, name) in _named(model).items()}
    return {full: download(a) if isinstance(a, SimArray) else np.array(a) for full, a in found.items()}


def load_state(model: Module, state: Mapping[str, Array]) -> None:
    """Write back what `state` gave, where the module is now.

    Raises:
        StateError: names, shapes or dtypes differ; nothing is written.
    """
    there = _named(model)
    if set(there) != set(state):
        raise StateError(
            f"the state does not belong to this {type(model).__name__}: {_difference(set(there), set(state))}",
            hint="build the model in the same way first, or load the state that belongs to it",
        )
    for full, (values, name) in there.items():
        _check(full, values[name], state[full])
    for full, (values, name) in there.items():
        before = values[name]
        values[name] = upload(state[full], before.on) if isinstance(before, SimArray) else np.array(state[full])


def _difference(there: set[str], given: set[str]) -> str:
    parts = {"lacks": sorted(there - given), "has in excess": sorted(given - there)}
    return "it " + " and ".join(f"{verb} {', '.join(names)}" for verb, names in parts.items() if names)


def _check(name: str, there: Array, given: Array) -> None:
    if there.shape != given.shape or there.dtype != given.dtype:
        raise StateError(
            f"{name} is {given.dtype}{list(given.shape)} in the state",
            available=f"{there.dtype}{list(there.shape)} in the model",
            hint="load the state of a model of the same shape",
        )
