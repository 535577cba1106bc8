"""Recipes of models that exist in every framework, with the same initial weights for a seed everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.errors import ConfigError, ShapeError, SpecError

_MOST_LAYERS, _WIDEST = 10_000, 2**24  # a configuration may come from anywhere: it must not end in a hang
ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity")


Shapes = Sequence[tuple[int, ...]]


def as_shape(given: Sequence[int] | int) -> tuple[int, ...]:
    """A shape as a tuple; a number is one axis."""
    return (given,) if isinstance(given, int) else tuple(given)


def _check_sizes(model: str, layers: Any, sizes: Mapping[str, Any]) -> None:
    """Refuse what is not a positive int, and what is so large that making the model would hang."""
    for name, size in {"n_layers": layers, **sizes}.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpecError(f"{model}: {name}={size!r} is not a positive int")
    widest = max(sizes.values())
    if layers > _MOST_LAYERS or widest > _WIDEST:
        raise SpecError(f"{model}: {layers} layers of {widest}", available=f"at most {_MOST_LAYERS} of {_WIDEST}")


def _check_rest(model: str, activation: str, dropout: float, dtype: str) -> None:
    if activation not in ACTIVATIONS:
        raise SpecError(f"{model} has no activation {activation!r}", available=", ".join(ACTIVATIONS))
    if not 0 <= dropout < 1:
        raise SpecError(f"{model}: dropout={dropout!r} is not in [0, 1)")
    if dtype not in ("float32", "float64"):
        raise SpecError(f"{model}: dtype={dtype!r} is not float32 or float64")


def _each(name: str, sizes: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}[{i}]": size for i, size in enumerate(sizes)}


def _check_settings(model: str, config: Mapping[str, Any], known: Iterable[str]) -> None:
    strange = sorted(set(config) - set(known))
    if strange:
        raise ConfigError(f"{model} has no setting {', '.join(strange)}", available=", ".join(known))


def check_input_shapes(model: str, recipe: MLPSpec | CNNSpec, built: Shapes, given: Shapes) -> None:
    """Make sure that a model from a recipe, built for inputs of some shapes per sample, takes others as well.

    Raises:
        ShapeError: its weights would have other shapes.
    """
    if recipe.weight_shapes(given) != recipe.weight_shapes(built):
        raise ShapeError(
            f"{model} cannot take inputs of shapes {_shown(given)}",
            available=f"it is built for {_shown(built)}",
            hint=f"feed it what it was built for, or make a new {model}",
        )


def _shown(shapes: Shapes) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)


def _drawn(layers: Mapping[str, tuple[int, ...]], seed: int, dtype: str) -> dict[str, np.ndarray]:
    """Values for layers whose weights [out, ...] have these shapes: uniform in +-1/sqrt(inputs of one output)."""
    drawn = {}
    for layer, shape in layers.items():
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        for name, own in (("weight", shape), ("bias", shape[:1])):
            full = f"{layer}.{name}"
            drawn[full] = rng.uniform(rng.key(seed, full), own, -bound, bound).astype(dtype)
    return drawn


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """A multi-layer perceptron: `n_layers` linear layers with an activation (and dropout) between each two.

    Inputs are flattened per sample and joined along their features, the output takes `output_shape`. Parameters are
    `layers.I.weight` [out, in] and `layers.I.bias` [out].

    Raises:
        SpecError: a size that is not a positive int, an unknown activation, or a dropout outside [0, 1).
    """

    output_shape: tuple[int, ...] = (1,)
    n_layers: int = 2
    hidden_dim: int = 16
    activation: str = "relu"
    dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_shape", as_shape(self.output_shape))
        sizes = {"hidden_dim": self.hidden_dim, **_each("output_shape", self.output_shape)}
        _check_sizes("SequentialMLP", self.n_layers, sizes)
        _check_rest("SequentialMLP", self.activation, self.dropout, self.dtype)

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords of the recipe."""
        return {**asdict(self), "output_shape": list(self.output_shape)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MLPSpec:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: unknown keys.
        """
        _check_settings("SequentialMLP", config, cls.__dataclass_fields__)
        return cls(**config)

    def sizes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """(in, out) of each layer, for inputs of these shapes per sample."""
        first = sum(math.prod(shape) for shape in inputs)
        widths = [first, *[self.hidden_dim] * (self.n_layers - 1), math.prod(self.output_shape)]
        return list(itertools.pairwise(widths))

    def weight_shapes(self, inputs: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shape of the weight [out, in] of each layer: `layers.0` and so on."""
        return {f"layers.{i}": (fan_out, fan_in) for i, (fan_in, fan_out) in enumerate(self.sizes(inputs))}

    def weights(self, inputs: Sequence[tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Initial values by name: uniform in +-1/sqrt(in), from the pinned generator, drawn in float64."""
        return _drawn(self.weight_shapes(inputs), seed, self.dtype)


@dataclass(frozen=True, slots=True)
class CNNSpec:
    """A convolutional network: convolutions, each with an activation and max pooling, then one linear layer.

    Takes one input [channels, height, width] per sample, channels first in every framework. Each convolution has
    stride 1 and `kernel_size // 2` zeros on every side, so that height and width stay; its kernel is not flipped. The
    activation follows, then max pooling: windows of `pool` by `pool` that do not overlap and are not padded, with rows
    and columns left out that fill no window (of equal values in a window the first, row by row, takes the gradient).
    What the last gives is flattened in the order channels, height, width, goes through dropout and through the linear
    layer, and takes `output_shape`.

    Parameters are `convs.I.weight` [out, in, kernel_size, kernel_size], `convs.I.bias` [out], `head.weight`
    [out, features] and `head.bias` [out].

    Args:
        output_shape: shape of one sample of the output.
        channels: channels that each convolution gives; as many convolutions as entries.
        kernel_size: height and width of the kernels, odd.
        pool: height, width and stride of the windows; 1 for no pooling.
        activation: one of `ACTIVATIONS`.
        dropout: rate of the dropout before the linear layer.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: a size that is not a positive int, an even kernel, no channels, an unknown activation, or a
            dropout outside [0, 1).
    """

    output_shape: tuple[int, ...] = (1,)
    channels: tuple[int, ...] = (8, 16)
    kernel_size: int = 3
    pool: int = 2
    activation: str = "relu"
    dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_shape", as_shape(self.output_shape))
        object.__setattr__(self, "channels", as_shape(self.channels))
        if not self.channels:
            raise SpecError("SequentialCNN: channels=() makes no convolution", hint="give one number for each")
        sizes = {**_each("output_shape", self.output_shape), **_each("channels", self.channels)}
        sizes.update(kernel_size=self.kernel_size, pool=self.pool)
        _check_sizes("SequentialCNN", len(self.channels), sizes)
        if self.kernel_size % 2 == 0:
            raise SpecError(f"SequentialCNN: kernel_size={self.kernel_size} is not odd")
        _check_rest("SequentialCNN", self.activation, self.dropout, self.dtype)

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords of the recipe."""
        return {**asdict(self), "output_shape": list(self.output_shape), "channels": list(self.channels)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CNNSpec:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: unknown keys.
        """
        _check_settings("SequentialCNN", config, cls.__dataclass_fields__)
        return cls(**config)

    @property
    def padding(self) -> int:
        """Zeros on each side of what a convolution takes."""
        return self.kernel_size // 2

    def shapes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, int, int]]:
        """[channels, height, width] of the one input, and after each convolution with its pooling.

        Raises:
            ShapeError: it is not one input of rank 3, or pooling leaves nothing of it.
        """
        if len(inputs) != 1 or len(inputs[0]) != 3 or min(inputs[0]) < 1:
            raise ShapeError(
                "SequentialCNN takes one input [channels, height, width] per sample",
                available=" and ".join(str(list(shape)) for shape in inputs) or "no input",
                hint="store images channels first; one channel is an axis too, [1, height, width]",
            )
        found = [(*inputs[0],)]
        for channels in self.channels:
            _, height, width = found[-1]
            found.append((channels, height // self.pool, width // self.pool))
            if min(found[-1]) < 1:
                raise ShapeError(
                    f"SequentialCNN: {len(self.channels)} poolings by {self.pool} leave nothing of {list(inputs[0])}",
                    hint="take fewer convolutions, larger images, or pool=1",
                )
        return found

    def weight_shapes(self, inputs: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shape of the weight [out, ...] of each layer: `convs.0` and so on, then `head`. Raises as `shapes`."""
        shapes, kernel = self.shapes(inputs), (self.kernel_size, self.kernel_size)
        ends = enumerate(itertools.pairwise(shape[0] for shape in shapes))
        convs: dict[str, tuple[int, ...]] = {f"convs.{i}": (after, before, *kernel) for i, (before, after) in ends}
        return {**convs, "head": (math.prod(self.output_shape), math.prod(shapes[-1]))}

    def weights(self, inputs: Sequence[tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Initial values by name: uniform in +-1/sqrt(n), from the pinned generator, drawn in float64.

        One output of the layer depends on n numbers: in * kernel_size**2 of a convolution, features of the head.
        Raises as `shapes`.
        """
        return _drawn(self.weight_shapes(inputs), seed, self.dtype)
