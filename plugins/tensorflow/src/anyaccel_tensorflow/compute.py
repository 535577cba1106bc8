"""Shapes, values and programs of TensorFlow modules and Keras models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.backend import Compute, Program
from anyaccel.errors import StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import OPTIMIZERS, Loss, Optimizer
from anyaccel_tensorflow.placement import TensorFlowPlacement


class TensorFlowCompute(TensorFlowPlacement, Compute):
    """Takes Keras models and layers, and tf.Modules that can be called; they give a tensor, or a tuple, list or dict.

    Losses that a Keras model adds itself (regularizers, `add_loss`) enter its gradients with weight 1, as in Keras; the
    losses that a phase tells are without them.
    """

    def batch_coupling(self, model: Any) -> str:
        """As `Compute.mixes`: BatchNormalization that trains, and layers called like it; of others nothing is known."""
        from anyaccel_tensorflow.shape_inference import mixes

        return mixes(model)

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """As `Compute.infer`; what is built is traced on shapes alone, and left as it was."""
        from anyaccel_tensorflow.shape_inference import infer

        return infer(model, inputs, seed)

    def dtype_of(self, model: Any) -> str | None:
        """As `Compute.dtype_of`: that of the first floating parameter, or what an unbuilt model says of itself."""
        from anyaccel_tensorflow.shape_inference import wanted_dtype

        return wanted_dtype(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """As `Compute.parameters`, by path of attributes; a variable that several parts share stands there once.

        Raises:
            StateError: the model is not built yet.
        """
        return {name: TensorSpec(tuple(one.shape), _name(one)) for name, one in _held(model).parameters.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """As `Compute.writes`: tensors cannot be written to, and memory of others is never reused for results."""
        return False

    def data_format(self, model: Any) -> tuple[str, str]:
        """As `Compute.layout`, for Keras layers of images, and sequences that begin or end with one."""
        from anyaccel_tensorflow.shape_inference import layout

        return layout(model)

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`; a `TensorFlowProgram`."""
        from anyaccel_tensorflow.ops import TensorFlowOps
        from anyaccel_tensorflow.program import TensorFlowProgram

        return TensorFlowProgram(segment, TensorFlowOps(segment, self.device_string))

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """As `Compute.state`; bfloat16 as NumPy has it from ml_dtypes.

        Raises:
            StateError: the model is not built yet.
        """
        from anyaccel_tensorflow.variables import read

        return {name: np.array(read(variable)) for name, variable in _named(model).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """As `Compute.load_state`; nothing is written if anything does not fit."""
        from anyaccel_tensorflow.host_transfer import owned
        from anyaccel_tensorflow.transfers import moved
        from anyaccel_tensorflow.variables import inner, write

        named = _named(model)
        _check_names(state, named)
        for name, variable in named.items():
            _check_value(name, np.asarray(state[name]), variable)
        found = {name: owned(np.asarray(state[name]), "/CPU:0") for name in named}
        values = {name: moved(one, inner(named[name]).device) for name, one in found.items()}
        for name, variable in named.items():
            write(variable, values[name])

    def models(self) -> Mapping[str, type]:
        """SequentialMLP and SequentialCNN."""
        from anyaccel_tensorflow.builtin_models import SequentialCNN, SequentialMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN}

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """As `Compute.refuses`; an optimizer of Keras changes variables of its own, and a program has tensors."""
        if isinstance(recipe, Optimizer) and recipe.own is not None:
            return (
                f"{recipe.name} is no name, and TensorFlow is served with the named optimizers: {', '.join(OPTIMIZERS)}"
            )
        return super().unsupported_reason(recipe)


def _held(model: Any) -> Any:
    from anyaccel_tensorflow.shape_inference import is_built
    from anyaccel_tensorflow.variables import held

    if not is_built(model):
        raise StateError(
            f"{type(model).__name__} has no parameters yet: the shapes of its inputs are not known",
            hint="build the graph it is in, or call it once with a batch",
        )
    return held(model)


def _named(model: Any) -> dict[str, Any]:
    """Parameters and buffers under the names of a state."""
    parameters, buffers = _held(model)
    named = {f"parameters/{name}": variable for name, variable in parameters.items()}
    return named | {f"buffers/{name}": variable for name, variable in buffers.items()}


def _name(variable: Any) -> str:
    """NumPy's name of a variable's dtype."""
    return str(getattr(variable.dtype, "name", variable.dtype))


def _check_names(state: Mapping[str, np.ndarray], named: Mapping[str, Any]) -> None:
    missing, strange = [name for name in named if name not in state], [name for name in state if name not in named]
    if missing or strange:
        asked = [f"lacks {', '.join(missing)}"] if missing else []
        asked += [f"has {', '.join(strange)}, which the model has not"] if strange else []
        there = f"the model has {', '.join(named) or 'no values'}"
        raise StateError(
            f"the state {' and '.join(asked)}", available=there, hint="load the state of a model made alike"
        )


def _check_value(name: str, value: np.ndarray, variable: Any) -> None:
    if value.shape != tuple(variable.shape) or value.dtype.name != _name(variable):
        given, has = f"{value.dtype.name}{list(value.shape)}", f"{_name(variable)}{list(variable.shape)}"
        remedy = "load the state of a model of the same sizes and dtype"
        raise StateError(f"{name} in the state is {given}", available=f"the model's is {has}", hint=remedy)
