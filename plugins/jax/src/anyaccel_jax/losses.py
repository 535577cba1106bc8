"""Losses of Keras as functions of (outputs, targets) that give a scalar."""

from __future__ import annotations

import sys

import jax.numpy as jnp

from anyaccel.adapter.layer_introspection import LayerLibrary
from anyaccel.adapter.losses import make_loss
from anyaccel.specs import Loss


def keras_library() -> LayerLibrary:
    """Return Keras if it is imported, otherwise a library that nothing belongs to."""
    keras = sys.modules.get("keras")
    return LayerLibrary(keras if hasattr(keras, "Layer") else None)


def scalar_loss(loss: Loss) -> Loss:
    """Return the spec of a loss with a function of arrays as its `own`; losses of Keras do not broadcast.

    Raises:
        SpecError: a class that does not take `loss_kwargs`.
    """
    library = keras_library()
    if library.is_loss(loss.own):
        return Loss(library.loss_function(loss, jnp.mean))
    return Loss(make_loss(loss))
