"""Layers: Dense, Activation, Dropout, BatchNorm; for images, channels first, Conv2d, MaxPool2d and Flatten."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyaccel import arguments, rng
from anyaccel.adapter import VjpResult
from anyaccel.adapter.model_specs import ACTIVATIONS
from anyaccel.arguments import shown
from anyaccel.errors import ShapeError, SpecError
from anyaccel.numpy_backend.module import Module, Values, single_input
from anyaccel.numpy_backend.sim_array import Array, put_like
from anyaccel.segment import TensorSpec


class _WeightedLayer(Module):
    """A layer with a `weight`, made when it first meets its inputs."""

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return "weight" in self.parameters


class Dense(_WeightedLayer):
    """A linear layer over the last axis: `x @ weight.T + bias`, built when it first meets its inputs.

    Parameters are `weight` [features, in] and `bias` [features], uniform in +-1/sqrt(in).

    Args:
        features: Size of the output's last axis.
        bias: Whether there is a bias.
        dtype: Dtype of parameters, inputs and outputs: `"float32"` or `"float64"`.

    Raises:
        SpecError: features is not a positive int.
    """

    def __init__(self, features: int, *, bias: bool = True, dtype: str = "float32") -> None:
        super().__init__()
        self.features = _positive("Dense: features", features)
        self.bias = arguments.flag(SpecError, "Dense: ", "bias", bias)
        self.dtype = _floating("Dense", dtype)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the parameters for one input [..., in].

        Raises:
            ShapeError: several inputs, or one without an axis.
        """
        if len(inputs) != 1 or not inputs[0].shape:
            raise ShapeError(f"Dense takes one input with at least one axis, got {_listed(inputs)}")
        weights = _uniform((self.features, inputs[0].shape[-1]), seed, self.dtype)
        self.parameters.update(weights if self.bias else {"weight": weights["weight"]})

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, ..., features] from one input [batch, ..., in]."""
        x, weight = single_input("Dense", inputs), values["weight"]
        _check_features(f"Dense({self.features})", x, weight.shape[1], weight.dtype)
        y = x @ weight.T
        if "bias" in values:
            y = y + values["bias"]

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            (c,) = cotangents
            rows = c.reshape(-1, c.shape[-1])
            gradients = {"weight": rows.T @ x.reshape(-1, x.shape[-1])}
            if "bias" in values:
                gradients["bias"] = np.sum(rows, axis=0)
            return gradients, (c @ weight,)

        return VjpResult((y,), pullback)


class Activation(Module):
    """An elementwise activation: `"relu"`, `"tanh"`, `"sigmoid"` or `"identity"`.

    Raises:
        SpecError: an unknown name.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            available = ", ".join(ACTIVATIONS)
            raise SpecError(f"unknown activation {shown(name)}", available=available, hint="use one of these")
        self.name = name

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Apply to one input of any shape."""
        y, back = _ACTIVATIONS[self.name](single_input(self.name, inputs))
        return VjpResult((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


class Dropout(Module):
    """Zeroes elements with probability `rate` while training, and scales the others by 1 / (1 - rate).

    Raises:
        SpecError: a rate outside [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = arguments.number(SpecError, "Dropout: ", "rate", rate, lambda it: 0 <= it < 1, "in [0, 1)", 0.1)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Apply to one input of any shape; the same key zeroes the same elements."""
        x = single_input("Dropout", inputs)
        if not (train and self.rate):
            return _identity(x)
        kept = rng.uniform(key, x.shape, 0.0, 1.0) >= self.rate
        mask = put_like((kept / (1.0 - self.rate)).astype(x.dtype), x)
        return VjpResult((x * mask,), lambda cotangents: ({}, (cotangents[0] * mask,)))


class BatchNorm(_WeightedLayer):
    """Normalizes each feature over the batch while training, by running statistics otherwise; then scales and shifts.

    Parameters are `weight` and `bias`, buffers `running_mean` and `running_var`, all [features], built when it first
    meets its input [features]. The running variance is the unbiased one.

    Args:
        momentum: Weight of the batch in the running statistics.
        eps: Added to the variance.
        dtype: Dtype of all values.
    """

    def __init__(self, *, momentum: float = 0.1, eps: float = 1e-5, dtype: str = "float32") -> None:
        super().__init__()
        where, check = "BatchNorm: ", arguments.number
        self.momentum = check(SpecError, where, "momentum", momentum, lambda it: 0 <= it <= 1, "in [0, 1]", 0.1)
        self.eps = check(SpecError, where, "eps", eps, lambda it: it > 0, "a positive number", 1e-5)
        self.dtype = _floating("BatchNorm", dtype)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Create ones and zeros for one input [features].

        Raises:
            ShapeError: several inputs, or not one axis.
        """
        if len(inputs) != 1 or len(inputs[0].shape) != 1:
            raise ShapeError(f"BatchNorm takes one input with one axis, got {_listed(inputs)}")
        zeros, ones = np.zeros(inputs[0].shape, self.dtype), np.ones(inputs[0].shape, self.dtype)
        self.parameters.update(weight=ones, bias=zeros)
        self.buffers.update(running_mean=zeros.copy(), running_var=ones.copy())

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Normalize one input [batch, features]."""
        x, weight = single_input("BatchNorm", inputs), values["weight"]
        _check_features("BatchNorm", x, weight.shape[0], weight.dtype)
        buffers, mean, variance = None, values["running_mean"], values["running_var"]
        if train:
            mean, variance = np.mean(x, axis=0), np.var(x, axis=0)
            batch = {"running_mean": mean, "running_var": variance * (len(x) / max(len(x) - 1, 1))}
            kept = 1 - self.momentum
            buffers = {name: kept * values[name] + self.momentum * value for name, value in batch.items()}
        deviation = np.sqrt(variance + self.eps)
        y = (x - mean) / deviation

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            (c,) = cotangents
            gradients, c = {"weight": np.sum(c * y, axis=0), "bias": np.sum(c, axis=0)}, c * weight
            if train:  # mean and variance depend on x
                c = c - np.mean(c, axis=0) - y * np.mean(c * y, axis=0)
            return gradients, (c / deviation,)

        return VjpResult((y * weight + values["bias"],), pullback, buffers)


class Conv2d(_WeightedLayer):
    """A convolution over height and width, with stride 1 and zero padding, so that both stay.

    Parameters are `weight` [channels, in, kernel_size, kernel_size] and `bias` [channels], uniform in +-1/sqrt(n) with
    the fan-in n = in * kernel_size**2. Built when it first meets its input.

    Args:
        channels: Channels of the output.
        kernel_size: Height and width of the kernel, odd.
        dtype: Dtype of parameters, inputs and outputs: `"float32"` or `"float64"`.

    Raises:
        SpecError: a size that is not a positive int, or an even kernel.
    """

    def __init__(self, channels: int, kernel_size: int = 3, *, dtype: str = "float32") -> None:
        super().__init__()
        self.channels = _positive("Conv2d: channels", channels)
        self.kernel_size = _positive("Conv2d: kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise SpecError(f"Conv2d: kernel_size={kernel_size} is not odd", hint="write kernel_size=3")
        self.dtype = _floating("Conv2d", dtype)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the parameters for one input [in, height, width].

        Raises:
            ShapeError: several inputs, or not three axes.
        """
        if len(inputs) != 1 or len(inputs[0].shape) != 3:
            raise ShapeError(f"Conv2d takes one input [channels, height, width], got {_listed(inputs)}")
        shape = (self.channels, inputs[0].shape[0], self.kernel_size, self.kernel_size)
        self.parameters.update(_uniform(shape, seed, self.dtype))

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, channels, height, width] from one input [batch, in, height, width]."""
        x, weight, layer = single_input("Conv2d", inputs), values["weight"], f"Conv2d({self.channels})"
        _check_image(layer, x, weight.shape[1])
        _check_dtype(layer, x, weight.dtype)
        (height, width), size, edge = x.shape[2:], weight.shape[-1], weight.shape[-1] // 2
        padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
        offsets = [(slice(i, i + height), slice(j, j + width)) for i in range(size) for j in range(size)]
        # the patch around each pixel: [batch, in, size * size, height, width]
        patches = np.stack([padded[:, :, rows, columns] for rows, columns in offsets], axis=2)
        flat_patches = patches.reshape(len(x), math.prod(weight.shape[1:]), height * width)
        kernels = weight.reshape(len(weight), flat_patches.shape[1])
        y = kernels @ flat_patches + values["bias"].reshape(-1, 1)

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            flat = cotangents[0].reshape(y.shape)
            weight_gradient = np.tensordot(flat, flat_patches, axes=((0, 2), (0, 2))).reshape(weight.shape)
            c, back = (kernels.T @ flat).reshape(patches.shape), np.zeros_like(padded)
            for index, (rows, columns) in enumerate(offsets):
                back[:, :, rows, columns] += c[:, :, index]
            gradients = {"weight": weight_gradient, "bias": np.sum(flat, axis=(0, 2))}
            return gradients, (back[:, :, edge : edge + height, edge : edge + width],)

        return VjpResult((y.reshape(len(x), len(weight), height, width),), pullback)


class MaxPool2d(Module):
    """The maximum of windows of `size` by `size`, without overlap; rows and columns that fill no window are dropped.

    The gradient goes to the first of equal values in a window, row by row.

    Raises:
        SpecError: size is not a positive int.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = _positive("MaxPool2d: size", size)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Compute [batch, channels, height // size, width // size] from one input [batch, channels, height, width]."""
        x = single_input("MaxPool2d", inputs)
        _check_image(f"MaxPool2d({self.size})", x)
        if self.size == 1:
            return _identity(x)
        (batch, channels, height, width), size = x.shape, self.size
        high, wide = height // size, width // size
        covered = (slice(None), slice(None), slice(high * size), slice(wide * size))
        split = x[covered].reshape(batch, channels, high, size, wide, size)
        windows = split.transpose(0, 1, 2, 4, 3, 5).reshape(batch, channels, high, wide, size * size)
        first = np.expand_dims(np.argmax(windows, axis=-1), -1)

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            spread, back = np.zeros_like(windows), np.zeros_like(x)
            np.put_along_axis(spread, first, np.expand_dims(cotangents[0], -1), axis=-1)
            blocks = spread.reshape(batch, channels, high, wide, size, size).transpose(0, 1, 2, 4, 3, 5)
            back[covered] = blocks.reshape(x[covered].shape)
            return {}, (back,)

        return VjpResult((np.take_along_axis(windows, first, axis=-1)[..., 0],), pullback)


class Flatten(Module):
    """All axes of a sample as one, in C order."""

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Reshape one input [batch, ...] to [batch, features]."""
        x = single_input("Flatten", inputs)
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        return VjpResult((flat,), lambda cotangents: ({}, (cotangents[0].reshape(x.shape),)))


def _identity(x: Array) -> VjpResult:
    return VjpResult((x,), lambda cotangents: ({}, cotangents))


def _uniform(shape: tuple[int, ...], seed: int, dtype: str | None) -> dict[str, Array]:
    """Return a weight [out, ...] and a bias [out], uniform in +-1/sqrt(fan-in)."""
    bound = 1.0 / math.sqrt(math.prod(shape[1:]))
    return {
        name: rng.uniform(rng.key(seed, name), extents, -bound, bound).astype(dtype)
        for name, extents in (("weight", shape), ("bias", shape[:1]))
    }


def _positive(name: str, size: int) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"{name}={shown(size)} is not a positive int", hint=f"write {name.rpartition(' ')[2]}=2")
    return size


def _floating(layer: str, dtype: Any) -> str:
    if dtype not in ("float32", "float64"):
        raise SpecError(f"{layer}: dtype={shown(dtype)} is not float32 or float64", hint="write dtype='float32'")
    return str(dtype)


def _check_features(layer: str, x: Array, features: int, dtype: np.dtype[Any]) -> None:
    if x.ndim < 2 or x.shape[-1] != features:
        raise ShapeError(f"{layer} takes samples with {features} features, got {_shown(x)}")
    _check_dtype(layer, x, dtype)


def _check_image(layer: str, x: Array, channels: int | None = None) -> None:
    if x.ndim != 4 or channels not in (None, x.shape[1]):
        raise ShapeError(
            f"{layer} takes samples [{channels or 'channels'}, height, width], got {_shown(x)}",
            hint="store images channels first; a single channel also needs an axis, [1, height, width]",
        )


def _check_dtype(layer: str, x: Array, dtype: np.dtype[Any]) -> None:
    if x.dtype != dtype:
        raise ShapeError(
            f"{layer} computes in {dtype}, got {_shown(x)}",
            hint=f"cast the features to {dtype}, or create the layer with another dtype",
        )


def _shown(x: Array) -> str:
    """Return dtype and shape of a sample as text."""
    return f"{x.dtype}{list(x.shape[1:])}"


def _listed(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, inputs)) or "none"


# -- activations: each returns its output and its pullback -------------------------------------------------------------


Pullback = Callable[[Array], Array]


def _relu(x: Array) -> tuple[Array, Pullback]:
    return np.maximum(x, 0), lambda c: np.where(x > 0, c, np.zeros_like(c))


def _tanh(x: Array) -> tuple[Array, Pullback]:
    y = np.tanh(x)
    return y, lambda c: c * (1 - y * y)


def _sigmoid(x: Array) -> tuple[Array, Pullback]:
    y = 0.5 * (1 + np.tanh(0.5 * x))  # never overflows, as exp(-x) would
    return y, lambda c: c * y * (1 - y)


_ACTIVATIONS: dict[str, Callable[[Array], tuple[Array, Pullback]]] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "identity": lambda x: (x, lambda c: c),
}
