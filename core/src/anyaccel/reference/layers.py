"""The layers, and SequentialMLP made of the same primitives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter import Applied
from anyaccel.errors import RecipeError, ShapeError
from anyaccel.models import MLPRecipe
from anyaccel.reference import primitives
from anyaccel.reference.arrays import Array
from anyaccel.reference.module import Module, only
from anyaccel.segment import TensorSpec


def _check(what: str, x: Array, features: int, dtype: np.dtype[Any]) -> None:
    """Refuse an input whose last axis or dtype is not the layer's; nothing is converted on the way."""
    if x.ndim < 2 or x.shape[-1] != features:
        raise ShapeError(f"{what} takes samples with {features} features and was given {_shown(x)}")
    if x.dtype != dtype:
        raise ShapeError(
            f"{what} computes in {dtype} and was given {_shown(x)}",
            remedy=f"cast the features to {dtype}, or make the layer with another dtype",
        )


def _shown(x: Array) -> str:
    return f"{x.dtype}{list(x.shape[1:])}"


class Dense(Module):
    """A linear layer over the last axis: `x @ weight.T + bias`, built when it first meets its inputs.

    Parameters are `weight` [features, in] and `bias` [features], uniform in +-1/sqrt(in).

    Args:
        features: size of the output's last axis.
        bias: whether there is a bias.
        dtype: of parameters, inputs and outputs: `"float32"` or `"float64"`.

    Raises:
        RecipeError: features is not a positive int.
    """

    def __init__(self, features: int, *, bias: bool = True, dtype: str = "float32") -> None:
        super().__init__()
        if not isinstance(features, int) or features < 1:
            raise RecipeError(f"Dense: features={features!r} is not a positive int")
        self.features = features
        self.bias = bias
        self.dtype = dtype

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return "weight" in self.parameters

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the parameters for one input [..., in].

        Raises:
            ShapeError: several inputs, or one without an axis.
        """
        if len(inputs) != 1 or not inputs[0].shape:
            raise ShapeError(f"Dense takes one input with at least one axis, and was given {_listed(inputs)}")
        fan_in = inputs[0].shape[-1]
        bound = 1.0 / math.sqrt(fan_in)
        shapes = {"weight": (self.features, fan_in), "bias": (self.features,)}
        for name in ("weight", "bias") if self.bias else ("weight",):
            drawn = rng.uniform(rng.key(seed, name), shapes[name], -bound, bound)
            self.parameters[name] = drawn.astype(self.dtype)

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """One input [batch, ..., in] to [batch, ..., features]."""
        x, weight = only("Dense", inputs), parameters["weight"]
        _check(f"Dense({self.features})", x, weight.shape[1], weight.dtype)
        y, back = primitives.linear(x, weight, parameters.get("bias"))

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            c, *gradients = back(cotangents[0])
            return dict(zip(parameters, gradients, strict=False)), (c,)

        return Applied((y,), pullback)


def _listed(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, inputs)) or "none"


class Activation(Module):
    """An activation on every element: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.

    Raises:
        RecipeError: there is none of this name.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        primitives.activation(name, np.zeros(1))
        self.name = name

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """One input of any shape."""
        y, back = primitives.activation(self.name, only(self.name, inputs))
        return Applied((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


class Dropout(Module):
    """Zeroes elements with probability `rate` while training, and scales the rest by 1 / (1 - rate).

    Raises:
        RecipeError: a rate outside [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise RecipeError(f"Dropout: rate={rate!r} is not in [0, 1)")
        self.rate = rate

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """One input of any shape; the same key zeroes the same elements."""
        x = only("Dropout", inputs)
        if not (train and self.rate):
            return Applied((x,), lambda cotangents: ({}, cotangents))
        y, back = primitives.dropout(x, self.rate, key)
        return Applied((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


class BatchNorm(Module):
    """Normalizes each feature over the batch while training, by running statistics otherwise; then scales and shifts.

    Parameters are `weight` and `bias`, buffers `running_mean` and `running_var`, all [features], built when it first
    meets its input [features]. The running variance is the unbiased one.

    Args:
        momentum: share of the batch in the running statistics.
        eps: added to the variance.
        dtype: of all values.
    """

    def __init__(self, *, momentum: float = 0.1, eps: float = 1e-5, dtype: str = "float32") -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.dtype = dtype

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return "weight" in self.parameters

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Ones and zeros for one input [features].

        Raises:
            ShapeError: several inputs, or not one axis.
        """
        if len(inputs) != 1 or len(inputs[0].shape) != 1:
            raise ShapeError(f"BatchNorm takes one input with one axis, and was given {_listed(inputs)}")
        for values, name, start in (
            (self.parameters, "weight", 1.0),
            (self.parameters, "bias", 0.0),
            (self.buffers, "running_mean", 0.0),
            (self.buffers, "running_var", 1.0),
        ):
            values[name] = np.full(inputs[0].shape, start, self.dtype)

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """One input [batch, features]."""
        x, weight = only("BatchNorm", inputs), parameters["weight"]
        _check("BatchNorm", x, weight.shape[0], weight.dtype)
        if train:
            y, mean, variance, through = primitives.batch_normalized(x, self.eps)
            after = self._running(buffers, mean, variance * (len(x) / max(len(x) - 1, 1)))
        else:
            y = primitives.normalized(x, buffers["running_mean"], buffers["running_var"], self.eps)
            after, through = None, self._straight(buffers["running_var"])

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            (c,) = cotangents
            return {"weight": np.sum(c * y, axis=0), "bias": np.sum(c, axis=0)}, (through(c * weight),)

        return Applied((y * weight + parameters["bias"],), pullback, after)

    def _straight(self, variance: Array) -> Callable[[Array], Array]:
        return lambda c: c / np.sqrt(variance + self.eps)

    def _running(self, buffers: Mapping[str, Array], mean: Array, variance: Array) -> dict[str, Array]:
        now = {"running_mean": mean, "running_var": variance}
        return {name: (1 - self.momentum) * buffers[name] + self.momentum * value for name, value in now.items()}


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
        output_shape: Sequence[int] = (1,),
        n_layers: int = 2,
        hidden_dim: int = 16,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.recipe = MLPRecipe(tuple(output_shape), n_layers, hidden_dim, activation, dropout, dtype)
        self.dtype = dtype

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

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """Inputs [batch, ...] to [batch, *output_shape]."""
        flat = [x.reshape(len(x), -1) for x in inputs]
        values = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
        _check("SequentialMLP", values, parameters["layers.0.weight"].shape[1], parameters["layers.0.weight"].dtype)
        tape: list[Callable[[Array, dict[str, Array]], Array]] = []
        for index in range(self.recipe.n_layers):
            if index:
                values = self._between(values, train, rng.key(key, index), tape)
            values = self._layer(values, index, parameters, tape)

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], list[Array]]:
            gradients: dict[str, Array] = {}
            c = cotangents[0].reshape(len(values), -1)
            for back in reversed(tape):
                c = back(c, gradients)
            return gradients, _parted(c, inputs)

        return Applied((values.reshape(len(values), *self.recipe.output_shape),), pullback)
