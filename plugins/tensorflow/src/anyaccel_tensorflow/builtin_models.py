"""SequentialMLP, SequentialCNN and TabularMLP for TensorFlow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from anyaccel import rng
from anyaccel.adapter.model_specs import (
    CNNSpec,
    MLPSpec,
    SequentialCNNConstructor,
    SequentialMLPConstructor,
    TabularMLPConstructor,
    TabularSpec,
    check_input_shapes,
)
from anyaccel_tensorflow.stateless_rng import dropout, key_of
from anyaccel_tensorflow.variables import model_variables, read

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": tf.nn.relu, "tanh": tf.tanh, "sigmoid": tf.sigmoid}
Dropout = Callable[[Any, int], Any]
"""Applies dropout to a tensor; the number tells the places of dropout in a model apart."""


class Layer(tf.Module):  # type: ignore[misc]
    """A weight [out, ...] and, but for an embedding, a bias [out]."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        super().__init__()
        self.weight = tf.Variable(weight, name="weight")
        if bias is not None:
            self.bias = tf.Variable(bias, name="bias")


class SpecModel(tf.Module):  # type: ignore[misc]
    """A module that a spec of `anyaccel.adapter.model_specs` describes, with the same initial weights everywhere.

    It is built when the shapes are known: by `build`, by the graph it is in, or by its first batch with seed 0.
    """

    _lists: ClassVar[tuple[str, ...]]  # attributes with lists of layers

    def __init__(self, spec: MLPSpec | CNNSpec | TabularSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None
        self.initial_seed = 0
        self._n_calls = 0
        for name in self._lists:
            setattr(self, name, [])

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return self.input_shapes is not None

    def build(self, input_shapes: Sequence[Sequence[int]], seed: int) -> None:
        """Create the layers for inputs of these shapes per sample; calling it again with the same shapes does nothing.

        Raises:
            ShapeError: it was built for other shapes, or the spec does not allow them.
        """
        shapes = tuple(tuple(int(extent) for extent in shape) for shape in input_shapes)
        if self.input_shapes is not None:
            built = tuple(tuple(shape) for shape in self.input_shapes)
            check_input_shapes(type(self).__name__, self.spec, built, shapes)
            return
        weights = self.spec.weights(shapes, seed)
        for name in self.spec.weight_shapes(shapes):
            layer = Layer(weights[f"{name}.weight"], weights.get(f"{name}.bias"))
            parent = name.partition(".")[0]
            if parent in self._lists:
                getattr(self, parent).append(layer)
            else:
                setattr(self, name, layer)
        self.input_shapes = shapes

    def __call__(self, *inputs: Any, training: bool = False) -> Any:
        """Compute [batch, *output_shape] from inputs [batch, ...] in the spec's dtype; dropout in training only."""
        tensors = [tf.convert_to_tensor(x) for x in inputs]
        if not self.is_built:
            self.build([x.shape[1:] for x in tensors], self.initial_seed)
        self._n_calls += 1
        values = {name: read(variable) for name, variable in model_variables(self).parameters.items()}
        return self.forward(values, tensors, training, key_of(rng.key(0, "dropout", self._n_calls)))

    def forward(self, values: Mapping[str, Any], inputs: Sequence[Any], training: bool, key: Any) -> Any:
        """Return the output as a function of the parameters by name; dropout follows from `key`."""
        rate = self.spec.dropout if training else 0.0
        drop = (lambda x, i: dropout(x, rate, key, i)) if rate else (lambda x, i: x)
        x = self._features(values, inputs, drop, key if training else None)
        shape = self.spec.output_shape
        return x if len(shape) == 1 else tf.reshape(x, [-1, *shape])

    @abstractmethod
    def _features(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        """Compute [batch, features]; the key is None outside of training."""

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict; its entries are the keywords that create an equal model."""
        return self.spec.get_config()


class SequentialMLP(SequentialMLPConstructor, SpecModel):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more tensors [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. Its
    variables are `layers[i].weight` [out, in] and `layers[i].bias` [out].

    Raises:
        SpecError: a setting out of range.
    """

    spec: MLPSpec
    layers: list[Layer]
    _lists = ("layers",)

    def _features(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        x = tf.concat([_flat(x) for x in inputs], 1) if len(inputs) > 1 else _flat(inputs[0])
        activate, last = _ACTIVATIONS.get(self.spec.activation, tf.identity), len(self.layers) - 1
        for i in range(last):
            x = drop(activate(_linear(x, values, f"layers.{i}")), i)
        return _linear(x, values, f"layers.{last}")


class SequentialCNN(SequentialCNNConstructor, SpecModel):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one tensor [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. Inside, images are
    channels last, the only order that TensorFlow's convolutions support on a CPU. Its variables are `convs[i].weight`
    [out, in, k, k], `convs[i].bias`, `head.weight` and `head.bias`.

    Raises:
        SpecError: a setting out of range.
    """

    spec: CNNSpec
    convs: list[Layer]
    head: Layer
    _lists = ("convs",)

    def _features(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        activate = _ACTIVATIONS.get(self.spec.activation, tf.identity)
        pool, x = self.spec.pool, tf.transpose(inputs[0], [0, 2, 3, 1])
        for i in range(len(self.convs)):
            kernel = tf.transpose(values[f"convs.{i}.weight"], [2, 3, 1, 0])
            x = activate(tf.nn.conv2d(x, kernel, 1, "SAME") + values[f"convs.{i}.bias"])
            x = tf.nn.max_pool2d(x, pool, pool, "VALID") if pool > 1 else x
        return _linear(drop(_flat(tf.transpose(x, [0, 3, 1, 2])), 0), values, "head")


class TabularMLP(TabularMLPConstructor, SpecModel):
    """A perceptron for rows of a table, which embeds categories; the same initial weights as in every other framework.

    Takes one tensor [batch, n_numbers + len(cardinalities)], the numbers first, and gives [batch, n_outputs]; see
    `TabularSpec`.

    Raises:
        SpecError: a setting out of range.
    """

    spec: TabularSpec
    embeddings: list[Layer]
    layers: list[Layer]
    _lists = ("embeddings", "layers")

    def _features(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        x = _flat(inputs[0])
        if self.spec.cardinalities:
            codes = x[:, self.spec.n_numbers :]
            limits = tf.constant(self.spec.cardinalities, x.dtype)
            is_code = (codes >= 0) & (codes < limits) & (codes == tf.floor(codes))
            chosen = tf.where(is_code, codes, tf.zeros_like(codes))
            if key is not None and self.spec.category_dropout:
                kept = dropout(tf.ones_like(codes), self.spec.category_dropout, key, len(self.spec.hidden)) > 0
                chosen = tf.where(kept, chosen, tf.zeros_like(codes))
            chosen = tf.cast(chosen, tf.int32)
            tables = [values[f"embeddings.{i}.weight"] for i in range(len(self.spec.cardinalities))]
            embedded = [tf.gather(table, chosen[:, i]) for i, table in enumerate(tables)]
            x = tf.concat([x[:, : self.spec.n_numbers], *embedded], 1)
            x = tf.where(tf.reduce_all(is_code, 1, keepdims=True), x, tf.constant(float("nan"), x.dtype))
        last = len(self.spec.hidden)
        for i in range(last):
            x = drop(tf.nn.relu(_linear(x, values, f"layers.{i}")), i)
        return _linear(x, values, f"layers.{last}")


def _linear(x: Any, values: Mapping[str, Any], name: str) -> Any:
    return tf.matmul(x, values[f"{name}.weight"], transpose_b=True) + values[f"{name}.bias"]


def _flat(x: Any) -> Any:
    if x.shape.rank == 2:
        return x
    return tf.reshape(x, [-1, x.shape[1:].num_elements()]) if x.shape.rank > 2 else x[:, None]
