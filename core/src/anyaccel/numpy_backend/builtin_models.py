"""SequentialMLP, SequentialCNN and TabularMLP: the models of every framework, built from the adapter's specs."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from anyaccel import rng
from anyaccel.adapter import VjpResult
from anyaccel.adapter.model_specs import (
    CNNSpec,
    MLPSpec,
    ModelSpec,
    SequentialCNNConstructor,
    SequentialMLPConstructor,
    TabularMLPConstructor,
    TabularSpec,
)
from anyaccel.arguments import shown
from anyaccel.errors import SpecError
from anyaccel.numpy_backend.layers import Activation, BatchNorm, Conv2d, Dense, Dropout, Flatten, MaxPool2d
from anyaccel.numpy_backend.module import Module, Values, output_specs
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
        """Return the layers with the prefixes of their values; those without values have a prefix all the same."""

    def get_config(self) -> dict[str, Any]:
        """Return the settings, as keyword arguments of the class."""
        return self.spec.get_config()

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return bool(self.parameters)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the initial weights of the spec for these inputs.

        Raises:
            ShapeError: the spec does not accept these inputs.
        """
        self.parameters.update(self.spec.weights([spec.shape for spec in inputs], seed))


class SequentialMLP(SequentialMLPConstructor, SpecModel[MLPSpec]):
    """A multi-layer perceptron with the same initial weights as in every framework; see `MLPSpec`.

    Inputs are flattened per sample and concatenated. Then `n_layers` linear layers follow, with an activation and
    dropout between them. The model is built when it first receives inputs.

    Args:
        output_shape: Shape of one sample of the output.
        n_layers: Number of linear layers.
        hidden_dim: Number of outputs of each layer except the last.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: Rate of the dropout after each activation.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting out of range.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("points", {"x": np.zeros((8, 3), "float32")}, ["x"])
        >>> net = aa.SequentialMLP([2], n_layers=2, hidden_dim=16, activation="tanh")
        >>> graph = aa.ModelGraph([aa.ModelNode("net", net, data)]).build()
        >>> graph.shapes.specs["net"].shape
        (2,)
    """

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, *output_shape] from inputs [batch, ...]."""
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

    It takes one input [channels, height, width] per sample: convolutions, each with an activation and max pooling, then
    dropout and one linear layer. The model is built when it first receives its input.

    Args:
        output_shape: Shape of one sample of the output.
        channels: Output channels of each convolution.
        kernel_size: Height and width of the kernels, odd.
        pool: Height, width and stride of the pooling windows; 1 for no pooling.
        activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.
        dropout: Rate of the dropout before the linear layer.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting out of range.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("images", {"x": np.zeros((4, 1, 8, 8), "float32")}, ["x"])
        >>> net = aa.SequentialCNN([10], channels=[4, 8])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", net, data)]).build()
        >>> graph.shapes.specs["net"].shape
        (10,)
    """

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, *output_shape] from one input [batch, channels, height, width]."""
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


class TabularMLP(TabularMLPConstructor, SpecModel[TabularSpec]):
    """A perceptron for rows of a table, which embeds categories; the same initial weights as in every framework.

    The input is one array [batch, n_numbers + len(cardinalities)], the numbers first; the output is [batch, n_outputs].
    See `TabularSpec`.

    Args:
        n_numbers: Number of numeric columns.
        cardinalities: Number of codes of each category column, including 0 for missing or unknown categories.
        n_outputs: Number of outputs for each row.
        hidden: Number of outputs of each hidden layer.
        dropout: Rate of the dropout after each hidden layer.
        category_dropout: Fraction of the codes that training replaces by 0.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a setting out of range.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> table = np.array([[0.5, 1], [0.1, 2]], "float32")  # a number, and the code of a category
        >>> data = aa.FeatureSet.from_dict("rows", {"x": table}, ["x"])
        >>> net = aa.TabularMLP(1, cardinalities=[3], n_outputs=2, hidden=[8])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", net, data)]).build()
        >>> graph.shapes.specs["net"].shape
        (2,)
    """

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, n_outputs] from one input [batch, columns]."""
        x = inputs[0].reshape(len(inputs[0]), -1)
        numbers, codes = x[:, : self.spec.n_numbers], x[:, self.spec.n_numbers :]
        cardinalities = self.spec.cardinalities
        is_code = (codes >= 0) & (codes < np.array(cardinalities, x.dtype)) & (codes == np.floor(codes))
        chosen = np.where(is_code, codes, 0).astype(np.int64)
        if train and cardinalities and self.spec.category_dropout:
            chosen *= rng.uniform(rng.key(key, "categories"), chosen.shape, 0.0, 1.0) >= self.spec.category_dropout
        tables = [values[f"embeddings.{i}.weight"] for i in range(len(cardinalities))]
        embedded = [table[chosen[:, i]] for i, table in enumerate(tables)]
        features = np.concatenate([numbers, *embedded], axis=1)
        features[~is_code.all(axis=1)] = np.nan
        inner = apply_in_sequence(self._parts, values, (features,), train=train, key=key)

        def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], list[Array]]:
            gradients, (c,) = inner.pullback(cotangents)
            gradients, start = dict(gradients), numbers.shape[1]
            for i, table in enumerate(tables):
                gradient = np.zeros_like(table)
                np.add.at(gradient, chosen[:, i], c[:, start : start + table.shape[1]])
                gradients[f"embeddings.{i}.weight"] = gradient
                start += table.shape[1]
            of_x = np.concatenate([c[:, : numbers.shape[1]], np.zeros_like(codes)], axis=1)
            return gradients, [of_x.reshape(inputs[0].shape)]

        return VjpResult(inner.outputs, pullback)

    def _layers(self) -> Iterator[tuple[str, Module]]:
        for index, width in enumerate((*self.spec.hidden, self.spec.n_outputs)):
            if index:
                yield f"activations.{index}.", Activation("relu")
                yield f"dropouts.{index}.", Dropout(self.spec.dropout)
            yield f"layers.{index}.", Dense(width, dtype=self.spec.dtype)


