"""SequentialMLP and SequentialCNN for torch, and how the outputs of any module are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, as_shape, check_input_shapes
from anyaccel.errors import ShapeError

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class FromRecipe(nn.Module, ABC):
    """A module that a recipe of `anyaccel.adapter.model_specs` describes, with the same initial weights as in other frameworks.

    It is built when the shapes are known: by `build`, by the graph it is in, or else by its first batch with seed 0.
    """

    def __init__(self, recipe: MLPSpec | CNNSpec) -> None:
        super().__init__()
        self.recipe = recipe
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return self.input_shapes is not None

    def build(self, input_shapes: Sequence[Sequence[int]], seed: int, device: Any = "cpu") -> None:
        """Make the layers for inputs of these shapes per sample; a second call with the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes, or the recipe does not take them.
        """
        shapes = tuple(tuple(shape) for shape in input_shapes)
        if self.input_shapes is not None:
            check_input_shapes(type(self).__name__, self.recipe, self.input_shapes, shapes)
            return
        weights = self.recipe.weights(shapes, seed)
        for name, shape in self.recipe.weight_shapes(shapes).items():
            layer = self._layer(shape).train(self.training)
            for part in ("weight", "bias"):
                values = torch.from_numpy(weights[f"{name}.{part}"]).to(device, copy=True)
                setattr(layer, part, nn.Parameter(values))
            where, _, last = name.rpartition(".")
            self.get_submodule(where).add_module(last, layer)
        self.input_shapes = shapes

    @abstractmethod
    def _layer(self, shape: tuple[int, ...]) -> nn.Module:
        """A layer whose weight has this shape: on `meta`, where it has no values and draws no random number."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """[batch, *output_shape] for inputs [batch, ...] of the recipe's dtype."""
        if self.input_shapes is None:
            self.build([x.shape[1:] for x in inputs], seed=0, device=inputs[0].device)
        x = self._through(*inputs)
        return x if len(self.recipe.output_shape) == 1 else x.reshape(x.shape[0], *self.recipe.output_shape)

    @abstractmethod
    def _through(self, *inputs: Tensor) -> Tensor:
        """[batch, features] for the inputs, once the layers are there."""

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.recipe.dropout, self.training) if self.recipe.dropout else x

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords that make an equal model."""
        return self.recipe.get_config()


class SequentialMLP(FromRecipe):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more tensors [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. It is
    built when the shapes are known: by `build`, by the graph it is in, or else by its first batch with seed 0.

    Raises:
        SpecError: a setting out of range.
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
        super().__init__(MLPSpec(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype))
        self.layers = nn.ModuleList()

    def _layer(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Linear(shape[1], shape[0], device="meta")

    def _through(self, *inputs: Tensor) -> Tensor:
        x: Tensor = _flat(inputs[0]) if len(inputs) == 1 else torch.cat([_flat(x) for x in inputs], 1)
        activate = _ACTIVATIONS.get(self.recipe.activation)
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x) if activate is None else activate(layer(x))
            x = self._drop(x)
        y: Tensor = last(x)
        return y


class SequentialCNN(FromRecipe):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one tensor [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. It is built when
    the shape is known: by `build`, by the graph it is in, or else by its first batch with seed 0.

    Raises:
        SpecError: a setting out of range.
    """

    recipe: CNNSpec
    head: nn.Linear

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
        self.convs = nn.ModuleList()

    def _layer(self, shape: tuple[int, ...]) -> nn.Module:
        if len(shape) == 2:
            return nn.Linear(shape[1], shape[0], device="meta")
        return nn.Conv2d(shape[1], shape[0], shape[2], padding=self.recipe.padding, device="meta")

    def _through(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        activate, pool = _ACTIVATIONS.get(self.recipe.activation), self.recipe.pool
        for conv in self.convs:
            x = conv(x) if activate is None else activate(conv(x))
            x = F.max_pool2d(x, pool) if pool > 1 else x
        y: Tensor = self.head(self._drop(x.flatten(1)))
        return y


def outputs_of(result: Any) -> tuple[Tensor, ...]:
    """The tensors that a module gave: one, or those of a tuple, a list or a dict in its order.

    Raises:
        ShapeError: it gave something else.
    """
    if isinstance(result, Tensor):
        return (result,)
    items = tuple(result.values()) if isinstance(result, Mapping) else result
    if isinstance(items, (tuple, list)) and items and all(isinstance(item, Tensor) for item in items):
        return tuple(items)
    kinds = ", ".join(type(item).__name__ for item in items) if isinstance(items, (tuple, list)) else "no tensor"
    raise ShapeError(
        f"the model gives a {type(result).__name__} of {kinds or 'nothing'}, which is no output of a node",
        available="a tensor, or a tuple, list or dict of tensors, can be one",
        hint="wrap it in a module that gives only the tensors wanted",
    )


def _flat(x: Tensor) -> Tensor:
    if x.ndim == 2:
        return x
    return x.flatten(1) if x.ndim > 2 else x.unsqueeze(1)
