"""Gradient buckets: the size of gradient messages, and the dtype of their sums over all replicas."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from anyaccel.errors import ConfigError

BUCKET_VARIABLE = "ANYACCEL_TORCH_BUCKET_MB"
_DEFAULT_MB = 25.0
"""That of DistributedDataParallel."""


def bucket_bytes(environment: Mapping[str, str] | None = None) -> float:
    """Return the most bytes of a bucket, by ANYACCEL_TORCH_BUCKET_MB; 25 MB by default, and infinite for one bucket.

    Raises:
        ConfigError: it is not a positive number.
    """
    text = (os.environ if environment is None else environment).get(BUCKET_VARIABLE) or str(_DEFAULT_MB)
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = math.nan
    if not megabytes > 0:
        raise ConfigError(
            f"{BUCKET_VARIABLE}={text!r} is not a number of megabytes above 0",
            hint=f"set it to a size such as {BUCKET_VARIABLE}=25, to inf for all gradients at once, or unset it",
        )
    return megabytes * 2**20


def agreed_bucket_bytes(gather: Callable[[float], list[float]]) -> float:
    """Return `bucket_bytes`, checked to be equal in all replicas: messages of different sizes would not match.

    Args:
        gather: Function that returns the values of all replicas.

    Raises:
        ConfigError: it is not a positive number, or differs in some replica.
    """
    nbytes = bucket_bytes()
    every = gather(nbytes)
    others = [str(rank) for rank, nbytes in enumerate(every) if nbytes != every[0]]
    if others:
        raise ConfigError(
            f"{BUCKET_VARIABLE} is not the same in all replicas: {every[0] / 2**20:g} in replica 0, but "
            f"different in replica {', '.join(others)}; here it is {nbytes / 2**20:g}",
            cause="the same size in all replicas",
            hint=f"set {BUCKET_VARIABLE} to the same value in every process, or unset it in all",
        )
    return nbytes


def exchange_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of sums of gradients: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def exchanged_bytes(parameter: Tensor) -> int:
    """Return the bytes of a parameter's gradient in a message."""
    return parameter.numel() * exchange_dtype(parameter).itemsize


def dense_gradient(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter; zeros if it has no gradient."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
