"""Modules one after the other: Sequential, and SequentialMLP, which every framework has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter import Applied
from anyaccel.models import MLPRecipe, as_shape
from anyaccel.reference.arrays import Array
from anyaccel.reference.layers import Activation, Dense, Dropout
from anyaccel.reference.module import Module, Values, traced
from anyaccel.segment import TensorSpec

Parts = Sequence[tuple[str, Module]]
"""Modules in their order, each with the prefix of its values' names."""


def in_turn(parts: Parts, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> Applied:
    """Apply modules in turn, each to what the one before gives; a prefix that comes twice means the same values."""
    now, flow, tape = dict(values), inputs, []
    for index, (prefix, module) in enumerate(parts):
        own = {name[len(prefix) :]: value for name, value in now.items() if name.startswith(prefix)}
        applied = module.apply(own, flow, train=train, key=rng.key(key, index) if train else 0)
        now.update({prefix + name: value for name, value in (applied.buffers or {}).items()})
        tape.append((prefix, applied.pullback))
        flow = applied.outputs

    def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], Sequence[Array]]:
        gradients: dict[str, Array] = {}
        back: Sequence[Array] = cotangents
        for prefix, pull in reversed(tape):
            found, back = pull(tuple(back))
            for name, gradient in found.items():
                full = prefix + name
                gradients[full] = gradients[full] + gradient if full in gradients else gradient
        return gradients, back

    return Applied(flow, pullback, {name: now[name] for name in now if now[name] is not values[name]} or None)


class Sequential(Module):
    """Modules one after the other; a module that stands in several places is the same one, with the same parameters.

    The first may take several inputs. Values are called `INDEX.NAME`.
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = layers
        first = {id(layer): index for index, layer in reversed(list(enumerate(layers)))}
        self.parts = [(f"{first[id(layer)]}.", layer) for layer in layers]
        self.parameters = Joined({prefix: layer.parameters for prefix, layer in self.parts})
        self.buffers = Joined({prefix: layer.buffers for prefix, layer in self.parts})
        self.dtype = next((layer.dtype for layer in layers if layer.dtype is not None), None)

    @property
    def is_built(self) -> bool:
        """Whether all layers are."""
        return all(layer.is_built for layer in self.layers)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Build each layer for what the one before gives."""
        for prefix, layer in self.parts:
            if not layer.is_built:
                layer.build(inputs, rng.key(seed, prefix))
            inputs = traced(layer, inputs)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> Applied:
        """Through all layers, and back."""
        return in_turn(self.parts, values, inputs, train=train, key=key)


class Joined(MutableMapping[str, Array]):
    """Several mappings as one, with a prefix for the names of each; writing goes to the parts."""

    def __init__(self, parts: Mapping[str, MutableMapping[str, Array]]) -> None:
        self._parts = parts

    def _at(self, name: str) -> tuple[MutableMapping[str, Array], str]:
        first, dot, rest = name.partition(".")
        return self._parts[first + dot], rest

    def __getitem__(self, name: str) -> Array:
        part, rest = self._at(name)
        return part[rest]

    def __setitem__(self, name: str, value: Array) -> None:
        part, rest = self._at(name)
        part[rest] = value

    def __delitem__(self, name: str) -> None:
        part, rest = self._at(name)
        del part[rest]

    def __iter__(self) -> Iterator[str]:
        return (prefix + name for prefix, values in self._parts.items() for name in values)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))


class SequentialMLP(Module):
    """A multi-layer perceptron from `anyaccel.models.MLPRecipe`, with the same initial weights as in every framework.

    Inputs are flattened per sample and joined; `n_layers` linear layers, with an activation and dropout between each
    two. Built when it first meets its inputs.

    Args:
        output_shape: shape of one sample of the output.
        n_layers: number of linear layers.
        hidden_dim: size of each layer but the last.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: rate of the dropout after each activation.
        dtype: `"float32"` or `"float64"`.

    Raises:
        RecipeError: a setting that cannot be.
    """

    def __init__(
        self,
        output_shape: Sequence[int] | int = (1,),
        n_layers: int = 2,
        hidden_dim: int = 16,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.recipe = MLPRecipe(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype)
        self.dtype = dtype
        self._parts = list(_mlp_parts(self.recipe))

    def get_config(self) -> dict[str, Any]:
        """The keywords that make it again."""
        return self.recipe.get_config()

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return bool(self.parameters)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the recipe's weights for these inputs."""
        self.parameters.update(self.recipe.weights([spec.shape for spec in inputs], seed))

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> Applied:
        """Inputs [batch, ...] to [batch, *output_shape]."""
        flat = [x.reshape(len(x), -1) for x in inputs]
        joined = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
        inner = in_turn(self._parts, values, (joined,), train=train, key=key)
        (y,) = inner.outputs

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], list[Array]]:
            gradients, (c,) = inner.pullback((cotangents[0].reshape(y.shape),))
            ends = itertools.accumulate(part.shape[1] for part in flat)
            parts = [c[:, end - part.shape[1] : end] for part, end in zip(flat, ends, strict=True)]
            return gradients, [part.reshape(x.shape) for part, x in zip(parts, inputs, strict=True)]

        return Applied((y.reshape(len(y), *self.recipe.output_shape),), pullback)


def _mlp_parts(recipe: MLPRecipe) -> Iterator[tuple[str, Module]]:
    """The layers of the recipe; only the linear ones have values, which makes the other prefixes mere names."""
    for index in range(recipe.n_layers):
        if index:
            yield f"activations.{index}.", Activation(recipe.activation)
            yield f"dropouts.{index}.", Dropout(recipe.dropout)
        features = math.prod(recipe.output_shape) if index == recipe.n_layers - 1 else recipe.hidden_dim
        yield f"layers.{index}.", Dense(features, dtype=recipe.dtype)
