"""The layers: Dense, Activation, Dropout and BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter import VjpResult
from anyaccel.errors import ShapeError, SpecError
from anyaccel.numpy_backend import functional
from anyaccel.numpy_backend.module import Module, Values, only
from anyaccel.numpy_backend.sim_array import Array
from anyaccel.segment import TensorSpec


def check_dtype(what: str, x: Array, dtype: np.dtype[Any]) -> None:
    """Refuse an input whose dtype is not the layer's; nothing is converted on the way.

    Raises:
        ShapeError: it is not.
    """
    if x.dtype != dtype:
        raise ShapeError(
            f"{what} computes in {dtype} and was given {shown(x)}",
            hint=f"cast the features to {dtype}, or make the layer with another dtype",
        )


def shown(x: Array) -> str:
    """Dtype and shape of a sample, for messages."""
    return f"{x.dtype}{list(x.shape[1:])}"


def listed(inputs: Sequence[TensorSpec]) -> str:
    """Specifications of inputs, for messages."""
    return ", ".join(map(str, inputs)) or "none"


def _check(what: str, x: Array, features: int, dtype: np.dtype[Any]) -> None:
    """Refuse an input whose last axis or dtype is not the layer's."""
    if x.ndim < 2 or x.shape[-1] != features:
        raise ShapeError(f"{what} takes samples with {features} features and was given {shown(x)}")
    check_dtype(what, x, dtype)


class Dense(Module):
    """A linear layer over the last axis: `x @ weight.T + bias`, built when it first meets its inputs.

    Parameters are `weight` [features, in] and `bias` [features], uniform in +-1/sqrt(in).

    Args:
        features: size of the output's last axis.
        bias: whether there is a bias.
        dtype: of parameters, inputs and outputs: `"float32"` or `"float64"`.

    Raises:
        SpecError: features is not a positive int.
    """

    def __init__(self, features: int, *, bias: bool = True, dtype: str = "float32") -> None:
        super().__init__()
        if not isinstance(features, int) or features < 1:
            raise SpecError(f"Dense: features={features!r} is not a positive int")
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
            raise ShapeError(f"Dense takes one input with at least one axis, and was given {listed(inputs)}")
        fan_in = inputs[0].shape[-1]
        bound = 1.0 / math.sqrt(fan_in)
        shapes = {"weight": (self.features, fan_in), "bias": (self.features,)}
        for name in ("weight", "bias") if self.bias else ("weight",):
            drawn = rng.uniform(rng.key(seed, name), shapes[name], -bound, bound)
            self.parameters[name] = drawn.astype(self.dtype)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, ..., in] to [batch, ..., features]."""
        x, weight = only("Dense", inputs), values["weight"]
        _check(f"Dense({self.features})", x, weight.shape[1], weight.dtype)
        y, back = functional.linear(x, weight, values.get("bias"))

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            c, by_weight, by_bias = back(cotangents[0])
            return {"weight": by_weight, "bias": by_bias} if "bias" in values else {"weight": by_weight}, (c,)

        return VjpResult((y,), pullback)


class Activation(Module):
    """An activation on every element: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.

    Raises:
        SpecError: there is none of this name.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        functional.activation(name, np.zeros(1))
        self.name = name

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input of any shape."""
        y, back = functional.activation(self.name, only(self.name, inputs))
        return VjpResult((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


class Dropout(Module):
    """Zeroes elements with probability `rate` while training, and scales the rest by 1 / (1 - rate).

    Raises:
        SpecError: a rate outside [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise SpecError(f"Dropout: rate={rate!r} is not in [0, 1)")
        self.rate = rate

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input of any shape; the same key zeroes the same elements."""
        x = only("Dropout", inputs)
        if not (train and self.rate):
            return VjpResult((x,), lambda cotangents: ({}, cotangents))
        y, back = functional.dropout(x, self.rate, key)
        return VjpResult((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


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
            raise ShapeError(f"BatchNorm takes one input with one axis, and was given {listed(inputs)}")
        zeros, ones = np.zeros(inputs[0].shape, self.dtype), np.ones(inputs[0].shape, self.dtype)
        self.parameters.update(weight=ones, bias=zeros)
        self.buffers.update(running_mean=zeros.copy(), running_var=ones.copy())

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, features]."""
        x, weight = only("BatchNorm", inputs), values["weight"]
        _check("BatchNorm", x, weight.shape[0], weight.dtype)
        if train:
            y, mean, variance, through = functional.batch_normalized(x, self.eps)
            after = self._running(values, mean, variance * (len(x) / max(len(x) - 1, 1)))
        else:
            y = functional.normalized(x, values["running_mean"], values["running_var"], self.eps)
            after, through = None, self._straight(values["running_var"])

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            (c,) = cotangents
            return {"weight": np.sum(c * y, axis=0), "bias": np.sum(c, axis=0)}, (through(c * weight),)

        return VjpResult((y * weight + values["bias"],), pullback, after)

    def _straight(self, variance: Array) -> Callable[[Array], Array]:
        return lambda c: c / np.sqrt(variance + self.eps)

    def _running(self, values: Values, mean: Array, variance: Array) -> dict[str, Array]:
        now = {"running_mean": mean, "running_var": variance}
        return {name: (1 - self.momentum) * values[name] + self.momentum * value for name, value in now.items()}
