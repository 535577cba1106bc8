"""SequentialMLP and SequentialCNN for JAX."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, as_shape, check_input_shapes
from anyaccel.segment import TensorSpec
from anyaccel_jax.host_transfer import check_dtype
from anyaccel_jax.models.base import Arrays, Model

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}
Drop = Callable[[Any, int], Any]


class FromRecipe(Model):
    """A model that a recipe of `anyaccel.adapter.model_specs` describes, with the same initial weights as in other frameworks.

    It is built when the shapes are known: by `build`, by the graph it is in, or else by its first batch with seed 0.
    """

    def __init__(self, recipe: MLPSpec | CNNSpec) -> None:
        self.recipe = recipe
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None
        self.parameters = {}
        self.buffers = {}

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return self.input_shapes is not None

    @property
    def dtype(self) -> str:
        """That of the recipe."""
        return self.recipe.dtype

    @property
    def cache_key(self) -> Any:
        """The recipe."""
        return repr(self.recipe.get_config())

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Make the parameters for these inputs; a second call with inputs of the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes, or the recipe does not take them.
            MoveError: float64 without JAX's 64-bit types.
        """
        shapes = tuple(spec.shape for spec in inputs)
        if self.input_shapes is not None:
            check_input_shapes(type(self).__name__, self.recipe, self.input_shapes, shapes)
            return
        check_dtype(self.recipe.dtype)
        self.parameters = {name: jnp.array(one) for name, one in self.recipe.weights(shapes, seed).items()}
        self.input_shapes = shapes

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`; [batch, *output_shape]."""
        rate = self.recipe.dropout if train else 0.0

        def drop(x: Any, number: int) -> Any:
            if not rate:
                return x
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1.0 - rate, x.shape)
            return jnp.where(kept, x / (1.0 - rate), 0.0).astype(x.dtype)

        y = self._through(parameters, inputs, drop)
        return y.reshape(y.shape[0], *self.recipe.output_shape), None

    @abstractmethod
    def _through(self, parameters: Arrays, inputs: Sequence[Any], drop: Drop) -> Any:
        """[batch, features]; `drop` takes what dropout is for, and a number of its own."""

    def __call__(self, *inputs: Any) -> Any:
        """[batch, *output_shape] in evaluation mode, for inputs [batch, ...] of the recipe's dtype."""
        if not self.is_built:
            self.build([TensorSpec(tuple(x.shape[1:]), str(x.dtype)) for x in inputs], seed=0)
        return super().__call__(*map(jnp.asarray, inputs))

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords that make an equal model."""
        return self.recipe.get_config()


class SequentialMLP(FromRecipe):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more arrays [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. Its
    `parameters` are `layers.I.weight` [out, in] and `layers.I.bias` [out].

    Raises:
        SpecError: a setting out of range.
    """

    recipe: MLPSpec

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

    def _through(self, parameters: Arrays, inputs: Sequence[Any], drop: Drop) -> Any:
        x = jnp.concatenate([_flat(x) for x in inputs], axis=1) if len(inputs) > 1 else _flat(inputs[0])
        activate, last = _ACTIVATIONS[self.recipe.activation], self.recipe.n_layers - 1
        for i in range(last):
            x = drop(activate(_linear(parameters, f"layers.{i}", x)), i)
        return _linear(parameters, f"layers.{last}", x)


class SequentialCNN(FromRecipe):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one array [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. Its `parameters` are
    `convs.I.weight` [out, in, k, k], `convs.I.bias`, `head.weight` and `head.bias`.

    Raises:
        SpecError: a setting out of range.
    """

    recipe: CNNSpec

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

    @property
    def layout(self) -> tuple[str, str]:
        """Channels first, as in every framework; the output is no image."""
        return "channels_first", ""

    def _through(self, parameters: Arrays, inputs: Sequence[Any], drop: Drop) -> Any:
        (x,) = inputs
        activate, pool = _ACTIVATIONS[self.recipe.activation], self.recipe.pool
        edges = [(self.recipe.padding, self.recipe.padding)] * 2
        for i in range(len(self.recipe.channels)):
            weight, bias = parameters[f"convs.{i}.weight"], parameters[f"convs.{i}.bias"]
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), edges, dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = activate(x + bias[:, None, None])
            x = _pooled(x, pool) if pool > 1 else x
        return _linear(parameters, "head", drop(_flat(x), 0))


def _linear(parameters: Arrays, layer: str, x: Any) -> Any:
    return x @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"]


def _pooled(x: Any, size: int) -> Any:
    window = (1, 1, size, size)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def _flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1) if x.shape[0] else x.reshape(0, *x.shape[1:])
