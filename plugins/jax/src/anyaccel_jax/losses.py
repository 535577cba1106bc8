"""Losses of Keras as functions of (outputs, targets) that give a scalar."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import jax.numpy as jnp

from anyaccel.adapter.layer_introspection import LayerLibrary
from anyaccel.adapter.losses import make_loss
from anyaccel.errors import SpecError
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
    function, name = make_loss(loss), loss.name  # keys of compiled steps have what `call` reads: not the whole spec

    @wraps(function, updated=())
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TypeError as error:
            if "subdtype" not in str(error) or "integer" not in str(error):
                raise
            shown = ", ".join(f"{value.dtype}{list(value.shape)}" for value in arguments)
            raise SpecError(
                f"the loss {name!r} needs integer targets, but it was called with {shown}",
                cause=str(error),
                hint="cast class indices: feature_set.cast({'y': 'int32'}), or y.astype('int32')",
            ) from error

    call.__name__ = name
    return Loss(call)
