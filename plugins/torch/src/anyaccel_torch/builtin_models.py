"""SequentialMLP, SequentialCNN and TabularMLP for torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyaccel.adapter.model_specs import (
    CNNSpec,
    MLPSpec,
    SequentialCNNConstructor,
    SequentialMLPConstructor,
    TabularMLPConstructor,
    TabularSpec,
    check_input_shapes,
)

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class BuiltinModel(nn.Module, ABC):
    """A model with the same initial weights as in every other framework.

    It is built when the shapes are known: by `build`, by the graph it is in, or by its first batch with seed 0.
    """

    _lists: ClassVar[tuple[str, ...]]  # attributes with lists of layers

    def __init__(self, spec: MLPSpec | CNNSpec | TabularSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_shapes: tuple[tuple[int, ...], ...] | None = None
        for name in self._lists:
            self.add_module(name, nn.ModuleList())

    @property
    def is_built(self) -> bool:
        """Whether it has its parameters."""
        return self.input_shapes is not None

    def build(self, input_shapes: Sequence[Sequence[int]], seed: int, device: Any = "cpu") -> None:
        """Create the layers for inputs of these shapes per sample; a second call with the same shapes changes nothing.

        Raises:
            ShapeError: it was built for other shapes, or the spec does not take them.
        """
        shapes = tuple(tuple(shape) for shape in input_shapes)
        if self.input_shapes is not None:
            check_input_shapes(type(self).__name__, self.spec, self.input_shapes, shapes)
            return
        weights = self.spec.weights(shapes, seed)
        for name, shape in self.spec.weight_shapes(shapes).items():
            layer = self._layer(name, shape).train(self.training)
            for part, _ in [*layer.named_parameters()]:
                values = torch.from_numpy(weights[f"{name}.{part}"]).to(device, copy=True)
                setattr(layer, part, nn.Parameter(values))
            parent, _, last = name.rpartition(".")
            self.get_submodule(parent).add_module(last, layer)
        self.input_shapes = shapes

    @abstractmethod
    def _layer(self, name: str, shape: tuple[int, ...]) -> nn.Module:
        """Return the layer with this name for a weight of this shape, on `meta`, where it draws no random numbers."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute [batch, *output_shape] from inputs [batch, ...] in the model's dtype."""
        if self.input_shapes is None:
            self.build([x.shape[1:] for x in inputs], seed=0, device=inputs[0].device)
        x = self._features(*inputs)
        return x if len(self.spec.output_shape) == 1 else x.reshape(x.shape[0], *self.spec.output_shape)

    @abstractmethod
    def _features(self, *inputs: Tensor) -> Tensor:
        """Compute [batch, features]; called when the layers exist."""

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.spec.dropout, self.training) if self.spec.dropout else x

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict; its entries are the keywords that create an equal model."""
        return self.spec.get_config()


class SequentialMLP(SequentialMLPConstructor, BuiltinModel):
    """A multi-layer perceptron with the same initial weights as in every other framework; see `MLPSpec`.

    Takes one or more tensors [batch, ...] of `dtype`, flattens and concatenates them, and gives [batch, *output_shape].
    Built as `BuiltinModel` says.

    Raises:
        SpecError: a setting out of range.
    """

    spec: MLPSpec
    layers: nn.ModuleList
    _lists = ("layers",)

    def _layer(self, name: str, shape: tuple[int, ...]) -> nn.Module:
        return nn.Linear(shape[1], shape[0], device="meta")

    def _features(self, *inputs: Tensor) -> Tensor:
        x: Tensor = _flat(inputs[0]) if len(inputs) == 1 else torch.cat([_flat(x) for x in inputs], 1)
        activation = _ACTIVATIONS.get(self.spec.activation)
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x) if activation is None else activation(layer(x))
            x = self._dropout(x)
        y: Tensor = last(x)
        return y


class SequentialCNN(SequentialCNNConstructor, BuiltinModel):
    """A convolutional network with the same initial weights as in every other framework; see `CNNSpec`.

    Takes one tensor [batch, channels, height, width] of `dtype`, and gives [batch, *output_shape]. Built as
    `BuiltinModel` says.

    Raises:
        SpecError: a setting out of range.
    """

    spec: CNNSpec
    convs: nn.ModuleList
    head: nn.Linear
    _lists = ("convs",)

    def _layer(self, name: str, shape: tuple[int, ...]) -> nn.Module:
        if len(shape) == 2:
            return nn.Linear(shape[1], shape[0], device="meta")
        return nn.Conv2d(shape[1], shape[0], shape[2], padding=self.spec.padding, device="meta")

    def _features(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        activation, pool = _ACTIVATIONS.get(self.spec.activation), self.spec.pool
        for conv in self.convs:
            x = conv(x) if activation is None else activation(conv(x))
            x = F.max_pool2d(x, pool) if pool > 1 else x
        y: Tensor = self.head(self._dropout(x.flatten(1)))
        return y


class TabularMLP(TabularMLPConstructor, BuiltinModel):
    """A perceptron for rows of a table, which embeds categories; the same initial weights as in every other framework.

    Takes one tensor [batch, n_numbers + len(cardinalities)], the numbers first, and gives [batch, n_outputs]; see
    `TabularSpec`. Built as `BuiltinModel` says.

    Raises:
        SpecError: a setting out of range.
    """

    spec: TabularSpec
    embeddings: nn.ModuleList
    layers: nn.ModuleList
    _lists = ("embeddings", "layers")

    def _layer(self, name: str, shape: tuple[int, ...]) -> nn.Module:
        if name.startswith("embeddings."):
            return nn.Embedding(shape[0], shape[1], device="meta")
        return nn.Linear(shape[1], shape[0], device="meta")

    def _features(self, *inputs: Tensor) -> Tensor:
        x = _flat(inputs[0])
        if self.spec.cardinalities:
            x = self._embedded(x[:, : self.spec.n_numbers], x[:, self.spec.n_numbers :])
        *hidden, last = self.layers
        for layer in hidden:
            x = self._dropout(F.relu(layer(x)))
        y: Tensor = last(x)
        return y

    def _embedded(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return numbers and embeddings of the codes, [batch, features]."""
        # Compared by column, and not with a tensor of the cardinalities, which would have to be on the right device
        columns = list(zip(codes.unbind(1), self.spec.cardinalities, strict=True))
        is_code = torch.stack([(code >= 0) & (code < n) & (code == code.floor()) for code, n in columns], 1)
        chosen = torch.where(is_code, codes, 0.0).long()
        if self.training and self.spec.category_dropout:
            chosen = chosen * (torch.rand_like(codes) >= self.spec.category_dropout)
        embedded = [table(chosen[:, i]) for i, table in enumerate(self.embeddings)]
        x = torch.cat([numbers, *embedded], 1)
        return torch.where(is_code.all(1, keepdim=True), x, torch.nan)


def _flat(x: Tensor) -> Tensor:
    if x.ndim == 2:
        return x
    return x.flatten(1) if x.ndim > 2 else x.unsqueeze(1)
