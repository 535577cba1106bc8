"""Flax NNX modules as models: they hold their own values, and get the trained ones in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from anyaccel_jax.models.base import Arrays, Model, Tree, mode, named, takes
from anyaccel_jax.models.data_format import ends


class NnxView(Model):
    """An NNX module as pure functions.

    Its `Param`s are the parameters and go by the attributes that lead to them (`layers.0.kernel`); all other variables
    but the state of random numbers are buffers. The functions work on copies, in the mode that is asked for (`train()`
    or `eval()`), with streams of random numbers that follow from the key: those of the user's module stay as they are.

    Args:
        module: the module, which is changed by `write` only.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        parts: tuple[Any, ...] = nnx.split(module, nnx.Param, nnx.RngState, ...)
        self._graph, self._random = parts[0], parts[2]
        parameters, buffers = parts[1], parts[3]
        self._parameters, self._buffers = Tree(parameters), Tree(buffers)
        self.parameters = named(parameters)
        self.buffers = named(buffers)

    def __repr__(self) -> str:
        return type(self.module).__name__

    @property
    def layout(self) -> tuple[str, str]:
        """Channels last, for single layers for images and plain sequences of them."""
        return ends(_layers(self.module), _is_spatial, _is_elementwise, "channels_last")

    @property
    def mixes(self) -> str:
        """BatchNorm, wherever it is."""
        return "BatchNorm" if any(isinstance(one, nnx.BatchNorm) for _, one in nnx.iter_graph(self.module)) else ""

    @property
    def cache_key(self) -> Any:
        """What Flax holds of the module beside its variables."""
        return self._graph

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        states = self._parameters.tree(parameters), self._seeded(key), self._buffers.tree(buffers)
        module = nnx.merge(self._graph, *states)
        (module.train if train else module.eval)()
        call = type(module).__call__
        streams = {"rngs": nnx.Rngs(jax.random.fold_in(key, 0))} if takes(call, "rngs") else {}
        outputs = module(*inputs, **mode(call, train), **streams)
        if not train or not buffers:
            return outputs, None
        return outputs, self._after(nnx.state(module))

    def _after(self, state: Any) -> dict[str, Any]:
        """The buffers in a state, which may have more than there were."""
        found = named(state)
        return {name: found[name] for name in self._buffers.names}

    def _seeded(self, key: Any) -> Any:
        """The state of the random streams, each from the key."""
        leaves, structure = jax.tree.flatten(self._random)
        return jax.tree.unflatten(structure, [_drawn(leaf, key, i + 1) for i, leaf in enumerate(leaves)])

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Into the module's own variables."""
        nnx.update(self.module, self._parameters.tree(parameters), self._buffers.tree(buffers))
        super().write(parameters, buffers)

    def mapped(self, fn: Any) -> Any:
        """The module itself, with everything that it holds, its random streams too."""
        super().mapped(fn)
        nnx.update(self.module, jax.tree.map(fn, self._random))
        return self.module


def _drawn(state: Any, key: Any, number: int) -> Any:
    """A key or a count of a random stream: a key of the same kind and shape, or zeros."""
    if not jnp.issubdtype(state.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(state)
    seed = jax.random.bits(jax.random.fold_in(key, number))
    own = jax.random.key(seed, impl=jax.random.key_impl(state))
    return own if state.shape == () else jax.random.split(own, state.shape)


def _layers(module: Any) -> list[Any]:
    if isinstance(module, nnx.Sequential):
        return [part for layer in module.layers for part in _layers(layer)]
    return [module]


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (nnx.Conv, nnx.ConvTranspose))


def _is_elementwise(layer: Any) -> bool:
    return isinstance(layer, nnx.Dropout)
