"""Provisions: the rows of a phase in host memory, and the supplies that can be made of them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anyaccel.backend import Memory
from anyaccel.data import BatchSource, MapSource, Source
from anyaccel.device import Device
from anyaccel.graph import Column, Plan
from anyaccel.phases.loading import device_columns
from anyaccel.phases.loading.batching import Batching
from anyaccel.phases.loading.loader import Resident, Supply
from anyaccel.phases.loading.source_loader import BLOCK_SECONDS, ItemsStreamed, Repeated, Sourced
from anyaccel.phases.loading.streaming import BLOCKS, Streamed
from anyaccel.registry import registry

BLOCK_BYTES = 32 * 2**20
"""Bytes of one block of streamed rows, where there is room for that."""
_PART = 4
"""Blocks take at most one part in so many of the memory that is free."""
_TRIED = 4
"""Items that are read to learn how long that takes."""

Place = tuple[str, Device]
"""A framework and a device."""


class Provision(ABC):
    """The rows of one phase, or of its validation.

    Attributes:
        plan: which columns go where.
        batch: the most rows of one feature set in a step, 1 where that is not known.
        arrays: the columns in host memory, by value name; empty where they are not, or were given away.
    """

    plan: Plan
    batch: int
    arrays: Mapping[str, np.ndarray]

    def notes(self) -> tuple[str, ...]:
        """What a user should know of where the rows come from."""
        return ()

    @abstractmethod
    def nbytes(self) -> dict[Place, int]:
        """Bytes that the columns take by framework and device, if they are resident."""

    @abstractmethod
    def resident(self, loaded: Callable[[int], None] | None = None) -> Supply:
        """Put everything on its device; `loaded` is told the bytes of each column when it is there.

        Raises:
            OutOfMemoryError: no room.
        """

    @abstractmethod
    def streamed(self) -> Supply:
        """Keep everything where it is, and send it in blocks."""


class RowsProvision(Provision):
    """Rows in host memory.

    Args:
        plan: which columns go where.
        arrays: the columns, by value name.
        again: makes them anew.
        batching: how the rows are passed over.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: Mapping[str, np.ndarray],
        again: Callable[[], Mapping[str, np.ndarray]],
        batching: Batching,
    ) -> None:
        self.plan, self.arrays = plan, arrays
        self.batch = batching.batch
        self._again, self._batching = again, batching
        self._nbytes: dict[Place, int] = {}
        for column in self._distinct(arrays):  # counted now: later they may have been given away
            place = (column.framework, column.device)
            self._nbytes[place] = self._nbytes.get(place, 0) + arrays[column.name].nbytes

    def nbytes(self) -> dict[Place, int]:
        """As of `Provision`."""
        return self._nbytes

    def resident(self, loaded: Callable[[int], None] | None = None) -> Supply:
        """As of `Provision`."""
        arrays, self.arrays = self._ready(), {}
        return Resident(device_columns.load(self.plan, arrays, loaded), self._batching.passes, self._batching.steps)

    def streamed(self) -> Supply:
        """As of `Provision`."""
        arrays = self._ready()
        row = sum(arrays[one.name].nbytes / max(len(arrays[one.name]), 1) for one in self._distinct(arrays))
        batching = self._batching
        most = steps_of_block(self.plan.columns, row * batching.batch, batching.steps)
        return Streamed(self.plan.columns, arrays, batching.passes, batching.steps, most, batching.whole)

    def _ready(self) -> Mapping[str, np.ndarray]:
        if not self.arrays:
            self.arrays = self._again()
        return self.arrays

    def _distinct(self, arrays: Mapping[str, np.ndarray]) -> list[Column]:
        """Columns without those that are the same array in the same place."""
        found = {(id(arrays[one.name]), one.framework, one.device): one for one in self.plan.columns}
        return list(found.values())


class SourceProvision(Provision):
    """Rows that a source gives as they are needed.

    Args:
        plan: which columns go where.
        source: gives batches, or items.
        classes: for columns of class indices, the number of classes, by value name.
        accumulate: batches for one step, of a source that gives batches.
        batching: how the rows are passed over, of a source that gives items.
    """

    def __init__(
        self, plan: Plan, source: Source, classes: Mapping[str, int], accumulate: int, batching: Batching | None
    ) -> None:
        self.plan, self.arrays = plan, {}
        self.batch = batching.batch if batching is not None else 1
        self._source, self._classes = source, classes
        self._accumulate, self._batching = accumulate, batching

    def notes(self) -> tuple[str, ...]:
        """As of `Provision`."""
        return self._source.notes()

    def nbytes(self) -> dict[Place, int]:
        """None: they are never all there."""
        return {}

    def resident(self, loaded: Callable[[int], None] | None = None) -> Supply:
        """Streamed: nobody knows how much a source gives."""
        return self.streamed()

    def streamed(self) -> Supply:
        """As of `Provision`."""
        columns, batching = self.plan.columns, self._batching
        if isinstance(self._source, BatchSource):
            supply = Repeated if self._source.repeats else Sourced
            return supply(columns, self._source, self._classes, self._accumulate, int(_room(columns)))
        assert isinstance(self._source, MapSource) and batching is not None
        row = sum(column.spec.nbytes for column in columns)
        most = min(
            steps_of_block(columns, row * batching.batch, batching.steps), _steps_in_time(self._source, batching.batch)
        )
        return ItemsStreamed(columns, self._source, self._classes, batching.passes, batching.steps, most)


def steps_of_block(columns: Sequence[Column], nbytes: float, steps: int) -> int:
    """Steps of so many bytes that are streamed together, at least one."""
    return max(1, min(int(_room(columns) / max(nbytes, 1.0)), steps))


def _steps_in_time(source: MapSource, batch: int) -> int:
    """Steps of so many items that are read before the device has waited for long, at least one."""
    few = np.arange(min(source.rows, _TRIED))
    began = time.perf_counter()
    source.gather(few)
    each = (time.perf_counter() - began) / len(few)
    return max(1, int(BLOCK_SECONDS / (each * batch)))


def _room(columns: Sequence[Column]) -> float:
    """Bytes for one block."""
    places = {(one.framework, one.device) for one in columns}
    free = [free for place in places if (free := free_memory(place)) is not None]
    return min(BLOCK_BYTES, min(free, default=math.inf) / (_PART * BLOCKS))


def free_memory(place: Place) -> int | None:
    """Bytes that are free on a device; None where its backend does not say."""
    framework, device = place
    backend = registry().computing(framework, device.kind)
    free = backend.memory(device).free if isinstance(backend, Memory) else 0
    return free or None
