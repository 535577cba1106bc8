"""The models that every framework has, each from a recipe of `anyaccel.adapter.model_specs`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, as_shape
from anyaccel.numpy_backend.convolution_layers import Conv2d, Flatten, MaxPool2d
from anyaccel.numpy_backend.layers import Activation, Dense, Dropout
from anyaccel.numpy_backend.module import Module, Values
from anyaccel.numpy_backend.sequential import in_turn
from anyaccel.numpy_backend.sim_array import Array
from anyaccel.segment import TensorSpec

Recipe = TypeVar("Recipe", bound=MLPSpec | CNNSpec)


class FromRecipe(Module, Generic[Recipe]):
    """A model that a recipe describes: it has the recipe's weights and configuration."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.dtype = recipe.dtype

    def get_config(self) -> dict[str, Any]:
        """The keywords that make it again."""
        return self.recipe.get_config()

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return bool(self.parameters)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the recipe's weights for these inputs.

        Raises:
            ShapeError: the recipe does not take them.
        """
        self.parameters.update(self.recipe.weights([spec.shape for spec in inputs], seed))


class SequentialMLP(FromRecipe[MLPSpec]):
    """A multi-layer perceptron from `anyaccel.adapter.model_specs.MLPSpec`, with the same initial weights as in every framework.

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
        SpecError: a setting that cannot be.
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
        super().__init__(MLPSpec(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype))
        self._parts = list(_mlp_parts(self.recipe))

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
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

        return VjpResult((y.reshape(len(y), *self.recipe.output_shape),), pullback)


def _mlp_parts(recipe: MLPSpec) -> Iterator[tuple[str, Module]]:
    """The layers of the recipe; only the linear ones have values, which makes the other prefixes mere names."""
    for index in range(recipe.n_layers):
        if index:
            yield f"activations.{index}.", Activation(recipe.activation)
            yield f"dropouts.{index}.", Dropout(recipe.dropout)
        features = math.prod(recipe.output_shape) if index == recipe.n_layers - 1 else recipe.hidden_dim
        yield f"layers.{index}.", Dense(features, dtype=recipe.dtype)


class SequentialCNN(FromRecipe[CNNSpec]):
    """A convolutional network from `anyaccel.adapter.model_specs.CNNSpec`, with the same initial weights as in every framework.

    Takes one input [channels, height, width] per sample. Convolutions, each with an activation and max pooling, then
    dropout and one linear layer. Built when it first meets its input.

    Args:
        output_shape: shape of one sample of the output.
        channels: channels that each convolution gives.
        kernel_size: height and width of the kernels, odd.
        pool: height, width and stride of the pooling windows; 1 for no pooling.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: rate of the dropout before the linear layer.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting that cannot be.
    """

    def __init__(
        self,
        output_shape: Sequence[int] | int = (1,),
        channels: Sequence[int] | int = (8, 16),
        kernel_size: int = 3,
        pool: int = 2,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        shapes = as_shape(output_shape), as_shape(channels)
        super().__init__(CNNSpec(*shapes, kernel_size, pool, activation, dropout, dtype))
        self._parts = list(_cnn_parts(self.recipe))

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, channels, height, width] to [batch, *output_shape]."""
        inner = in_turn(self._parts, values, inputs, train=train, key=key)
        (y,) = inner.outputs

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], Sequence[Array | None]]:
            return inner.pullback((cotangents[0].reshape(y.shape),))

        return VjpResult((y.reshape(len(y), *self.recipe.output_shape),), pullback)


def _cnn_parts(recipe: CNNSpec) -> Iterator[tuple[str, Module]]:
    """The layers of the recipe; the prefixes of those without values are mere names."""
    for index, channels in enumerate(recipe.channels):
        yield f"convs.{index}.", Conv2d(channels, recipe.kernel_size, dtype=recipe.dtype)
        yield f"activations.{index}.", Activation(recipe.activation)
        yield f"pools.{index}.", MaxPool2d(recipe.pool)
    yield "flatten.", Flatten()
    yield "dropout.", Dropout(recipe.dropout)
    yield "head.", Dense(math.prod(recipe.output_shape), dtype=recipe.dtype)
