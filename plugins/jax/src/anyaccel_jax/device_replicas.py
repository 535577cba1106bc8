"""Device replicas of JAX: copies of models, and sums of gradients in one compiled call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from anyaccel.adapter.device_replicas import Gradients
from anyaccel_jax.error_translation import with_translated_errors


def copies(models: Sequence[Any]) -> list[Any]:
    """Copies with arrays of their own."""
    return copy.deepcopy(list(models))


def weighted_sums(tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
    """As `DeviceReplicas.weighted_sums`; compiled once for each number of lists and their shapes."""
    sums: Gradients = _weighted_sums([list(each) for each in tensors], [np.float64(weight) for weight in weights])
    return sums


def _sums(tensors: list[Gradients], weights: list[Any]) -> Gradients:
    return [_sum(column, weights) for column in zip(*tensors, strict=True)]


def _sum(column: Sequence[Any], weights: Sequence[Any]) -> Any:
    total = None
    for tensor, weight in zip(column, weights, strict=True):
        if tensor is not None:
            term = tensor * weight.astype(tensor.dtype)
            total = term if total is None else total + term
    return total


_weighted_sums = with_translated_errors(jax.jit(_sums), "the gradients of replicas")
