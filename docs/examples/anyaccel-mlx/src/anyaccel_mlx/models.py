"""SequentialMLP for MLX, and what any `mlx.nn.Module` holds and gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from anyaccel.adapter.model_specs import MLPSpec, as_shape
from anyaccel.errors import ShapeError

ACTIVATIONS: dict[str, Any] = {"relu": nn.relu, "tanh": mx.tanh, "sigmoid": mx.sigmoid, "identity": lambda x: x}


class SequentialMLP(nn.Module):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes arrays [batch, ...] and gives [batch, *output_shape]. It is built by its graph, or its first batch, seed 0.
    """

    def __init__(self, output_shape: Sequence[int] | int = (1,), **settings: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spec = MLPSpec(as_shape(output_shape), **settings)
        self.drop = nn.Dropout(self.spec.dropout)
        self.layers: list[nn.Module] = []

    def build(self, shapes: Sequence[tuple[int, ...]], seed: int) -> None:
        """Make the layers for inputs of these shapes per sample; what is built stays as it is."""
        drawn = {} if self.layers else self.spec.weights(shapes, seed)
        for i in range(len(drawn) // 2):
            layer = nn.Module()
            for name in ("weight", "bias"):
                setattr(layer, name, mx.array(drawn[f"layers.{i}.{name}"], getattr(mx, self.spec.dtype)))
            self.layers.append(layer)

    def __call__(self, *inputs: mx.array) -> mx.array:
        """[batch, *output_shape] for inputs [batch, ...] of the spec's dtype."""
        self.build([x.shape[1:] for x in inputs], seed=0)
        x = mx.concatenate([x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in inputs], axis=1)
        for layer in self.layers[:-1]:
            x = self.drop(ACTIVATIONS[self.spec.activation](x @ layer.weight.T + layer.bias))
        last = self.layers[-1]
        return mx.reshape(x @ last.weight.T + last.bias, (x.shape[0], *self.spec.output_shape))

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords that make an equal model."""
        return self.spec.get_config()


def values(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's parameters by name, and its buffers: running statistics, and parameters that the user froze."""
    whole, learning = (dict(tree_flatten(part)) for part in (model.parameters(), model.trainable_parameters()))
    return learning, {name: array for name, array in whole.items() if name not in learning}


def update(model: nn.Module, *arrays: Mapping[str, Any]) -> None:
    """Give a model's arrays new values, by name."""
    model.update(tree_unflatten([item for each in arrays for item in each.items()]) or {})


@contextmanager
def holding(model: nn.Module, *arrays: Mapping[str, Any], train: bool) -> Iterator[None]:
    """The model with other values and in a mode; afterwards it is as it was."""
    before, modes = values(model), [(part, part.training) for _, part in model.named_modules()]
    try:
        update(model, *arrays)
        model.train(train)
        yield
    finally:
        update(model, *before)
        for part, mode in modes:  # parents come before their parts
            part.train(mode)


def outputs_of(result: Any) -> list[mx.array]:
    """The arrays that a model gave: one, or those of a tuple or list; ShapeError if it gave something else."""
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    if not items or not all(isinstance(item, mx.array) for item in items):
        raise ShapeError(f"the model gives a {type(result).__name__}", available="an array, or some in a tuple or list")
    return items
