"""Specs of the models that exist in every framework, with the same initial weights for a seed everywhere."""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, SupportsIndex, cast

import numpy as np

from anyaccel import arguments, rng
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ConfigError, ShapeError, SpecError
from anyaccel.suggestions import did_you_mean

_MAX_LAYERS, _MAX_WIDTH = 10_000, 2**24  # a configuration from anywhere must not end in a hang
ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity")

Shapes = Sequence[tuple[int, ...]]


def as_shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    """Return a shape as a tuple; a number is one axis.

    >>> from anyaccel.adapter.model_specs import as_shape
    >>> as_shape(3), as_shape([2, 3])
    ((3,), (2, 3))

    Raises:
        SpecError: The value is neither a number nor a list of numbers.
    """
    if is_integer(shape):
        return (operator.index(cast(SupportsIndex, shape)),)
    if isinstance(shape, (str, bytes, Mapping)) or not isinstance(shape, Iterable):
        raise SpecError(f"{shown(shape)} is not a shape", hint="write 16, or (16,)")
    return tuple(shape)


def _check_sizes(model: str, n_layers: Any, sizes: Mapping[str, Any]) -> None:
    for name, size in {"n_layers": n_layers, **sizes}.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpecError(f"{model}: {name}={shown(size)} is not a positive int", hint=f"write {name}=16")
    widest = max(sizes.values())
    if n_layers > _MAX_LAYERS or widest > _MAX_WIDTH:
        available, hint = f"at most {_MAX_LAYERS} layers of {_MAX_WIDTH}", "make it smaller"
        problem = f"{model} is too large: {shown(n_layers)} layers of {shown(widest)}"
        raise SpecError(problem, cause=available, hint=hint)


def _check_options(model: str, activation: str, dropout: float, dtype: str) -> None:
    if activation not in ACTIVATIONS:
        problem, hint = f"{model} has no activation {shown(activation)}", "write activation='relu'"
        raise SpecError(problem, available=", ".join(ACTIVATIONS), hint=hint)
    _check_rate(model, "dropout", dropout)
    if dtype not in ("float32", "float64"):
        raise SpecError(f"{model}: dtype={shown(dtype)} is not float32 or float64", hint="write dtype='float32'")


def _check_rate(model: str, name: str, rate: float) -> None:
    arguments.number(SpecError, f"{model}: ", name, rate, lambda it: 0 <= it < 1, "in [0, 1)", 0.1)


def _indexed(name: str, sizes: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}[{i}]": size for i, size in enumerate(sizes)}


def check_input_shapes(model: str, spec: ModelSpec, built: Shapes, taken: Shapes) -> None:
    """Check that a model that was built for some input shapes per sample also takes others.

    Raises:
        ShapeError: Its weights would have other shapes.
    """
    if spec.weight_shapes(taken) != spec.weight_shapes(built):
        raise ShapeError(
            f"{model} cannot take inputs of shapes {_shown(taken)}",
            cause=f"it is built for {_shown(built)}",
            hint=f"pass inputs of these shapes, or create a new {model}",
        )


def _shown(shapes: Shapes) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)


class ModelSpec(ABC):
    """The settings of a model that exists in every framework."""

    __slots__ = ()
    model: ClassVar[str]
    """Name of the model."""
    dtype: str

    def get_config(self) -> dict[str, Any]:
        """Return the settings as a plain dict."""
        settings = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild the spec from the output of `get_config`.

        Raises:
            ConfigError: There are unknown keys.
        """
        field_names = [field.name for field in fields(cast(Any, cls))]
        unknown = sorted(set(config) - set(field_names))
        if unknown:
            problem, hint = f"{cls.model} has no setting {', '.join(unknown)}", did_you_mean(unknown[0], field_names)
            raise ConfigError(problem, available=", ".join(field_names), hint=hint)
        return cls(**config)

    @abstractmethod
    def weight_shapes(self, inputs: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's weight, [out, ...], for inputs of these shapes per sample."""

    def weights(self, inputs: Shapes, seed: int) -> dict[str, np.ndarray]:
        """Return initial values by name: weights [out, ...] and biases [out], for inputs of these shapes per sample.

        Uniform in +-1/sqrt(n) with the fan-in n of the layer, drawn in float64 from anyaccel's own generator. Raises
        the errors of `weight_shapes`.
        """
        weights = {}
        for layer, weight_shape in self.weight_shapes(inputs).items():
            bound = 1.0 / math.sqrt(math.prod(weight_shape[1:]))
            for parameter, shape in (("weight", weight_shape), ("bias", weight_shape[:1])):
                name = f"{layer}.{parameter}"
                weights[name] = rng.uniform(rng.key(seed, name), shape, -bound, bound).astype(self.dtype)
        return weights


