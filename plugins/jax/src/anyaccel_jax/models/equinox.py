"""Equinox: an Equinox module, and its state if it has one, as a model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ShapeError
from anyaccel_jax.models.base import (
    Arrays,
    Model,
    NamedTree,
    copy_array,
    fields_key,
    has_parameter,
    input_signature,
    named_leaves,
    outputs_of,
    split_floating,
)
from anyaccel_jax.models.data_format import flat_layers, is_activation, outer_formats
from anyaccel_jax.parameter_tree import ParameterTree

BATCH_AXIS = "batch"
_STATE = "state."


@constructor_hints
class Equinox(Model):
    """An Equinox module, which cannot be changed, and its current values.

    A module that you pass to a node is wrapped into this class. As is usual with Equinox, the module takes single
    samples: it is mapped over the batch by `jax.vmap`, whose axis is named `"batch"` (for `eqx.nn.BatchNorm`). If
    `__call__` has a parameter `key`, each sample gets one; `inference` of all layers is set by the mode. Floating
    arrays are parameters, named by the attributes that lead to them (`layers.0.weight`); other arrays are buffers, and
    so are the values of the state (`state.0`, ...).

    Args:
        module: The module. One with state (`eqx.nn.BatchNorm`) is passed unchanged after its creation; or, from
            `eqx.nn.make_with_state`, together with its `state`.
        state: The state, for a module that takes it as its last argument and returns it.
    """

    def __init__(self, module: eqx.Module, state: eqx.nn.State | None = None) -> None:
        if state is None and any(map(_is_state_index, jax.tree.leaves(module, is_leaf=_is_state_index))):
            try:
                pair: tuple[Any, Any] = eqx.nn.make_with_state(lambda: module)()
            except ValueError as error:
                raise ShapeError(
                    f"the state of {type(module).__name__} is missing",
                    cause="it was created by eqx.nn.make_with_state, which returns module and state",
                    hint="pass both to the node: anyaccel_jax.Equinox(module, state)",
                ) from error
            module, state = pair
        arrays, self._static = eqx.partition(module, eqx.is_array)
        self._arrays, self._state = NamedTree(arrays), None if state is None else NamedTree(state)
        copied = {name: copy_array(leaf) for name, leaf in named_leaves(arrays).items()}
        self.parameters, self.buffers = split_floating(copied)
        if self._state is not None:
            self.buffers.update({_STATE + name: copy_array(leaf) for name, leaf in named_leaves(state).items()})

    def __repr__(self) -> str:
        return f"Equinox({type(self._static).__name__})"

    @property
    def module(self) -> Any:
        """The module with its current values."""
        return self._join(self.parameters, self.buffers)

    @property
    def state(self) -> Any:
        """The current state; None if the module has no state."""
        return self._state_from(self.buffers)

    @property
    def data_format(self) -> tuple[str, str]:
        """Channels first, for single layers for images and plain sequences of them."""
        layers = flat_layers(self._static, eqx.nn.Sequential)
        return outer_formats(layers, _is_spatial, _is_elementwise, "channels_first")

    @property
    def batch_coupling(self) -> str:
        """BatchNorm, wherever it is."""
        leaves = jax.tree.leaves(self._static, is_leaf=_is_batch_norm)
        return "BatchNorm" if any(map(_is_batch_norm, leaves)) else ""

    @property
    def parameter_tree(self) -> ParameterTree:
        """The module with its floating arrays, as `eqx.filter(module, eqx.is_inexact_array)` gives it."""
        names = {name: name if name in self.parameters else None for name in self._arrays.names}
        return ParameterTree(self._arrays.unflatten(names), self.parameters, "eqx.filter(module, eqx.is_inexact_array)")

    @property
    def cache_key(self) -> Any:
        """The module without its arrays, and the code of all its parts."""
        return fields_key(self._static, _is_module)

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        module = eqx.nn.inference_mode(self._join(parameters, buffers), value=not train)
        state, takes_key = self._state_from(buffers), has_parameter(type(module).__call__, "key")
        keys = jax.random.split(key, inputs[0].shape[0]) if takes_key else None

        def call(samples: Sequence[Any], own_key: Any, state: Any) -> Any:
            arguments, named = layout.bind(samples)
            keywords = {**named, **({"key": own_key} if takes_key else {})}
            return (module(*arguments, **keywords), None) if state is None else module(*arguments, state, **keywords)

        axes = (0, 0 if takes_key else None, None)
        result, after = jax.vmap(call, in_axes=axes, out_axes=(0, None), axis_name=BATCH_AXIS)(
            list(inputs), keys, state
        )
        outputs = outputs_of(result, layout)
        if self._state is None or not train:
            return outputs, None
        return outputs, {**buffers, **{_STATE + name: leaf for name, leaf in named_leaves(after).items()}}

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the module's `__call__`, without the state."""
        return input_signature(type(self._static).__call__, 1, also=("key", "state"))

    def _join(self, parameters: Arrays, buffers: Arrays) -> Any:
        return eqx.combine(self._arrays.unflatten({**parameters, **buffers}), self._static)

    def _state_from(self, buffers: Arrays) -> Any:
        if self._state is None:
            return None
        return self._state.unflatten({name: buffers[_STATE + name] for name in self._state.names})


def _is_module(obj: Any) -> bool:
    return isinstance(obj, eqx.Module)


def _is_state_index(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)


def _is_batch_norm(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.BatchNorm)


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (eqx.nn.Conv, eqx.nn.ConvTranspose, eqx.nn.Pool, eqx.nn.AdaptivePool))


def _is_elementwise(layer: Any) -> bool:
    if isinstance(layer, eqx.nn.Lambda):
        return is_activation(layer.fn)
    return isinstance(layer, (eqx.nn.Dropout, eqx.nn.PReLU, eqx.nn.Identity))
