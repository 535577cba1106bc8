"""Gradient buckets: the size of gradient messages, the dtype of their sums, and the messages of own loops."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


def alike(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return parameters by device and dtype, in their order."""
    return [[parameters[i] for i in positions] for positions in positions_alike(parameters)]


def positions_alike(tensors: Iterable[Tensor]) -> list[list[int]]:
    """Return the positions of tensors by device and dtype."""
    positions: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        positions.setdefault((tensor.device, tensor.dtype), []).append(i)
    return list(positions.values())


def buckets(parameters: Iterable[Tensor], max_bytes: float) -> Iterator[list[Tensor]]:
    """Yield parameters in their order, in lists whose gradients take at most `max_bytes`, unless a single one is
    larger.
    """
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if bucket and size + exchanged_bytes(parameter) > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += exchanged_bytes(parameter)
    yield bucket


class GradientMeans:
    """A message for the means of some parameters' gradients over all processes.

    Each update has a message of its own, whose parts become the gradients: nothing is copied back, and whoever holds a
    gradient of an earlier update keeps its numbers.

    Args:
        parameters: Parameters of one device and dtype.
        size: Number of processes.

    Attributes:
        message: What is added up over all processes: which gradients exist, and a part of each.
    """

    message: Tensor

    def __init__(self, parameters: Sequence[Tensor], size: int) -> None:
        self._parameters, self._factor = parameters, 1.0 / size
        self._sizes = [len(parameters), *(parameter.numel() for parameter in parameters)]
        self._ones = torch.ones(len(parameters), dtype=exchange_dtype(parameters[0]), device=parameters[0].device)
        self._are_all_here = True

    def write(self) -> None:
        """Write the gradients of this process into a new message."""
        gradients = [parameter.grad for parameter in self._parameters]
        self._are_all_here = all(gradient is not None for gradient in gradients)
        present = self._ones
        if not self._are_all_here:
            present = torch.tensor([float(gradient is not None) for gradient in gradients]).to(present)
        parts = [dense_gradient(parameter).reshape(-1) for parameter in self._parameters]
        self.message = torch.cat([present, *parts]).mul_(self._factor)  # of the dtype of `present`

    def read(self) -> None:
        """Replace the gradients by the parts of the message, which are the means now; one that none has stays None."""
        present, *parts = torch.split(self.message, self._sizes)
        # a parameter that this process has a gradient of has one in some process: there is nothing to wait for
        counts = None if self._are_all_here else present.tolist()
        for i, (parameter, part) in enumerate(zip(self._parameters, parts, strict=True)):
            if counts is not None and not counts[i]:
                continue
            if part.dtype == parameter.dtype and parameter.is_contiguous():
                parameter.grad = part.view_as(parameter)
            else:  # of the dtype and layout of the parameter
                parameter.grad = torch.empty_like(parameter).copy_(part.view_as(parameter))
        del self.message
