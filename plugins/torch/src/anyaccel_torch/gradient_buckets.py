"""Gradient buckets: gradients in messages of a bounded size, each added up over all replicas."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from anyaccel.errors import ConfigError

BUCKET_VARIABLE = "ANYACCEL_TORCH_BUCKET_MB"
_DEFAULT_MB = 25.0
"""That of DistributedDataParallel."""
_ALONE_BYTES = 4 * 2**20
"""A gradient of so many bytes is a message by itself, which needs no copy: filling one costs more than it saves."""
_IN_FLIGHT = 2
"""Buckets that are exchanged at once after a backward pass: one on its way while the next is filled."""

AllReduce = Callable[[Tensor], Any]
"""Begins to replace a tensor by its sum over all replicas; gives a `torch.distributed.Work`."""


def bucket_bytes(environment: Mapping[str, str] | None = None) -> float:
    """The most bytes of a bucket, by ANYACCEL_TORCH_BUCKET_MB; 25 MB by default, and infinite for one bucket.

    Raises:
        ConfigError: it is no positive number.
    """
    text = (os.environ if environment is None else environment).get(BUCKET_VARIABLE) or str(_DEFAULT_MB)
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = math.nan
    if not megabytes > 0:
        raise ConfigError(
            f"{BUCKET_VARIABLE}={text!r} is no number of megabytes above 0",
            hint=f"set it to a size such as {BUCKET_VARIABLE}=25, to inf for all gradients at once, or unset it",
        )
    return megabytes * 2**20


def agreed_bucket_bytes(gather: Callable[[float], list[float]]) -> float:
    """As `bucket_bytes`, the same in all replicas: messages of several sizes would not fit.

    Args:
        gather: gives the values of all replicas.

    Raises:
        ConfigError: it is no positive number, or another in some replica.
    """
    own = bucket_bytes()
    every = gather(own)
    others = [str(rank) for rank, each in enumerate(every) if each != every[0]]
    if others:
        raise ConfigError(
            f"{BUCKET_VARIABLE} is not the same in all replicas: {every[0] / 2**20:g} in replica 0, and another in "
            f"replica {', '.join(others)}; here it is {own / 2**20:g}",
            cause="buckets of one size in all replicas",
            hint=f"set {BUCKET_VARIABLE} alike in every process, or unset it in all",
        )
    return own


class Bucket:
    """Parameters of one device and dtype, whose gradients are exchanged in one message.

    On its way, the message alone holds the gradients, so that memory does not grow by a copy of all.

    Attributes:
        present: which of them had a gradient when it was launched.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = tuple(parameters)
        self.present = [False] * len(self.parameters)
        self._dtype = exchange_dtype(self.parameters[0])
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._flat: Tensor | None = None
        self._work: Any = None

    @torch.no_grad()
    def launch(self, factor: float, all_reduce: AllReduce) -> None:
        """Begin to add up the gradients times a factor; the parameters have none until `finish`."""
        self.present = [parameter.grad is not None for parameter in self.parameters]
        self._flat = self._message().mul_(factor)
        for parameter in self.parameters:
            parameter.grad = None
        self._work = all_reduce(self._flat)

    def _message(self) -> Tensor:
        gradients = [dense_gradient(parameter) for parameter in self.parameters]
        first = gradients[0]
        if len(gradients) == 1 and first.dtype == self._dtype and first.is_contiguous():
            return first.view(-1)  # one of any size is exchanged without a copy
        flat = torch.empty(sum(self._sizes), dtype=self._dtype, device=first.device)
        return torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat)

    @torch.no_grad()
    def finish(self, total: Tensor | None, counts: Sequence[float] | None) -> None:
        """Wait for the sums, divide them by `total` if there is one, and give them to the parameters.

        Args:
            total: a scalar.
            counts: how many replicas had each gradient; None where all are wanted.
        """
        assert self._flat is not None
        self._work.wait()
        flat, self._flat, self._work = self._flat, None, None
        if total is not None:
            flat.div_(total.to(flat.device))
        pieces = torch.split(flat.to(self.parameters[0].dtype), self._sizes)
        for i, (parameter, piece) in enumerate(zip(self.parameters, pieces, strict=True)):
            parameter.grad = piece.view_as(parameter) if counts is None or counts[i] else None


class Head:
    """The weight of all replicas, and how many of them have each gradient, in one small message.

    Args:
        buckets: of whose parameters.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        first = buckets[0].parameters[0]
        self._dtype, self._device = exchange_dtype(first), first.device
        self._all_present = True
        self._summed = torch.empty(0)
        self._work: Any = None

    def launch(self, weight: float, present: Sequence[bool], all_reduce: AllReduce) -> None:
        """Begin to add up this replica's weight, and which gradients it has, in the order of the buckets."""
        self._all_present = all(present)
        self._summed = torch.tensor([weight, *present], dtype=self._dtype, device=self._device)
        self._work = all_reduce(self._summed)

    @cached_property
    def sums(self) -> tuple[Tensor, list[Sequence[float] | None]]:
        """The weight of all, and for each bucket the counts; None where this replica had all gradients anyway."""
        self._work.wait()
        total = self._summed[0]
        if self._all_present:
            return total, [None] * len(self._buckets)
        counts = iter(self._summed[1:].tolist())
        return total, [list(islice(counts, len(bucket.parameters))) for bucket in self._buckets]


def exchange_in_buckets(
    buckets: Sequence[Bucket], factor: float, weight: float, all_reduce: AllReduce, *, means: bool
) -> None:
    """Replace the gradients, times a factor, by their sums over all replicas, divided by all weights for `means`."""
    head, in_flight = Head(buckets), deque[int]()
    head.launch(weight, [p.grad is not None for bucket in buckets for p in bucket.parameters], all_reduce)

    def finish_first() -> None:
        i = in_flight.popleft()
        total, counts = head.sums
        buckets[i].finish(total if means else None, counts[i])

    for i, bucket in enumerate(buckets):
        bucket.launch(factor, all_reduce)
        in_flight.append(i)
        if len(in_flight) == _IN_FLIGHT:
            finish_first()
    while in_flight:
        finish_first()


def buckets_of(parameters: Iterable[Tensor], max_bytes: float) -> list[Bucket]:
    """Parameters in their order in buckets of one device and dtype, none over so many bytes unless it is of one.

    Large ones are buckets of their own.
    """
    open_buckets: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    closed: list[list[tuple[int, Tensor]]] = []
    for i, parameter in enumerate(parameters):
        if exchanged_bytes(parameter) >= _ALONE_BYTES and exchange_dtype(parameter) == parameter.dtype:
            closed.append([(i, parameter)])
            continue
        key = parameter.device, parameter.dtype
        members = open_buckets.setdefault(key, [])
        if members and sum(map(_bytes_of, members)) + exchanged_bytes(parameter) > max_bytes:
            closed.append(members)
            members = open_buckets[key] = []
        members.append((i, parameter))
    every = [*closed, *filter(None, open_buckets.values())]
    return [Bucket([p for _, p in members]) for members in sorted(every, key=lambda members: members[-1][0])]


def _bytes_of(member: tuple[int, Tensor]) -> int:
    return exchanged_bytes(member[1])


def exchange_dtype(parameter: Tensor) -> torch.dtype:
    """In what gradients are added up: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def exchanged_bytes(parameter: Tensor) -> int:
    """Of the gradient of a parameter in a message."""
    return parameter.numel() * exchange_dtype(parameter).itemsize


def dense_gradient(parameter: Tensor) -> Tensor:
    """The gradient of a parameter; zeros where it has none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
