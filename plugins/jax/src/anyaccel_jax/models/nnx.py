"""Flax NNX modules as models: they hold their own values, and get the trained ones in place."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from anyaccel.adapter import attributes_key
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.errors import PhaseError
from anyaccel_jax.models.base import (
    LIBRARIES,
    Arrays,
    Model,
    NamedTree,
    has_parameter,
    input_signature,
    mode_keywords,
    named_leaves,
    outputs_of,
)
from anyaccel_jax.models.data_format import flat_layers, outer_formats
from anyaccel_jax.parameter_tree import ParameterTree

_BOOKKEEPING = {"_pytree__state", "_object__state", "_pytree__nodes"}


class NnxModel(Model):
    """An NNX module as a pure function.

    Its `Param`s are the parameters, named by the attributes that lead to them (`layers.0.kernel`); all other variables
    except the state of random numbers are buffers. The function works on copies, in the mode that is asked for
    (`train()` or `eval()`), with random streams that follow from the key: those of the user's module do not change.

    Args:
        module: The module, which only `write` changes.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        parts: tuple[Any, ...] = nnx.split(module, nnx.Param, nnx.RngState, ...)
        self._graph, parameters, self._random, buffers = parts
        self._parameter_tree, self._buffer_tree = NamedTree(parameters), NamedTree(buffers)
        self.parameters = named_leaves(parameters)
        self.buffers = named_leaves(buffers)

    def __repr__(self) -> str:
        return type(self.module).__name__

    @property
    def data_format(self) -> tuple[str, str]:
        """Channels last, for single layers for images and plain sequences of them."""
        return outer_formats(flat_layers(self.module, nnx.Sequential), _is_spatial, _is_elementwise, "channels_last")

    @property
    def batch_coupling(self) -> str:
        """BatchNorm, wherever it is."""
        return "BatchNorm" if any(isinstance(node, nnx.BatchNorm) for _, node in nnx.iter_graph(self.module)) else ""

    @property
    def parameter_tree(self) -> ParameterTree:
        """The tree of `nnx.Optimizer(module, tx, wrt=nnx.Param)`: `nnx.state`, with plain values in updates."""
        state = self._parameter_tree.unflatten({name: name for name in self.parameters})
        return ParameterTree(_pure(state), self.parameters, "nnx.state(module, nnx.Param)", boxed=state, unbox=_pure)

    @property
    def cache_key(self) -> Any:
        """Flax's view of the module without its variables, and the attributes and code of all its parts."""
        parts = (
            (".".join(map(str, path)), part)
            for path, part in nnx.iter_graph(self.module)
            if isinstance(part, nnx.Pytree)
        )
        return (("structure", self._graph), *attributes_key(parts, lambda _: _BOOKKEEPING, _is_listed, LIBRARIES))

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        buffer_state = self._buffer_tree.unflatten(buffers)
        leaves, structure = jax.tree.flatten(self._random)
        module = nnx.merge(
            nnx.graphdef(self.module),
            self._parameter_tree.unflatten(parameters),
            jax.tree.unflatten(structure, [_restart(leaf, key, i + 1) for i, leaf in enumerate(leaves)]),
            buffer_state,
        )
        (module.train if train else module.eval)()
        call = type(module).__call__
        streams = {"rngs": nnx.Rngs(jax.random.fold_in(key, 0))} if has_parameter(call, "rngs") else {}
        before = _plain_attributes(module) if train else {}
        arguments, named = layout.bind(inputs, jnp.moveaxis)
        outputs = outputs_of(module(*arguments, **named, **mode_keywords(call, train), **streams), layout)
        if not train:
            return outputs, None
        after = named_leaves(nnx.state(module))  # which may have more than the buffers
        written = [name for name, value in parameters.items() if after[name] is not value]
        kept = _plain_attributes(module)
        written += [name for name, value in before.items() if kept.get(name, value) != value]
        if written:
            raise PhaseError(
                f"a {self!r} cannot be trained: its call writes to {written[0]}, and this change would be lost",
                cause="a call may write only to variables that are not an nnx.Param",
                hint="store it in an nnx.Variable, use a layer that does not change its parameters, or freeze the node",
            )
        return outputs, ({name: after[name] for name in self._buffer_tree.names} if buffers else None)

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the module's `__call__`."""
        return input_signature(type(self.module).__call__, 1, also=("rngs",))

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Write into the module's own variables."""
        nnx.update(self.module, self._parameter_tree.unflatten(parameters), self._buffer_tree.unflatten(buffers))
        super().write(parameters, buffers)


def _pure(tree: Any) -> Any:
    """Return a tree with values instead of variables."""

    def value(leaf: Any) -> Any:
        return leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf

    return jax.tree.map(value, tree, is_leaf=lambda node: isinstance(node, nnx.Variable))


def _restart(state: Any, key: Any, number: int) -> Any:
    """The key or the count of a random stream at its start: a key of the same kind and shape, or zeros."""
    if not jnp.issubdtype(state.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(state)
    seed = jax.random.bits(jax.random.fold_in(key, number))
    stream = jax.random.key(seed, impl=jax.random.key_impl(state))
    return stream if state.shape == () else jax.random.split(stream, state.shape)


def _plain_attributes(module: Any) -> dict[str, Any]:
    """Return numbers and strings among the attributes of a module and its parts."""
    return {
        ".".join(map(str, path)): value
        for path, value in nnx.iter_graph(module)
        if isinstance(value, (bool, int, float, str))
    }


def _is_listed(obj: Any) -> bool:
    return isinstance(obj, (nnx.Pytree, nnx.Variable, jax.Array))


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (nnx.Conv, nnx.ConvTranspose))


def _is_elementwise(layer: Any) -> bool:
    return isinstance(layer, nnx.Dropout)
