"""The order of axes of an image, as layers show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def ends(
    layers: Sequence[Any], is_spatial: Callable[[Any], bool], is_elementwise: Callable[[Any], bool], layout: str
) -> tuple[str, str]:
    """What the first and the last of some layers say, where layers that work on each element by itself say nothing.

    Args:
        layers: one after the other.
        is_spatial: whether a layer is for images.
        is_elementwise: whether a layer is not concerned with axes.
        layout: that of the layers for images.
    """
    telling = [layer for layer in layers if not (is_elementwise(layer) or is_activation(layer))]
    first, last = (layout if one and is_spatial(one[0]) else "" for one in (telling[:1], telling[-1:]))
    return first, last


def is_activation(layer: Any) -> bool:
    """Whether something is an activation function of JAX, which works on each element by itself."""
    module = str(getattr(layer, "__module__", ""))
    return module.startswith(("jax._src.nn.functions", "jax.nn")) or getattr(layer, "__name__", "") == "tanh"
