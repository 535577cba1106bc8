"""SequentialMLP, SequentialCNN and TabularMLP for JAX."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.model_specs import (
    CNNSpec,
    MLPSpec,
    SequentialCNNConstructor,
    SequentialMLPConstructor,
    TabularMLPConstructor,
    TabularSpec,
    check_input_shapes,
)
from anyaccel.adapter.precision_casts import codes_reason
from anyaccel.segment import TensorSpec
from anyaccel_jax.host_transfer import check_dtype
from anyaccel_jax.models.base import Arrays, Model, outputs_of

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}
Dropout = Callable[[Any, int], Any]
"""Applies dropout to an array; the number tells the places of dropout in a model apart."""


class SpecModel(Model):
    """A model that a spec of `anyaccel.adapter.model_specs` describes, with the same initial weights everywhere.

    It is built when the shapes are known: by `build`, by the graph it is in, or by its first batch with seed 0.
    """

    def __init__(self, spec: MLPSpec | CNNSpec | TabularSpec) -> None:
        self.spec = spec
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None
        self.parameters = {}
        self.buffers = {}

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return self.input_shapes is not None

    @property
    def dtype(self) -> str:
        """That of the spec."""
        return self.spec.dtype

    @property
    def cache_key(self) -> Any:
        """The spec."""
        return repr(self.spec.get_config())

    def precision_reason(self, precision: str) -> str:
        """Return the reason of the spec."""
        return codes_reason(self.spec, precision)

    def build(self, inputs: Sequence[TensorSpec], seed: int, layout: CallLayout = POSITIONAL) -> None:
        """Create the parameters for these inputs; a second call with inputs of the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes, or the spec does not allow them.
            MoveError: float64 without JAX's 64-bit types.
        """
        shapes = tuple(spec.shape for spec in inputs)
        if self.input_shapes is not None:
            check_input_shapes(type(self).__name__, self.spec, self.input_shapes, shapes)
            return
        check_dtype(self.spec.dtype)
        self.parameters = {name: jnp.array(weight) for name, weight in self.spec.weights(shapes, seed).items()}
        self.input_shapes = shapes

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        """Compute [batch, *output_shape]."""
        rate = self.spec.dropout if train else 0.0

        def drop(x: Any, number: int) -> Any:
            if not rate:
                return x
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1.0 - rate, x.shape)
            return jnp.where(kept, x / (1.0 - rate), 0.0).astype(x.dtype)

        y = self._features(parameters, inputs, drop, key if train else None)
        return outputs_of(y.reshape(y.shape[0], *self.spec.output_shape), layout), None

    @abstractmethod
    def _features(self, parameters: Arrays, inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        """Compute [batch, features]; the key is None outside of training."""

    def __call__(self, *inputs: Any) -> Any:
        """Compute [batch, *output_shape] in evaluation mode, from inputs [batch, ...] in the spec's dtype."""
        if not self.is_built:
            self.build([TensorSpec(tuple(x.shape[1:]), str(x.dtype)) for x in inputs], seed=0)
        return super().__call__(*map(jnp.asarray, inputs))

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict; its entries are the keywords that create an equal model."""
        return self.spec.get_config()


class SequentialMLP(SequentialMLPConstructor, SpecModel):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more arrays [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. Its
    `parameters` are `layers.I.weight` [out, in] and `layers.I.bias` [out].

    Raises:
        SpecError: a setting out of range.
    """

    spec: MLPSpec

    def _features(self, parameters: Arrays, inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        x = jnp.concatenate([_flat(x) for x in inputs], axis=1) if len(inputs) > 1 else _flat(inputs[0])
        activate, last = _ACTIVATIONS[self.spec.activation], self.spec.n_layers - 1
        for i in range(last):
            x = drop(activate(_linear(parameters, f"layers.{i}", x)), i)
        return _linear(parameters, f"layers.{last}", x)


class SequentialCNN(SequentialCNNConstructor, SpecModel):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one array [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. Its `parameters` are
    `convs.I.weight` [out, in, k, k], `convs.I.bias`, `head.weight` and `head.bias`.

    Raises:
        SpecError: a setting out of range.
    """

    spec: CNNSpec

    @property
    def data_format(self) -> tuple[str, str]:
        """Channels first, as in every framework; the output is not an image."""
        return "channels_first", ""

    def _features(self, parameters: Arrays, inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        (x,) = inputs
        activate, pool = _ACTIVATIONS[self.spec.activation], self.spec.pool
        padding = [(self.spec.padding, self.spec.padding)] * 2
        for i in range(len(self.spec.channels)):
            weight, bias = parameters[f"convs.{i}.weight"], parameters[f"convs.{i}.bias"]
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = activate(x + bias[:, None, None])
            x = _max_pool(x, pool) if pool > 1 else x
        return _linear(parameters, "head", drop(_flat(x), 0))


class TabularMLP(TabularMLPConstructor, SpecModel):
    """A perceptron for rows of a table, which embeds categories; the same initial weights as in every other framework.

    Takes one array [batch, n_numbers + len(cardinalities)], the numbers first, and gives [batch, n_outputs]; see
    `TabularSpec`.

    Raises:
        SpecError: a setting out of range.
    """

    spec: TabularSpec

    def _features(self, parameters: Arrays, inputs: Sequence[Any], drop: Dropout, key: Any) -> Any:
        x = _flat(inputs[0])
        if self.spec.cardinalities:
            codes = x[:, self.spec.n_numbers :]
            is_code = (codes >= 0) & (codes < jnp.array(self.spec.cardinalities, x.dtype)) & (codes == jnp.floor(codes))
            chosen = jnp.where(is_code, codes, 0).astype(jnp.int32)
            if key is not None and self.spec.category_dropout:
                stream = jax.random.fold_in(key, len(self.spec.hidden))
                chosen *= jax.random.bernoulli(stream, 1.0 - self.spec.category_dropout, chosen.shape)
            tables = [parameters[f"embeddings.{i}.weight"] for i in range(chosen.shape[1])]
            embedded = [table[chosen[:, i]] for i, table in enumerate(tables)]
            x = jnp.concatenate([x[:, : self.spec.n_numbers], *embedded], axis=1)
            x = jnp.where(is_code.all(axis=1, keepdims=True), x, jnp.nan)
        for i in range(len(self.spec.hidden)):
            x = drop(jax.nn.relu(_linear(parameters, f"layers.{i}", x)), i)
        return _linear(parameters, f"layers.{len(self.spec.hidden)}", x)


def _linear(parameters: Arrays, layer: str, x: Any) -> Any:
    return x @ parameters[f"{layer}.weight"].T + parameters[f"{layer}.bias"]


def _max_pool(x: Any, size: int) -> Any:
    window = (1, 1, size, size)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def _flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1) if x.shape[0] else x.reshape(0, *x.shape[1:])
