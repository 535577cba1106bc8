"""The order of the axes of an image, to the extent that a model's layers show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def outer_formats(
    layers: Sequence[Any], is_spatial: Callable[[Any], bool], is_elementwise: Callable[[Any], bool], data_format: str
) -> tuple[str, str]:
    """Return the formats of the input and the output, by the first and the last layer that are not elementwise.

    Args:
        layers: Layers in order.
        is_spatial: Whether a layer is for images.
        is_elementwise: Whether a layer handles each element separately.
        data_format: Format of layers for images.
    """
    shaping = [layer for layer in layers if not (is_elementwise(layer) or is_activation(layer))]
    first, last = (data_format if end and is_spatial(end[0]) else "" for end in (shaping[:1], shaping[-1:]))
    return first, last


def flat_layers(module: Any, sequential: type) -> list[Any]:
    """Return the layers of a sequence, and of sequences in it, in order; of anything else, itself."""
    if isinstance(module, sequential):
        layers: Any = module
        return [leaf for layer in layers.layers for leaf in flat_layers(layer, sequential)]
    return [module]


def is_activation(layer: Any) -> bool:
    """Whether something is an activation function of JAX."""
    module = str(getattr(layer, "__module__", ""))
    return module.startswith(("jax._src.nn.functions", "jax.nn")) or getattr(layer, "__name__", "") == "tanh"
