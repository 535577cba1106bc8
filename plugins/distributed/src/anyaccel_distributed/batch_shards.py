"""Batch shards: how the rows of a batch are cut for replicas, and who computes which part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.program import Program

FIXED_SHARDS = 8
"""In so many shards a batch is cut where the order of summation is fixed, or in one of each row where it has fewer."""

GatherShards = Callable[[Program, Sequence[Sequence[Any]], Sequence[int]], list[list[Any]]]
"""As `ReplicaGroup.gather_tensors`."""


@dataclass(frozen=True, slots=True)
class ShardProcesses:
    """Processes that compute some shards of each batch; each of them has all rows.

    Attributes:
        rank: Rank of this process.
        size: Number of processes.
        gather: Function that exchanges the results of the shards.
    """

    rank: int = 0
    size: int = 1
    gather: GatherShards | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one replica, or a part of them.

    Attributes:
        number: Number of the shard in the batch.
        replica: Replica of this process that computes it.
        inputs: Inputs, on the device of the replica.
        weight: Fraction of the batch's rows.
    """

    number: int
    replica: int
    inputs: tuple[Any, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class BatchCut:
    """A batch of `n_rows` rows that is cut into `n_shards`, in the order of the rows."""

    n_rows: int
    n_shards: int

    @property
    def weights(self) -> list[float]:
        """The part of all rows that each shard has."""
        spans = [share(self.n_rows, number, self.n_shards) for number in range(self.n_shards)]
        return [(stop - start) / self.n_rows for start, stop in spans]

    def counts(self, size: int) -> list[int]:
        """Return how many shards each of that many replicas computes."""
        spans = [share(self.n_shards, rank, size) for rank in range(size)]
        return [stop - start for start, stop in spans]


class BatchCutter:
    """Split batches into shards for the replicas of a process.

    Args:
        label: Label of the segment.
        backend: Backend that gathers and moves rows.
        devices: Devices of the replicas of this process, or one.
        fixed_shards: Number of shards of a batch; None for one per replica.
        processes: Processes that split the batch; each has its own replicas, or one.
    """

    def __init__(
        self,
        label: str,
        backend: ComputingBackend,
        devices: Sequence[Device],
        fixed_shards: int | None,
        processes: ShardProcesses,
    ) -> None:
        self._label, self._backend, self._devices = label, backend, tuple(devices)
        self._fixed_shards, self._processes = fixed_shards, processes
        self._orders: dict[tuple[int, int], Any] = {}  # numbers of the rows of fixed shards

    def cut(self, inputs: Sequence[Any]) -> BatchCut:
        """Return the shards of these rows.

        Raises:
            PhaseError: there are fewer rows than replicas, or several numbers of rows that cannot be cut alike.
        """
        sizes = {int(column.shape[0]) for column in inputs if column is not None}
        n_rows, n_replicas = min(sizes), len(self._devices) * self._processes.size
        n_shards = n_replicas if self._fixed_shards is None else min(self._fixed_shards, n_rows)
        if n_rows < n_replicas:
            raise PhaseError(
                f"segment {self._label!r} has a batch of {n_rows} rows for {n_replicas} replicas",
                cause="each replica takes part of every batch, including the last one of an epoch",
                hint="draw larger batches, or drop the last one: SimpleSampler(..., drop_last=True)",
            )
        if len(sizes) > 1 and any(size % n_shards for size in sizes):
            raise PhaseError(
                f"segment {self._label!r} has batches of {' and '.join(map(str, sorted(sizes)))} rows in one "
                f"step, to be cut into {n_shards} shards",
                hint=f"use batch sizes that are multiples of {n_shards}, with drop_last=True",
            )
        return BatchCut(n_rows, n_shards)

    def shards(self, inputs: Sequence[Any], cut: BatchCut) -> Iterator[Shard]:
        """Yield those of this process, in their order."""
        weights, n_local = cut.weights, len(self._devices)
        for replica in range(n_local):
            first = self._processes.rank * n_local + replica
            for number in range(*share(cut.n_shards, first, n_local * self._processes.size)):
                parts = tuple(self._part(column, number, cut.n_shards, replica) for column in inputs)
                yield Shard(number, replica, parts, weights[number])

    def _part(self, column: Any, number: int, n_shards: int, replica: int) -> Any:
        if column is None:
            return None
        start, stop = share(int(column.shape[0]), number, n_shards)
        if self._fixed_shards is None:
            rows = column if n_shards == 1 else self._backend.gather_rows(column, start, stop)
        else:  # in memory of their own: where a view begins decides in which order some libraries add
            if (start, stop) not in self._orders:
                numbers = np.arange(start, stop, dtype=self._backend.index_dtype)
                self._orders[start, stop] = self._backend.from_host(numbers, self._devices[0])
            rows = self._backend.gather_rows(column, 0, stop - start, self._orders[start, stop])
        return self._backend.move(rows, self._devices[replica])


def share(n_rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the adjacent rows of `n_rows` that one of `size` takes: at most one more than another."""
    return rank * n_rows // size, (rank + 1) * n_rows // size


def rounds(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Return shards that are computed at the same time: the first of each replica, then the second, and so on."""
    result: list[list[Shard]] = []
    counts: dict[int, int] = {}
    for shard in shards:
        turn = counts.get(shard.replica, 0)
        counts[shard.replica] = turn + 1
        if turn == len(result):
            result.append([])
        result[turn].append(shard)
    return result
