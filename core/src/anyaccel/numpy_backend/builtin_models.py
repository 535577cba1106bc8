"""SequentialMLP and SequentialCNN: the models that every framework has, by the specs of the adapter."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, ModelSpec, SequentialCNNConstructor, SequentialMLPConstructor
from anyaccel.numpy_backend.layers import Activation, Conv2d, Dense, Dropout, Flatten, MaxPool2d
from anyaccel.numpy_backend.module import Module, Values
from anyaccel.numpy_backend.sequential import apply_in_sequence
from anyaccel.numpy_backend.sim_array import Array
from anyaccel.segment import TensorSpec

Spec = TypeVar("Spec", bound=ModelSpec)


class SpecModel(Module, Generic[Spec]):
    """A model that a spec describes, with the spec's weights and configuration."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = spec.dtype
        self._parts = list(self._layers())

    @abstractmethod
    def _layers(self) -> Iterator[tuple[str, Module]]:
        """The layers with the prefixes of their values; those without values have a prefix all the same."""

    def get_config(self) -> dict[str, Any]:
        """The settings, as keywords of the class."""
        return self.spec.get_config()

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return bool(self.parameters)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the spec's initial weights for these inputs.

        Raises:
            ShapeError: the spec does not take such inputs.
        """
        self.parameters.update(self.spec.weights([spec.shape for spec in inputs], seed))


class SequentialMLP(SequentialMLPConstructor, SpecModel[MLPSpec]):
    """A multi-layer perceptron with the same initial weights as in every framework; see `MLPSpec`.

    Inputs are flattened per sample and concatenated; `n_layers` linear layers, with an activation and dropout between
    them. Built when it first meets its inputs.

    Args:
        output_shape: shape of one sample of the output.
        n_layers: number of linear layers.
        hidden_dim: outputs of each layer but the last.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: rate of the dropout after each activation.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting out of range.
    """

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Inputs [batch, ...] to [batch, *output_shape]."""
        flat = [x.reshape(len(x), -1) for x in inputs]
        features = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
        inner = apply_in_sequence(self._parts, values, (features,), train=train, key=key)
        (y,) = inner.outputs

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], list[Array]]:
            gradients, (c,) = inner.pullback((cotangents[0].reshape(y.shape),))
            ends = itertools.accumulate(part.shape[1] for part in flat)
            parts = [c[:, end - part.shape[1] : end] for part, end in zip(flat, ends, strict=True)]
            return gradients, [part.reshape(x.shape) for part, x in zip(parts, inputs, strict=True)]

        return VjpResult((y.reshape(len(y), *self.spec.output_shape),), pullback)

    def _layers(self) -> Iterator[tuple[str, Module]]:
        spec = self.spec
        for index in range(spec.n_layers):
            if index:
                yield f"activations.{index}.", Activation(spec.activation)
                yield f"dropouts.{index}.", Dropout(spec.dropout)
            features = math.prod(spec.output_shape) if index == spec.n_layers - 1 else spec.hidden_dim
            yield f"layers.{index}.", Dense(features, dtype=spec.dtype)


class SequentialCNN(SequentialCNNConstructor, SpecModel[CNNSpec]):
    """A convolutional network with the same initial weights as in every framework; see `CNNSpec`.

    Takes one input [channels, height, width] per sample. Convolutions, each with an activation and max pooling, then
    dropout and one linear layer. Built when it first meets its input.

    Args:
        output_shape: shape of one sample of the output.
        channels: output channels of each convolution.
        kernel_size: height and width of the kernels, odd.
        pool: height, width and stride of the pooling windows; 1 for no pooling.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: rate of the dropout before the linear layer.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting out of range.
    """

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, channels, height, width] to [batch, *output_shape]."""
        inner = apply_in_sequence(self._parts, values, inputs, train=train, key=key)
        (y,) = inner.outputs

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], Sequence[Array | None]]:
            return inner.pullback((cotangents[0].reshape(y.shape),))

        return VjpResult((y.reshape(len(y), *self.spec.output_shape),), pullback)

    def _layers(self) -> Iterator[tuple[str, Module]]:
        spec = self.spec
        for index, channels in enumerate(spec.channels):
            yield f"convs.{index}.", Conv2d(channels, spec.kernel_size, dtype=spec.dtype)
            yield f"activations.{index}.", Activation(spec.activation)
            yield f"pools.{index}.", MaxPool2d(spec.pool)
        yield "flatten.", Flatten()
        yield "dropout.", Dropout(spec.dropout)
        yield "head.", Dense(math.prod(spec.output_shape), dtype=spec.dtype)
