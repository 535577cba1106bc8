"""Losses of Keras as functions of (outputs, targets) that give one number."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from anyaccel.errors import ShapeError, SpecError
from anyaccel.specs import Loss
from anyaccel_tensorflow.variables import keras

# Losses of Keras that compare element by element, and would broadcast; by the names of their classes and functions.
_ELEMENTWISE = {
    *("meansquarederror", "meanabsoluteerror", "meanabsolutepercentageerror", "meansquaredlogarithmicerror"),
    *("huber", "logcosh", "poisson", "binarycrossentropy", "binaryfocalcrossentropy", "hinge", "squaredhinge"),
}


def scalar_loss(loss: Loss) -> Loss:
    """The recipe, where it is Keras's, with a function as others give it.

    Raises:
        SpecError: the loss's settings are wrong.
    """
    own = loss.own
    if isinstance(own, type):
        try:
            own = own(**loss.kwargs)
        except (TypeError, ValueError) as error:
            raise SpecError(f"the loss {loss.name!r} cannot be made: {error}", hint="correct loss_kwargs") from error
    if not _is_keras(own):
        return Loss(own)

    def mean(outputs: Any, targets: Any) -> Any:
        if loss.name.replace("_", "").lower() in _ELEMENTWISE:
            _check(loss.name, outputs.shape, targets.shape)
        return tf.reduce_mean(own(targets, outputs))  # Keras takes targets first, and may give one number a sample

    mean.__name__ = loss.name
    return Loss(mean)


def _is_keras(own: Any) -> bool:
    if keras() is None:
        return False
    return isinstance(own, keras().losses.Loss) or str(getattr(own, "__module__", "")).startswith("keras.")


def _check(name: str, outputs: Any, targets: Any) -> None:
    """Keras itself drops a last axis of one."""
    one, two = sorted((tuple(outputs), tuple(targets)), key=len)
    if two not in (one, (*one, 1)):
        raise ShapeError(
            f"the loss {name!r} is given outputs {list(outputs)} and targets {list(targets)}",
            available="they must have the same shape: nothing broadcasts",
            hint="let the model give the shape of the targets, or store the targets in that of the outputs",
        )
