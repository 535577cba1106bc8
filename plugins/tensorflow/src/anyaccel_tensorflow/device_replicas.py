"""Device replicas of TensorFlow: copies of models, and sums of gradients on their device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from anyaccel.adapter.device_replicas import Gradients
from anyaccel_tensorflow.error_translation import translate_errors


def copies(models: Sequence[Any]) -> list[Any]:
    """Copies with variables of their own."""
    return copy.deepcopy(list(models))


def weighted_sums(tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
    """As `DeviceReplicas.weighted_sums`."""
    with translate_errors("the gradients of replicas"):
        return [_sum(column, weights) for column in zip(*tensors, strict=True)]


def _sum(column: Sequence[Any], weights: Sequence[float]) -> Any:
    total = None
    for tensor, weight in zip(column, weights, strict=True):
        if tensor is None:
            continue
        with tf.device(tensor.device):
            term = tensor if weight == 1.0 else tensor * tf.constant(weight, tensor.dtype)
            total = term if total is None else total + term
    return total
