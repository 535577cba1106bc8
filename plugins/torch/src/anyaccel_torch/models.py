"""SequentialMLP for torch, and how the outputs of any module are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.errors import ShapeError
from anyaccel.models import MLPRecipe, as_shape

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class SequentialMLP(nn.Module):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPRecipe`.

    Takes one or more tensors [batch, ...] of `dtype`, flattens and joins them, and gives [batch, *output_shape]. It is
    built when the shapes are known: by `build`, by the graph it is in, or else by its first batch with seed 0.

    Raises:
        RecipeError: a setting out of range.
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
        super().__init__()
        self.recipe = MLPRecipe(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype)
        self.layers = nn.ModuleList()
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None

    def build(self, input_shapes: Sequence[Sequence[int]], seed: int, device: Any = "cpu") -> None:
        """Make the layers for inputs of these shapes per sample; a second call with the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes.
        """
        shapes = tuple(tuple(shape) for shape in input_shapes)
        if self.input_shapes is not None:
            self._check(shapes)
            return
        weights = self.recipe.weights(shapes, seed)
        for i, (fan_in, fan_out) in enumerate(self.recipe.sizes(shapes)):
            layer = nn.Linear(fan_in, fan_out, device="meta")  # no values yet, and no random number drawn for them
            for name in ("weight", "bias"):
                values = torch.from_numpy(weights[f"layers.{i}.{name}"]).to(device, copy=True)
                setattr(layer, name, nn.Parameter(values))
            self.layers.append(layer.train(self.training))
        self.input_shapes = shapes

    def forward(self, *inputs: Tensor) -> Tensor:
        """[batch, *output_shape] for inputs [batch, ...] of the recipe's dtype."""
        if self.input_shapes is None:
            self.build([x.shape[1:] for x in inputs], seed=0, device=inputs[0].device)
        x: Tensor = _flat(inputs[0]) if len(inputs) == 1 else torch.cat([_flat(x) for x in inputs], 1)
        activate, dropout = _ACTIVATIONS.get(self.recipe.activation), self.recipe.dropout
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x) if activate is None else activate(layer(x))
            if dropout:
                x = F.dropout(x, dropout, self.training)
        x = last(x)
        return x if len(self.recipe.output_shape) == 1 else x.reshape(x.shape[0], *self.recipe.output_shape)

    def get_config(self) -> dict[str, Any]:
        """A plain dict; its entries are the keywords that make an equal model."""
        return self.recipe.get_config()

    def _check(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        if self.recipe.sizes(shapes) != self.recipe.sizes(self.input_shapes or ()):
            raise ShapeError(
                f"SequentialMLP cannot take inputs of shapes {_shown(shapes)}",
                there=f"it is built for {_shown(self.input_shapes or ())}",
                remedy="feed it what it was built for, or make a new SequentialMLP",
            )


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
        there="a tensor, or a tuple, list or dict of tensors, can be one",
        remedy="wrap it in a module that gives only the tensors wanted",
    )


def _flat(x: Tensor) -> Tensor:
    if x.ndim == 2:
        return x
    return x.flatten(1) if x.ndim > 2 else x.unsqueeze(1)


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)