# -- Sequential: modules one after the other ---------------------------------------------------------------------------


Parts = Sequence[tuple[str, Module]]
"""Modules in order, each with the prefix of its values' names."""


_DRAW_NOTHING = frozenset({Dense, Activation, BatchNorm, Conv2d, MaxPool2d, Flatten})
"""Layers, and no classes derived from them, that need no key, which takes as long as a small layer."""


def _may_draw(module: Module) -> bool:
    kind = type(module)
    return kind not in _DRAW_NOTHING and not (kind is Dropout and not module.rate)  # type: ignore[attr-defined]


def apply_in_sequence(parts: Parts, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
    """Apply each module to the outputs of the previous one; modules with the same prefix share their values."""
    current, outputs, tape = dict(values), inputs, []
    for index, (prefix, module) in enumerate(parts):
        part_values = {name[len(prefix) :]: value for name, value in current.items() if name.startswith(prefix)}
        applied = module.apply(
            part_values, outputs, train=train, key=rng.key(key, index) if train and _may_draw(module) else 0
        )
        current.update({prefix + name: value for name, value in (applied.buffers or {}).items()})
        tape.append((prefix, applied.pullback))
        outputs = applied.outputs

    def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], Sequence[Array]]:
        gradients: dict[str, Array] = {}
        flowing: Sequence[Array] = cotangents
        for prefix, module_pullback in reversed(tape):
            own_gradients, flowing = module_pullback(tuple(flowing))
            for name, gradient in own_gradients.items():
                full = prefix + name
                gradients[full] = gradients[full] + gradient if full in gradients else gradient
        return gradients, flowing

    changed = {name: value for name, value in current.items() if value is not values[name]}
    return VjpResult(outputs, pullback, changed or None)


class Sequential(Module):
    """Modules in sequence; a module at several positions shares its parameters among them.

    The first module may take several inputs. Values are named `INDEX.NAME`.
    """

    def __init__(self, *layers: Module) -> None:
        for layer in layers:
            if not isinstance(layer, Module):
                hint = "write Sequential(Dense(16), Dense(1))"
                raise SpecError(f"Sequential: {shown(layer)} is not a Module", hint=hint)
        self.layers = layers
        first = {id(layer): index for index, layer in reversed(list(enumerate(layers)))}
        self.parts = [(f"{first[id(layer)]}.", layer) for layer in layers]
        self.parameters = PrefixedMappings({prefix: layer.parameters for prefix, layer in self.parts})
        self.buffers = PrefixedMappings({prefix: layer.buffers for prefix, layer in self.parts})
        self.dtype = next((layer.dtype for layer in layers if layer.dtype is not None), None)

    @property
    def is_built(self) -> bool:
        """Whether all layers are built."""
        return all(layer.is_built for layer in self.layers)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Build each layer for the outputs of the previous one."""
        for prefix, layer in self.parts:
            if not layer.is_built:
                layer.build(inputs, rng.key(seed, prefix))
            inputs = output_specs(layer, inputs)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute the outputs of the last layer from the inputs of the first."""
        return apply_in_sequence(self.parts, values, inputs, train=train, key=key)


class PrefixedMappings(MutableMapping[str, Array]):
    """Several mappings as one, with a prefix for the names of each; writes go to the parts."""

    def __init__(self, parts: Mapping[str, MutableMapping[str, Array]]) -> None:
        self._parts = parts

    def _locate(self, name: str) -> tuple[MutableMapping[str, Array], str]:
        first, dot, rest = name.partition(".")
        return self._parts[first + dot], rest

    def __getitem__(self, name: str) -> Array:
        part, rest = self._locate(name)
        return part[rest]

    def __setitem__(self, name: str, value: Array) -> None:
        part, rest = self._locate(name)
        part[rest] = value

    def __delitem__(self, name: str) -> None:
        part, rest = self._locate(name)
        del part[rest]

    def __iter__(self) -> Iterator[str]:
        return (prefix + name for prefix, values in self._parts.items() for name in values)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))
