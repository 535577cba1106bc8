"""Shapes, values and programs of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import Compute, Program
from anyaccel.errors import StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax.placement import JaxPlacement
from anyaccel_jax.tree_utils import keras_backend

if TYPE_CHECKING:
    from anyaccel_jax.models.base import Model

# Parameters of so many bytes are updated where they are, so that there need not be room for them (and for what the
# optimizer keeps) twice; if a call fails then, what it was given is gone.
DONATED_BYTES = 256 * 2**20


class JaxCompute(JaxPlacement, Compute):
    """Takes this package's models, modules of Flax (Linen and NNX) and Equinox, and of Keras where it runs on JAX.

    What they give may be an array, or a tuple, list or dict of arrays.
    """

    def wrap(self, model: Any) -> Any:
        """As `Compute.wrap`: `Linen` and `Equinox` hold what the modules of these two cannot."""
        from anyaccel_jax.models.dispatch import wrap

        return wrap(model)

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """Never: arrays of JAX cannot be written to."""
        return False

    def data_format(self, model: Any) -> tuple[str, str]:
        """As `Compute.layout`, for single layers and plain sequences of them."""
        return self._view(model).layout

    def batch_coupling(self, model: Any) -> str:
        """As `Compute.mixes`, for layers of Flax, Equinox and Keras; what a function does with a batch is not known."""
        return self._view(model).mixes

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """As `Compute.infer`; on shapes alone, in evaluation mode."""
        from anyaccel_jax.shape_inference import infer

        return infer(self._view(model), inputs, seed)

    def dtype_of(self, model: Any) -> str | None:
        """As `Compute.dtype_of`: that of the first floating parameter, or the one that an unbuilt model will have."""
        return self._view(model).dtype

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """As `Compute.parameters`.

        Raises:
            StateError: the model is not built yet.
        """
        named = self._built(model).parameters
        return {name: TensorSpec(tuple(one.shape), one.dtype.name) for name, one in named.items()}

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`; the adapter's program, compiled as a whole where the segment is on one device."""
        from anyaccel.adapter import TracedProgram
        from anyaccel_jax.ops import DonatingOps, JaxOps

        models = {id(op.model): op.model for op in segment.operations if op.model is not None}
        size = sum(one.nbytes for model in models.values() for one in self._view(model).parameters.values())
        return TracedProgram(segment, (JaxOps if size < DONATED_BYTES else DonatingOps)(self._sent))

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """As `Compute.state`.

        Raises:
            StateError: the model is not built yet.
        """
        return {name: np.array(one) for name, one in _named(self._built(model)).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """As `Compute.load_state`; nothing is written if anything does not fit."""
        import jax

        from anyaccel_jax.host_transfer import copied

        held = self._built(model)
        named = _named(held)
        _check_names(state, named)
        arrays = {name: np.asarray(state[name]) for name in named}
        for name, array in arrays.items():
            _check_value(name, array, named[name])
        values = {name: jax.device_put(copied(array), named[name].sharding) for name, array in arrays.items()}
        parameters, buffers = (
            {name: values[f"{part}/{name}"] for name in there}
            for part, there in (("parameters", held.parameters), ("buffers", held.buffers))
        )
        held.write(parameters, buffers)

    def models(self) -> Mapping[str, type]:
        """SequentialMLP and SequentialCNN."""
        from anyaccel_jax.models.builtin import SequentialCNN, SequentialMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN}

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """As `Compute.refuses`; takes Optax's transformations and the functions that make them, and Keras's losses."""
        own = recipe.own
        made = callable(own) or hasattr(own, "init")
        if isinstance(recipe, Optimizer) and made and not isinstance(own, type):
            return ""
        refusal = super().unsupported_reason(recipe)
        kind = own if isinstance(own, type) else type(own)
        if not refusal and own is not None and kind.__module__.startswith("keras.") and keras_backend() != "jax":
            return f"Keras runs on {keras_backend()}, not on JAX"
        return refusal

    def _view(self, model: Any) -> Model:
        from anyaccel_jax.models.dispatch import view, wrap

        return view(wrap(model))

    def _built(self, model: Any) -> Model:
        from anyaccel_jax.models.dispatch import view

        held = view(model)
        if not held.is_built:
            raise StateError(
                f"{type(model).__name__} has no parameters yet: the shapes of its inputs are not known",
                hint="build the graph it is in",
            )
        return held


def _named(model: Model) -> dict[str, Any]:
    """Parameters and buffers under the names of a state."""
    parameters = {f"parameters/{name}": one for name, one in model.parameters.items()}
    return parameters | {f"buffers/{name}": one for name, one in model.buffers.items()}


def _check_names(state: Mapping[str, np.ndarray], named: Mapping[str, Any]) -> None:
    missing, strange = [name for name in named if name not in state], [name for name in state if name not in named]
    if missing or strange:
        asked = [f"lacks {', '.join(missing)}"] if missing else []
        asked += [f"has {', '.join(strange)}, which the model has not"] if strange else []
        there = f"the model has {', '.join(named) or 'no values'}"
        raise StateError(
            f"the state {' and '.join(asked)}", available=there, hint="load the state of a model made alike"
        )


def _check_value(name: str, value: np.ndarray, own: Any) -> None:
    if value.shape != own.shape or value.dtype != own.dtype:
        given, has = (f"{each.dtype}{list(each.shape)}" for each in (value, own))
        remedy = "load the state of a model of the same sizes and dtype"
        raise StateError(f"{name} in the state is {given}", available=f"the model's is {has}", hint=remedy)
