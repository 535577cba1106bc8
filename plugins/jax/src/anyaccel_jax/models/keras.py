"""Keras layers and models that run on JAX, as models: their variables get the trained values in place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import keras  # type: ignore[import-untyped, import-not-found, unused-ignore]

from anyaccel.adapter import attributes_key
from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.layer_introspection import LayerLibrary, seeded_host_generators
from anyaccel.adapter.precision_casts import layers_computing_in, layers_reason
from anyaccel.precision import NodePrecision
from anyaccel.segment import TensorSpec
from anyaccel_jax.models.base import LIBRARIES, Arrays, Model, outputs_of, zero_inputs
from anyaccel_jax.parameter_tree import ParameterTree

_LIBRARY = LayerLibrary(keras)


class KerasModel(Model):
    """A Keras layer or model as a pure function.

    Trainable variables are the parameters, the others buffers; both are named by the attributes that lead to them
    (`layers.0.kernel`). Random numbers in training follow from the key, not from the states of the model's seed
    generators. Losses that the model adds itself (regularizers) enter the gradients.

    Args:
        layer: The layer or model, which only `build` and `write` change.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._read_variables()

    def __repr__(self) -> str:
        return type(self.layer).__name__

    def _read_variables(self) -> None:
        self._trained = _LIBRARY.named(self.layer, self.layer.trainable_variables)
        self._others = _LIBRARY.named(self.layer, self.layer.non_trainable_variables)
        states = {id(part.state) for _, part in _LIBRARY.walk(self.layer) if _LIBRARY.is_random(part)}
        self._random = [name for name, variable in self._others.items() if id(variable) in states]
        is_built = self.is_built
        self.parameters = {name: variable.value for name, variable in self._trained.items()} if is_built else {}
        self.buffers = {name: variable.value for name, variable in self._others.items()} if is_built else {}

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return bool(self.layer.built) and all(variable.value is not None for variable in self.layer.variables)

    @property
    def dtype(self) -> str | None:
        """The compute dtype of the layer, also used for its inputs."""
        return str(self.layer.compute_dtype)

    @property
    def data_format(self) -> tuple[str, str]:
        """The format that the first and last layer declare, of a single layer or a Sequential."""
        return _LIBRARY.data_format(self.layer)

    @property
    def batch_coupling(self) -> str:
        """BatchNormalization that trains, wherever it is."""
        kind = keras.layers.BatchNormalization
        couples = any(isinstance(part, kind) and part.trainable for _, part in _LIBRARY.walk(self.layer))
        return "BatchNormalization" if couples else ""

    @property
    def constraints(self) -> Mapping[str, Callable[[Any], Any]]:
        """Those of the trained variables."""
        return {name: v.constraint for name, v in self._trained.items() if v.constraint is not None}

    @property
    def parameter_tree(self) -> ParameterTree:
        """The tree with the variables, which optimizers of Keras use."""
        names = {name: name for name in self.parameters}
        return ParameterTree(names, self.parameters, "a dict by the names of graph.state()", variables=self._trained)

    def computing_in(self, precision: NodePrecision) -> AbstractContextManager[None]:
        """Give layers that compute in float32 a mixed dtype policy, inside this context."""
        return layers_computing_in(_LIBRARY, self.layer, precision)

    def precision_reason(self, precision: str) -> str:
        """Return why a precision is not possible: layers only have dtype policies of mixed precision."""
        return layers_reason(self.layer, precision)

    @property
    def untrainable_reason(self) -> str:
        """Methods that only Keras's own loop heeds."""
        return _LIBRARY.untrainable_reason(self.layer)

    @property
    def cache_key(self) -> Any:
        """Plain attributes of all layers; other objects count by identity."""
        layers = ((path, part) for path, part in _LIBRARY.walk(self.layer) if _LIBRARY.is_layer(part))
        return attributes_key(layers, lambda _: _LIBRARY.layer_attributes, _is_listed, LIBRARIES)

    def build(self, inputs: Sequence[TensorSpec], seed: int, layout: CallLayout = POSITIONAL) -> None:
        """Build by a call with zeros; initializers without a user's seed get one from `seed`."""
        _LIBRARY.refuse_stateful(self.layer)
        if self.is_built:
            return
        _LIBRARY.seed_initializers(self.layer, seed)
        with seeded_host_generators(seed):  # Keras takes the seeds of what it creates from Python's generator
            self._call(zero_inputs(inputs, 2), layout, train=False)
        self._read_variables()

    def _call(self, inputs: Sequence[Any], layout: CallLayout, *, train: bool) -> Any:
        arguments, named = _LIBRARY.packing(self.layer, len(inputs), layout)(inputs)
        return self.layer(*arguments, **named, training=train)

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the layer's `call`, or the inputs of a functional model."""
        return _LIBRARY.signature(self.layer)

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        states = {name: _random_state(key, i, buffers[name]) for i, name in enumerate(self._random) if train}
        values, variables = {**parameters, **buffers, **states}, {**self._trained, **self._others}
        mapping = [(variables[name], value) for name, value in values.items()]
        # `stateless_call` does the same, but calls `call` past `__call__`, which knows the arguments of `call`.
        with keras.StatelessScope(state_mapping=mapping, collect_losses=train) as scope:
            result = self._call(inputs, layout, train=train)
            if train:
                _LIBRARY.refuse_masks(self.layer, result)
            outputs = outputs_of(result, layout)
            added = list(self.layer.losses) if train else []
            lasting = {n: scope.get_current_value(v) for n, v in self._others.items() if n not in states}
        if not train:
            return outputs, None
        return _with_added_losses(outputs, added), {**buffers, **lasting}

    def attribute_snapshot(self) -> AttributeSnapshot:
        """Return those of all layers."""
        return _LIBRARY.attribute_snapshot(self.layer)

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Write into the layer's own variables."""
        for variables, values in ((self._trained, parameters), (self._others, buffers)):
            for name, variable in variables.items():
                variable.assign(values[name])
        super().write(parameters, buffers)


def _is_listed(obj: Any) -> bool:
    return _LIBRARY.is_layer(obj) or _LIBRARY.is_variable(obj) or _LIBRARY.is_random(obj)


def _random_state(key: Any, number: int, like: Any) -> Any:
    """Return the state of a seed generator, from a key."""
    return jax.random.bits(jax.random.fold_in(key, number), like.shape).astype(like.dtype)


def _is_floating(output: Any) -> bool:
    return hasattr(output, "dtype") and bool(jnp.issubdtype(output.dtype, jnp.floating))


@jax.custom_vjp
def _carry_loss(output: Any, loss: Any) -> Any:
    """Return the output; in the backward pass, the gradient of the loss is 1."""
    return output


_carry_loss.defvjp(lambda output, loss: (output, loss), lambda loss, cotangent: (cotangent, jnp.ones_like(loss)))


def _with_added_losses(outputs: tuple[Any, ...], added: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outputs; the first floating one carries the gradient of the losses added by the model."""
    first = next((i for i, output in enumerate(outputs) if _is_floating(output)), None)
    if first is None or not added:
        return outputs
    total = sum(jnp.sum(loss) for loss in added)
    return (*outputs[:first], _carry_loss(outputs[first], total), *outputs[first + 1 :])
