"""Losses of Keras as functions of (outputs, targets) that give a scalar."""

from __future__ import annotations

import tensorflow as tf

from anyaccel.adapter.custom_loss import make_loss
from anyaccel.specs import Loss
from anyaccel_tensorflow.variables import keras


def scalar_loss(loss: Loss) -> Loss:
    """The spec of a loss with a function of tensors as its `own`; losses of Keras do not broadcast.

    Raises:
        SpecError: a class that does not take `loss_kwargs`.
    """
    if keras().is_loss(loss.own):
        return Loss(keras().loss_function(loss, tf.reduce_mean))
    return Loss(make_loss(loss))
