"""SequentialMLP and SequentialCNN for TensorFlow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from anyaccel import rng
from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, as_shape, check_input_shapes
from anyaccel_tensorflow.stateless_rng import dropped, key_of
from anyaccel_tensorflow.variables import held, read

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": tf.nn.relu, "tanh": tf.tanh, "sigmoid": tf.sigmoid}


class Layer(tf.Module):  # type: ignore[misc]
    """A weight [out, ...] and a bias [out]."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.weight = tf.Variable(weight, name="weight")
        self.bias = tf.Variable(bias, name="bias")


class FromRecipe(tf.Module):  # type: ignore[misc]
    """A module that a recipe of `anyaccel.adapter.model_specs` describes, with the same initial weights as in other frameworks.

    It is built when the shapes are known: by `build`, by the graph it is in, or else by its first batch with seed 0.
    """

    def __init__(self, recipe: MLPSpec | CNNSpec) -> None:
        super().__init__()
        self.recipe = recipe
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None
        self.initial_seed = 0
        self._drawn = 0

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return self.input_shapes is not None

    def build(self, input_shapes: Sequence[Sequence[int]], seed: int) -> None:
        """Make the layers for inputs of these shapes per sample; a second call with the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes, or the recipe does not take them.
        """
        shapes = tuple(tuple(int(extent) for extent in shape) for shape in input_shapes)
        if self.input_shapes is not None:
            check_input_shapes(
                type(self).__name__, self.recipe, tuple(tuple(shape) for shape in self.input_shapes), shapes
            )
            return
        weights = self.recipe.weights(shapes, seed)
        for name in self.recipe.weight_shapes(shapes):
            self._add(name, Layer(weights[f"{name}.weight"], weights[f"{name}.bias"]))
        self.input_shapes = shapes

    @abstractmethod
    def _add(self, name: str, layer: Layer) -> None:
        """Hold a layer under its name."""

    def __call__(self, *inputs: Any, training: bool = False) -> Any:
        """[batch, *output_shape] for inputs [batch, ...] of the recipe's dtype; dropout in training only."""
        given = [tf.convert_to_tensor(x) for x in inputs]
        if not self.is_built:
            self.build([x.shape[1:] for x in given], self.initial_seed)
        self._drawn += 1
        values = {name: read(variable) for name, variable in held(self).parameters.items()}
        return self.forward(values, given, training, key_of(rng.key(0, "dropout", self._drawn)))

    def forward(self, values: Mapping[str, Any], inputs: Sequence[Any], training: bool, key: Any) -> Any:
        """The output as a function of the parameters by name; `key` decides what dropout leaves out."""
        x = self._through(values, inputs, lambda x, i: self._dropped(x, i, key) if training else x)
        shape = self.recipe.output_shape
        return x if len(shape) == 1 else tf.reshape(x, [-1, *shape])

    @abstractmethod
    def _through(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Callable[[Any, int], Any]) -> Any:
        """[batch, features]; `drop` takes what dropout is for, and a number of its own."""

    def _dropped(self, x: Any, i: int, key: Any) -> Any:
        return dropped(x, self.recipe.dropout, key, i) if self.recipe.dropout else x

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords that make an equal model."""
        return self.recipe.get_config()


class SequentialMLP(FromRecipe):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more tensors [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. Its
    variables are `layers[i].weight` [out, in] and `layers[i].bias` [out].

    Raises:
        SpecError: a setting out of range.
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
        self.layers: list[Layer] = []

    def _add(self, name: str, layer: Layer) -> None:
        self.layers.append(layer)

    def _through(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Callable[[Any, int], Any]) -> Any:
        x = tf.concat([_flat(x) for x in inputs], 1) if len(inputs) > 1 else _flat(inputs[0])
        activate, last = _ACTIVATIONS.get(self.recipe.activation, tf.identity), len(self.layers) - 1
        for i in range(last):
            x = drop(activate(_linear(x, values, f"layers.{i}")), i)
        return _linear(x, values, f"layers.{last}")


class SequentialCNN(FromRecipe):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one tensor [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. Inside, images are
    channels last, the only order that TensorFlow's convolutions know on a CPU. Its variables are `convs[i].weight`
    [out, in, k, k], `convs[i].bias`, `head.weight` and `head.bias`.

    Raises:
        SpecError: a setting out of range.
    """

    recipe: CNNSpec
    head: Layer

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
        self.convs: list[Layer] = []

    def _add(self, name: str, layer: Layer) -> None:
        if name == "head":
            self.head = layer
        else:
            self.convs.append(layer)

    def _through(self, values: Mapping[str, Any], inputs: Sequence[Any], drop: Callable[[Any, int], Any]) -> Any:
        activate, pool = _ACTIVATIONS.get(self.recipe.activation, tf.identity), self.recipe.pool
        x = tf.transpose(inputs[0], [0, 2, 3, 1])
        for i in range(len(self.convs)):
            kernel = tf.transpose(values[f"convs.{i}.weight"], [2, 3, 1, 0])
            x = activate(tf.nn.conv2d(x, kernel, 1, "SAME") + values[f"convs.{i}.bias"])
            x = tf.nn.max_pool2d(x, pool, pool, "VALID") if pool > 1 else x
        return _linear(drop(_flat(tf.transpose(x, [0, 3, 1, 2])), 0), values, "head")


def _linear(x: Any, values: Mapping[str, Any], name: str) -> Any:
    return tf.matmul(x, values[f"{name}.weight"], transpose_b=True) + values[f"{name}.bias"]


def _flat(x: Any) -> Any:
    if x.shape.rank == 2:
        return x
    return tf.reshape(x, [-1, x.shape[1:].num_elements()]) if x.shape.rank > 2 else x[:, None]
