"""Layers for images, channels first: Conv2d, MaxPool2d and Flatten."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anyaccel import rng
from anyaccel.adapter import VjpResult
from anyaccel.errors import ShapeError, SpecError
from anyaccel.numpy_backend import functional
from anyaccel.numpy_backend.layers import check_dtype, listed, shown
from anyaccel.numpy_backend.module import Module, Values, only
from anyaccel.numpy_backend.sim_array import Array
from anyaccel.segment import TensorSpec


def _positive(what: str, size: int) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"{what}={size!r} is not a positive int")
    return size


class Conv2d(Module):
    """A convolution over height and width, with stride 1 and zeros beyond the edges, so that both stay.

    Parameters are `weight` [channels, in, kernel_size, kernel_size] and `bias` [channels], uniform in +-1/sqrt(n) for
    the n = in * kernel_size**2 numbers that one output depends on. Built when it first meets its input.

    Args:
        channels: channels of the output.
        kernel_size: height and width of the kernel, odd.
        dtype: of parameters, inputs and outputs: `"float32"` or `"float64"`.

    Raises:
        SpecError: a size that is not a positive int, or an even kernel.
    """

    def __init__(self, channels: int, kernel_size: int = 3, *, dtype: str = "float32") -> None:
        super().__init__()
        self.channels = _positive("Conv2d: channels", channels)
        self.kernel_size = _positive("Conv2d: kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise SpecError(f"Conv2d: kernel_size={kernel_size} is not odd")
        self.dtype = dtype

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return "weight" in self.parameters

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Draw the parameters for one input [in, height, width].

        Raises:
            ShapeError: several inputs, or not three axes.
        """
        if len(inputs) != 1 or len(inputs[0].shape) != 3:
            raise ShapeError(f"Conv2d takes one input [channels, height, width], and was given {listed(inputs)}")
        shape = (self.channels, inputs[0].shape[0], self.kernel_size, self.kernel_size)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        for name, own in (("weight", shape), ("bias", shape[:1])):
            self.parameters[name] = rng.uniform(rng.key(seed, name), own, -bound, bound).astype(self.dtype)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, in, height, width] to [batch, channels, height, width]."""
        x, weight, what = only("Conv2d", inputs), values["weight"], f"Conv2d({self.channels})"
        _check_image(what, x, weight.shape[1])
        check_dtype(what, x, weight.dtype)
        y, back = functional.convolution(x, weight, values["bias"])

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], tuple[Array]]:
            c, by_weight, by_bias = back(cotangents[0])
            return {"weight": by_weight, "bias": by_bias}, (c,)

        return VjpResult((y,), pullback)


class MaxPool2d(Module):
    """The largest value of each window of `size` by `size`; rows and columns that fill no window are left out.

    Windows do not overlap. Of equal values in a window the first, row by row, takes the gradient.

    Raises:
        SpecError: size is not a positive int.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = _positive("MaxPool2d: size", size)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, channels, height, width] to [batch, channels, height // size, width // size]."""
        x = only("MaxPool2d", inputs)
        _check_image(f"MaxPool2d({self.size})", x)
        if self.size == 1:
            return VjpResult((x,), lambda cotangents: ({}, cotangents))
        y, back = functional.max_pooled(x, self.size)
        return VjpResult((y,), lambda cotangents: ({}, (back(cotangents[0]),)))


class Flatten(Module):
    """All axes of a sample as one, the last running fastest."""

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """One input [batch, ...] to [batch, features]."""
        x = only("Flatten", inputs)
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        return VjpResult((flat,), lambda cotangents: ({}, (cotangents[0].reshape(x.shape),)))


def _check_image(what: str, x: Array, channels: int | None = None) -> None:
    if x.ndim != 4 or channels not in (None, x.shape[1]):
        raise ShapeError(
            f"{what} takes samples [{channels or 'channels'}, height, width] and was given {shown(x)}",
            hint="store images channels first; one channel is an axis too, [1, height, width]",
        )
