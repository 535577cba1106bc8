"""Replica group of torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.nn  # first imported once there is a group, its defaults would keep that for ever: see `_leave`
from torch import Tensor

from anyaccel.backend import Program
from anyaccel.errors import FrameworkError
from anyaccel.replicas import ReplicaGroup
from anyaccel_torch.program import TorchProgram

_HEAD = 1
"""Elements of a bucket before the gradients: the weight of the replica."""


class TorchReplicaGroup(ReplicaGroup):
    """The default process group of torch.distributed, which is joined unless the script has done so.

    Args:
        rank, size: of the launcher.

    Raises:
        FrameworkError: the processes cannot be joined, or the script has joined a group of another size.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        if not dist.is_available():
            raise FrameworkError("this torch was built without torch.distributed", hint="install a build with it")
        if not dist.is_initialized():
            self._try("join the others", lambda: dist.init_process_group(_engine(), rank=rank, world_size=size))
            atexit.register(_leave)
        elif dist.get_world_size() != size or dist.get_rank() != rank:
            raise FrameworkError(
                f"torch.distributed has joined {dist.get_world_size()} processes as rank {dist.get_rank()}, and the "
                f"launcher's environment says {size} and {rank}",
                hint="leave out init_process_group, or give it the launcher's RANK and WORLD_SIZE",
            )

    @torch.no_grad()
    def average_gradients(self, programs: Sequence[Program], weight: float) -> None:
        """As `ReplicaGroup.average_gradients`: one all-reduce for all gradients of a device and dtype."""
        parameters = [p for program in programs for p in cast("TorchProgram", program).trained]
        for bucket in _buckets(parameters):
            self._average(bucket, weight)

    def _average(self, parameters: Sequence[Tensor], weight: float) -> None:
        present = [parameter.grad is not None for parameter in parameters]
        if not all(present):
            for parameter, has in zip(parameters, present, strict=True):
                if not has:
                    parameter.grad = torch.zeros_like(parameter)
        gradients = [_dense(parameter) for parameter in parameters]
        first = gradients[0]
        exact = torch.promote_types(first.dtype, torch.float32)  # a number of rows is rounded in bfloat16
        head = torch.tensor([weight, *present], dtype=exact, device=first.device)
        flat = torch.cat([head, *[gradient.reshape(-1).to(exact) for gradient in gradients]])
        flat[len(head) :] *= weight
        self._try("average the gradients", lambda: dist.all_reduce(flat))
        flat[len(head) :] /= flat[0].clone()
        # a parameter that this replica has a gradient of has one in some replica: there is nothing to wait for
        counts = None if all(present) else flat[_HEAD : len(head)].tolist()
        pieces = torch.split(flat[len(head) :], [gradient.numel() for gradient in gradients])
        for i, (parameter, piece) in enumerate(zip(parameters, pieces, strict=True)):
            parameter.grad = piece.view_as(parameter).to(first.dtype) if counts is None or counts[i] else None

    def gather(self, value: Any) -> list[Any]:
        """As `ReplicaGroup.gather`."""
        every: list[Any] = [None] * self.size
        self._try("gather values", lambda: dist.all_gather_object(every, value))
        return every

    def _try(self, what: str, call: Any) -> None:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            raise FrameworkError(
                f"replica {self.rank} of {self.size} could not {what}: {str(error).splitlines()[0]}",
                available="errors of the other replicas, above or in their logs",
                hint="another replica has ended, or does not answer; start all again with their launcher",
            ) from error


def _engine() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _leave() -> None:
    """End the group's threads: a process that ends with them running is aborted now and then."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _buckets(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Parameters by device and dtype, in their order."""
    buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        buckets.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(buckets.values())


def _dense(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else gradient
