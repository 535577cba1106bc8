"""Recipes of models that exist in every framework, with the same initial weights for a seed everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.errors import ConfigError, RecipeError

_MOST_LAYERS, _WIDEST = 10_000, 2**24  # a configuration may come from anywhere: it must not end in a hang
ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity")


def as_shape(given: Sequence[int] | int) -> tuple[int, ...]:
    """A shape as a tuple; a number is one axis."""
    return (given,) if isinstance(given, int) else tuple(given)


@dataclass(frozen=True, slots=True)
class MLPRecipe:
    """A multi-layer perceptron: `n_layers` linear layers with an activation (and dropout) between each two.

    Inputs are flattened per sample and joined along their features, the output takes `output_shape`. Parameters are
    `layers.I.weight` [out, in] and `layers.I.bias` [out].

    Raises:
        RecipeError: a size that is not a positive int, an unknown activation, or a dropout outside [0, 1).
    """

    output_shape: tuple[int, ...] = (1,)
    n_layers: int = 2
    hidden_dim: int = 16
    activation: str = "relu"
    dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_shape", as_shape(self.output_shape))
        sizes = {"n_layers": self.n_layers, "hidden_dim": self.hidden_dim}
        sizes.update({f"output_shape[{i}]": size for i, size in enumerate(self.output_shape)})
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise RecipeError(f"SequentialMLP: {name}={size!r} is not a positive int")
        if self.n_layers > _MOST_LAYERS or any(size > _WIDEST for size in sizes.values()):
            raise RecipeError(
                f"SequentialMLP: {self.n_layers} layers of {self.hidden_dim}",
                there=f"at most {_MOST_LAYERS} of {_WIDEST}",
            )
        if self.activation not in ACTIVATIONS:
            raise RecipeError(f"SequentialMLP has no activation {self.activation!r}", there=", ".join(ACTIVATIONS))
        if not 0 <= self.dropout < 1:
            raise RecipeError(f"SequentialMLP: dropout={self.dropout!r} is not in [0, 1)")
        if self.dtype not in ("float32", "float64"):
            raise RecipeError(f"SequentialMLP: dtype={self.dtype!r} is not float32 or float64")

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords of the recipe."""
        return {**asdict(self), "output_shape": list(self.output_shape)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MLPRecipe:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: unknown keys.
        """
        strange = set(config) - set(cls.__dataclass_fields__)
        if strange:
            raise ConfigError(
                f"SequentialMLP has no setting {', '.join(sorted(strange))}", there=", ".join(cls.__dataclass_fields__)
            )
        return cls(**config)

    def sizes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """(in, out) of each layer, for inputs of these shapes per sample."""
        first = sum(math.prod(shape) for shape in inputs)
        widths = [first, *[self.hidden_dim] * (self.n_layers - 1), math.prod(self.output_shape)]
        return list(itertools.pairwise(widths))

    def weights(self, inputs: Sequence[tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Initial values by name: uniform in +-1/sqrt(in), from the pinned generator, drawn in float64."""
        drawn = {}
        for i, (fan_in, fan_out) in enumerate(self.sizes(inputs)):
            bound = 1.0 / math.sqrt(fan_in)
            for name, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
                full = f"layers.{i}.{name}"
                drawn[full] = rng.uniform(rng.key(seed, full), shape, -bound, bound).astype(self.dtype)
        return drawn
