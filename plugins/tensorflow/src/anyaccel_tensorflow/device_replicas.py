"""Device replicas of TensorFlow: sums of gradients on their device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from anyaccel_distributed.device_replicas import DeviceReplicas, Gradients
from anyaccel_tensorflow.error_translation import translate_errors


class TensorFlowReplicas(DeviceReplicas):
    """Replicas of TensorFlow."""

    def weighted_sums(self, tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
        """Return weighted sums on the device of the tensors."""
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
