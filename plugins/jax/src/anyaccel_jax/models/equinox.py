"""Equinox: an Equinox module, and its state if it has some, as a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from anyaccel.errors import ShapeError
from anyaccel_jax.models.base import Arrays, Model, Tree, named, owned, takes
from anyaccel_jax.models.data_format import ends

AXIS = "batch"


class Equinox(Model):
    """An Equinox module, which cannot be changed, and the values that it has now.

    A module that is given to a node is wrapped into one of these. As is the custom with Equinox, the module takes
    single samples: it is mapped over the batch by `jax.vmap`, whose axis is called `"batch"` (for `eqx.nn.BatchNorm`).
    If `__call__` has a parameter `key`, each sample gets one; `inference` of all layers is set by the mode. Floating
    arrays are parameters and go by the attributes that lead to them (`layers.0.weight`); other arrays are buffers, and
    so is what the state holds (`state.0`, ...).

    Args:
        module: the module. One with state (`eqx.nn.BatchNorm`) is given as it was made; or, from
            `eqx.nn.make_with_state`, together with its `state`.
        state: the state, for a module that takes it as its last argument and gives it back.
    """

    def __init__(self, module: eqx.Module, state: eqx.nn.State | None = None) -> None:
        if state is None:
            module, state = _with_state(module)
        arrays, self._static = eqx.partition(module, eqx.is_array)
        self._arrays, self._state = Tree(arrays), None if state is None else Tree(state)
        own = {name: owned(one) for name, one in named(arrays).items()}
        self.parameters = {name: one for name, one in own.items() if jnp.issubdtype(one.dtype, jnp.inexact)}
        self.buffers = {name: one for name, one in own.items() if name not in self.parameters}
        if self._state is not None:
            self.buffers.update({_PREFIX + name: owned(one) for name, one in named(state).items()})

    def __repr__(self) -> str:
        return f"Equinox({type(self._static).__name__})"

    @property
    def module(self) -> Any:
        """The module with the values of now."""
        return self._joined(self.parameters, self.buffers)

    @property
    def state(self) -> Any:
        """The state of now; None where the module has none."""
        return self._state_of(self.buffers)

    @property
    def layout(self) -> tuple[str, str]:
        """Channels first, for single layers for images and plain sequences of them."""
        return ends(_layers(self._static), _is_spatial, _is_elementwise, "channels_first")

    @property
    def mixes(self) -> str:
        """BatchNorm, wherever it is."""
        leaves = jax.tree.leaves(self._static, is_leaf=_is_batch_norm)
        return "BatchNorm" if any(map(_is_batch_norm, leaves)) else ""

    @property
    def cache_key(self) -> Any:
        """The module as it was given, which cannot be changed."""
        return type(self._static)

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        module = eqx.nn.inference_mode(self._joined(parameters, buffers), value=not train)
        state, keyed = self._state_of(buffers), takes(type(module).__call__, "key")
        keys = jax.random.split(key, inputs[0].shape[0]) if keyed else None

        def one(samples: Sequence[Any], own: Any, state: Any) -> Any:
            given = {"key": own} if keyed else {}
            return (module(*samples, **given), None) if state is None else module(*samples, state, **given)

        over = jax.vmap(one, in_axes=(0, 0 if keyed else None, None), out_axes=(0, None), axis_name=AXIS)
        outputs, after = over(list(inputs), keys, state)
        if self._state is None or not train:
            return outputs, None
        return outputs, {**buffers, **{_PREFIX + name: one for name, one in named(after).items()}}

    def _joined(self, parameters: Arrays, buffers: Arrays) -> Any:
        return eqx.combine(self._arrays.tree({**parameters, **buffers}), self._static)

    def _state_of(self, buffers: Arrays) -> Any:
        if self._state is None:
            return None
        return self._state.tree({name: buffers[_PREFIX + name] for name in self._state.names})


_PREFIX = "state."


def _with_state(module: Any) -> tuple[Any, Any]:
    """A module as it was made, and the state that its layers begin with; None where they have none."""
    indices = [leaf for leaf in jax.tree.leaves(module, is_leaf=_is_index) if _is_index(leaf)]
    if not indices:
        return module, None
    try:
        made: tuple[Any, Any] = eqx.nn.make_with_state(lambda: module)()
    except ValueError as error:
        raise ShapeError(
            f"the state of {type(module).__name__} is not with it",
            available="it was made by eqx.nn.make_with_state, which gives module and state",
            hint="give the node both: anyaccel_jax.Equinox(module, state)",
        ) from error
    return made


def _is_index(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)


def _is_batch_norm(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.BatchNorm)


def _layers(module: Any) -> list[Any]:
    if isinstance(module, eqx.nn.Sequential):
        return [part for layer in module.layers for part in _layers(layer)]
    return [module]


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (eqx.nn.Conv, eqx.nn.ConvTranspose, eqx.nn.Pool, eqx.nn.AdaptivePool))


def _is_elementwise(layer: Any) -> bool:
    if isinstance(layer, eqx.nn.Lambda):
        from anyaccel_jax.models.data_format import is_activation

        return is_activation(layer.fn)
    return isinstance(layer, (eqx.nn.Dropout, eqx.nn.PReLU, eqx.nn.Identity))