@dataclass(frozen=True, slots=True)
class MLPSpec(ModelSpec):
    """A multi-layer perceptron: `n_layers` linear layers with an activation (and dropout) between them.

    Inputs are flattened per sample and concatenated, the output is reshaped to `output_shape`. Parameters are
    `layers.I.weight` [out, in] and `layers.I.bias` [out].

    Raises:
        SpecError: A size is not a positive int, the activation is unknown, or the dropout is outside [0, 1).
    """

    model = "SequentialMLP"
    output_shape: tuple[int, ...] = (1,)
    n_layers: int = 2
    hidden_dim: int = 16
    activation: str = "relu"
    dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_shape", as_shape(self.output_shape))
        sizes = {"hidden_dim": self.hidden_dim, **_indexed("output_shape", self.output_shape)}
        _check_sizes(self.model, self.n_layers, sizes)
        _check_options(self.model, self.activation, self.dropout, self.dtype)

    def sizes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """Return (in, out) of each layer, for inputs of these shapes per sample."""
        first = sum(math.prod(shape) for shape in inputs)
        widths = [first, *[self.hidden_dim] * (self.n_layers - 1), math.prod(self.output_shape)]
        return list(itertools.pairwise(widths))

    def weight_shapes(self, inputs: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's weight, [out, in]: `layers.0` and so on."""
        return {f"layers.{i}": (fan_out, fan_in) for i, (fan_in, fan_out) in enumerate(self.sizes(inputs))}


@dataclass(frozen=True, slots=True)
class CNNSpec(ModelSpec):
    """A convolutional network: convolutions, each with an activation and max pooling, then one linear layer.

    Takes one input [channels, height, width] per sample, channels first in every framework. Each convolution has stride
    1 and pads `kernel_size // 2` zeros on every side, which preserves height and width; its kernel is not flipped. The
    activation follows, then max pooling over windows of `pool` by `pool`, without overlap or padding. Rows and columns
    that fill no window are dropped; the gradient goes to the first of equal values, row by row. The result is flattened
    in the order channels, height, width, passes dropout and the linear layer, and is reshaped to `output_shape`.

    Parameters are `convs.I.weight` [out, in, kernel_size, kernel_size], `convs.I.bias` [out], `head.weight` [out,
    features] and `head.bias` [out].

    Args:
        output_shape: Shape of one sample of the output.
        channels: Output channels of each convolution.
        kernel_size: Height and width of the kernels, odd.
        pool: Height, width and stride of the windows; 1 for no pooling.
        activation: One of `ACTIVATIONS`.
        dropout: Rate of the dropout before the linear layer.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: A size is not a positive int, the kernel is even, there are no channels, the activation is unknown,
            or the dropout is outside [0, 1).
    """

    model = "SequentialCNN"
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
            raise SpecError("SequentialCNN: channels=() is empty", hint="give a number for each convolution")
        sizes = {**_indexed("output_shape", self.output_shape), **_indexed("channels", self.channels)}
        sizes.update(kernel_size=self.kernel_size, pool=self.pool)
        _check_sizes(self.model, len(self.channels), sizes)
        if self.kernel_size % 2 == 0:
            raise SpecError(f"SequentialCNN: kernel_size={self.kernel_size} is not odd", hint="write kernel_size=3")
        _check_options(self.model, self.activation, self.dropout, self.dtype)

    @property
    def padding(self) -> int:
        """Number of zeros on each side of a convolution's input."""
        return self.kernel_size // 2

    def shapes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, int, int]]:
        """Return [channels, height, width] of the input, and after each convolution with its pooling.

        Raises:
            ShapeError: There is not exactly one input of rank 3, or pooling leaves nothing of it.
        """
        if len(inputs) != 1 or len(inputs[0]) != 3 or min(inputs[0]) < 1:
            raise ShapeError(
                "SequentialCNN takes one input [channels, height, width] per sample, "
                f"got {_shown(inputs) or 'no input'}",
                hint="store images channels first; a single channel also needs an axis, [1, height, width]",
            )
        shapes = [(*inputs[0],)]
        for channels in self.channels:
            _, height, width = shapes[-1]
            shapes.append((channels, height // self.pool, width // self.pool))
            if min(shapes[-1]) < 1:
                raise ShapeError(
                    f"SequentialCNN: {len(self.channels)} poolings by {self.pool} leave nothing of an image of shape "
                    f"{list(inputs[0])}",
                    hint="use fewer convolutions, larger images, or pool=1",
                )
        return shapes

    def weight_shapes(self, inputs: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's weight, [out, ...]: `convs.0` and so on, then `head`.

        Raises the errors of `shapes`.
        """
        shapes, kernel = self.shapes(inputs), (self.kernel_size, self.kernel_size)
        ends = enumerate(itertools.pairwise(shape[0] for shape in shapes))
        convs: dict[str, tuple[int, ...]] = {f"convs.{i}": (after, before, *kernel) for i, (before, after) in ends}
        return {**convs, "head": (math.prod(self.output_shape), math.prod(shapes[-1]))}


@dataclass(frozen=True, slots=True)
class TabularSpec(ModelSpec):
    """A multi-layer perceptron for the rows of a table: numbers, and category codes, which it embeds.

    Takes one input [n_numbers + len(cardinalities)] per sample: the numbers, then one code for each category column.
    Codes are integers from 0 to the cardinality - 1; 0 means missing or unknown. A row with any other code becomes NaN,
    which makes the loss NaN. Layers are linear, with ReLU and dropout after each but the last.

    Parameters are `embeddings.I.weight` [cardinality, width], with the width from `embedding_width`, `layers.I.weight`
    [out, in] and `layers.I.bias` [out].

    Args:
        n_numbers: Number of columns with numbers.
        cardinalities: Number of codes of each category column, including 0.
        n_outputs: Number of outputs for each row.
        hidden: Number of outputs of each layer but the last.
        dropout: Rate of the dropout after each hidden layer.
        category_dropout: Fraction of the codes that training replaces by 0, drawn for each value. The model thereby
            learns to handle unknown categories.
        dtype: `"float32"` or `"float64"`.

    Raises:
        SpecError: A size is not a positive int, there are no columns, or a rate is outside [0, 1).
    """

    model = "TabularMLP"
    n_numbers: int = 1
    cardinalities: tuple[int, ...] = ()
    n_outputs: int = 1
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    category_dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cardinalities", as_shape(self.cardinalities))
        object.__setattr__(self, "hidden", as_shape(self.hidden))
        if not self.cardinalities or self.n_numbers != 0 or isinstance(self.n_numbers, bool):
            _check_sizes(self.model, 1, {"n_numbers": self.n_numbers})
        sizes = {"n_outputs": self.n_outputs, **_indexed("hidden", self.hidden)}
        _check_sizes(self.model, len(self.hidden) + 1, {**sizes, **_indexed("cardinalities", self.cardinalities)})
        _check_options(self.model, "relu", self.dropout, self.dtype)
        _check_rate(self.model, "category_dropout", self.category_dropout)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample of the output."""
        return (self.n_outputs,)

    def weight_shapes(self, inputs: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each part's weight: `embeddings.0` and so on, then `layers.0` and so on.

        Raises:
            ShapeError: There is not exactly one input, or it has another width.
        """
        width = self.n_numbers + len(self.cardinalities)
        if len(inputs) != 1 or math.prod(inputs[0]) != width:
            raise ShapeError(
                f"TabularMLP takes one input [{width}] per sample, {self.n_numbers} numbers and "
                f"{len(self.cardinalities)} codes, got {_shown(inputs) or 'no input'}",
                hint=f"join the columns to one array [n, {width}], numbers first, or pass n_numbers and cardinalities",
            )
        embeddings = {f"embeddings.{i}": (n, embedding_width(n)) for i, n in enumerate(self.cardinalities)}
        first = self.n_numbers + sum(width for _, width in embeddings.values())
        ends = enumerate(itertools.pairwise((first, *self.hidden, self.n_outputs)))
        return {**embeddings, **{f"layers.{i}": (fan_out, fan_in) for i, (fan_in, fan_out) in ends}}

    def weights(self, inputs: Sequence[tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Return initial values: layers as in every spec; embeddings uniform in +-0.05, code 0 zero, without bias."""
        weights = ModelSpec.weights(self, inputs, seed)
        for name in [name for name in weights if name.startswith("embeddings.")]:
            if name.endswith(".bias"):
                del weights[name]
                continue
            drawn = rng.uniform(rng.key(seed, name), weights[name].shape, -0.05, 0.05)
            drawn[0] = 0.0
            weights[name] = drawn.astype(self.dtype)
        return weights


def embedding_width(cardinality: int) -> int:
    """Return the embedding width that TabularMLP uses for a category column with `cardinality` codes.

    Twice the fourth root: wider embeddings scored lower on the tables of the benchmarks, as they fit single rows.
    """
    return min(50, round(2 * math.sqrt(math.sqrt(cardinality))))


@constructor_hints
class SequentialMLPConstructor:
    """Builds the spec for the next base class of a framework's model from the keywords of `MLPSpec`.

    Raises:
        SpecError: A setting is out of range.
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
        spec = MLPSpec(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype)
        super().__init__(spec)  # type: ignore[call-arg]


@constructor_hints
class SequentialCNNConstructor:
    """Builds the spec for the next base class of a framework's model from the keywords of `CNNSpec`.

    Raises:
        SpecError: A setting is out of range.
    """

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
        super().__init__(CNNSpec(*shapes, kernel_size, pool, activation, dropout, dtype))  # type: ignore[call-arg]


@constructor_hints
class TabularMLPConstructor:
    """Builds the spec for the next base class of a framework's model from the keywords of `TabularSpec`.

    Raises:
        SpecError: A setting is out of range.
    """

    def __init__(
        self,
        n_numbers: int = 1,
        cardinalities: Sequence[int] = (),
        n_outputs: int = 1,
        hidden: Sequence[int] | int = (128, 64),
        dropout: float = 0.1,
        category_dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        sizes = n_numbers, as_shape(cardinalities), n_outputs, as_shape(hidden)
        super().__init__(TabularSpec(*sizes, dropout, category_dropout, dtype))  # type: ignore[call-arg]
