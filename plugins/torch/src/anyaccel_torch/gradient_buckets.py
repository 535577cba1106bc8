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


class GradientMessage:
    """Gradients of some parameters in one tensor, which is added up over all processes.

    Each update has a tensor of its own, whose parts become the gradients: nothing is copied back, and whoever holds a
    gradient of an earlier update keeps its numbers.

    Args:
        parameters: Parameters of one device and dtype.

    Attributes:
        tensor: A weight, which gradients exist, and all gradients times the weight; of at least float32.
    """

    tensor: Tensor

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sizes = [parameter.numel() for parameter in parameters]
        self._numbers: list[float] = []
        self._are_all_here = True

    def write(self, weight: float) -> None:
        """Write the gradients of this process into a new tensor; one that is missing is zeros."""
        present = [parameter.grad is not None for parameter in self._parameters]
        self._are_all_here = all(present)
        if self._numbers != [weight, *present]:
            self._numbers, first = [weight, *present], self._parameters[0]
            self._head = torch.tensor(self._numbers, dtype=exchange_dtype(first), device=first.device)
        parts = [dense_gradient(parameter).reshape(-1) for parameter in self._parameters]
        self.tensor = torch.cat([self._head, *parts])  # of the dtype that holds both
        self.tensor[len(self._numbers) :].mul_(weight)

    def read(self, *, means: bool) -> None:
        """Replace the gradients by the sums over all processes; one that none has is None.

        Args:
            means: Divide by the sum of the weights.
        """
        sums = self.tensor[len(self._numbers) :]
        if means:
            sums.div_(self.tensor[0])
        # a parameter that this process has a gradient of has one in some process: there is nothing to wait for
        counts = None if self._are_all_here else self.tensor[1 : len(self._numbers)].tolist()
        for i, (parameter, part) in enumerate(zip(self._parameters, torch.split(sums, self._sizes), strict=True)):
            if counts is not None and not counts[i]:
                parameter.grad = None
            elif part.dtype == parameter.dtype and parameter.is_contiguous():
                parameter.grad = part.view_as(parameter)
            else:  # of the dtype and layout of the parameter
                parameter.grad = torch.empty_like(parameter).copy_(part.view_as(parameter))
        del self.tensor
