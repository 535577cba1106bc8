"""Residency: whether rows stay on their devices or are streamed, decided from measured memory."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyaccel.backend import Memory
from anyaccel.data import BatchSource, MapSource, Source
from anyaccel.device import Device
from anyaccel.errors import OutOfMemoryError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import Column, Plan
from anyaccel.html import listing
from anyaccel.phases.loading.epoch_plan import EpochPlan, StreamKey
from anyaccel.phases.loading.host_columns import Batch, HostColumn, TargetRange, as_arrays
from anyaccel.phases.loading.loader import BatchLoader, ResidentLoader, load, stream_of
from anyaccel.phases.loading.source_loader import (
    BLOCK_SECONDS,
    BatchSourceLoader,
    MapSourceLoader,
    SourceRandomness,
)
from anyaccel.phases.loading.streaming import BLOCKS, MixedLoader, StreamingLoader
from anyaccel.phases.memory_error import as_out_of_memory, release_frames
from anyaccel.printable import size
from anyaccel.registry import registry
from anyaccel.results.events import LogEvent
from anyaccel.segment import NodeState, Segment
from anyaccel.specs import Optimizer

_USABLE_FRACTION = 0.8
"""Fraction of the free memory that rows, and what training adds, may take; the rest is for activations."""


def make_loaders(
    residency: str,
    factories: Sequence[LoaderFactory],
    names: Sequence[str],
    training_bytes: Mapping[Place, int],
    log_event: LogEvent,
    on_loaded: OnLoaded | None = None,
) -> list[BatchLoader]:
    """Return a loader for each factory; the first have the first claim on memory.

    Args:
        residency: `"auto"`, `"resident"` or `"streamed"`.
        factories: The rows of a phase, and of its validation.
        names: Their names in events.
        training_bytes: Bytes that training adds, by framework and device.
        log_event: Function that receives the decision of `"auto"` and the reason; verbose if rows stay.
        on_loaded: See `OnLoaded`.

    Raises:
        OutOfMemoryError: no room for rows that are to be resident.
    """
    decides = residency == "auto"
    memory = MemoryBudget.measured(factories, training_bytes)
    loaders: list[BatchLoader] = []
    for factory, name in zip(factories, names, strict=True):
        if residency == "streamed":
            loaders.append(factory.streamed())
            continue
        needs, kept, block_bytes = factory.nbytes(), frozenset[str](), 0.0
        full_place = memory.exceeded(needs) if decides else None
        if full_place is not None:  # as many columns as fit are resident, if that is worth it
            columns, figures = factory.columns(), memory.explain(full_place, needs, fits=False)
            kept, block_bytes = memory.split(columns)
            if not kept:
                log_event("residency", f"{name}: streamed, because they take {figures}")
                loaders.append(factory.streamed())
                continue
        loader: BatchLoader | None = None
        try:
            loader = factory.mixed(kept, block_bytes, on_loaded) if kept else factory.resident(on_loaded)
        except MemoryError as failure:
            error = as_out_of_memory(failure)
            release_frames(error)
            if residency == "resident":
                rows = ", ".join(
                    f"{size(nbytes)} on {device} ({framework})" for (framework, device), nbytes in needs.items()
                )
                raise OutOfMemoryError(
                    f"{name}: {error.problem}",
                    cause=f"all rows take {rows}",
                    hint="write residency='auto', so that rows that do not fit are streamed",
                ) from None
            log_event("memory", f"{name}: streamed, because memory ran out while they were loaded ({error.problem})")
            del error
        loaders.append(factory.streamed() if loader is None else loader)
        if full_place is None:
            if loader is not None and decides and any(needs.values()) and loader.residency == "resident":
                reasons = "; ".join(memory.explain(place, needs, fits=True) for place in needs)
                log_event("residency", f"{name}: resident, because they take {reasons}", verbose=True)
            memory.take(needs)
        elif loader is not None:
            memory.take(bytes_of(columns, kept))
            log_event("residency", f"{name}: {mixed_words(columns, kept)}, because all take {figures}")
    return loaders


def bytes_of(columns: Sequence[ColumnBytes], resident: Collection[str]) -> dict[Place, int]:
    """Return the bytes of the columns with these names, by place."""
    nbytes: dict[Place, int] = {}
    for column in columns:
        if column.names[0] in resident:
            nbytes[column.place] = nbytes.get(column.place, 0) + column.nbytes
    return nbytes


def mixed_words(columns: Sequence[ColumnBytes], resident: Collection[str]) -> str:
    """Return which columns are streamed and which are resident, in words."""
    groups: dict[bool, list[ColumnBytes]] = {False: [], True: []}
    for column in columns:
        groups[column.names[0] in resident].append(column)
    streamed, kept = (
        f"{listing([column.shown for column in group], 4)} ({size(sum(column.nbytes for column in group))})"
        for group in (groups[False], groups[True])
    )
    return f"{streamed} streamed, {kept} resident"


class MemoryBudget:
    """The part of the free memory of every device that rows may use.

    Args:
        free: Free bytes, by framework and device; places with unknown memory are left out.
        training_bytes: Bytes that training adds.
    """

    def __init__(self, free: Mapping[Place, int], training_bytes: Mapping[Place, int]) -> None:
        self._training, self._free = training_bytes, dict(free)
        self._budget = {
            place: _USABLE_FRACTION * nbytes - training_bytes.get(place, 0) for place, nbytes in self._free.items()
        }

    @classmethod
    def measured(cls, factories: Sequence[LoaderFactory], training_bytes: Mapping[Place, int]) -> MemoryBudget:
        """Return the memory of every device that rows go to, measured now."""
        free: dict[Place, int] = {}
        for place in {place for factory in factories for place in factory.nbytes()}:
            nbytes = free_memory(place)
            if nbytes is not None:
                free[place] = nbytes
        return cls(free, training_bytes)

    def exceeded(self, needs: Mapping[Place, int]) -> Place | None:
        """Return a place where these bytes are too many; places with unknown free memory are never exceeded."""
        for place, need in needs.items():
            if place in self._budget and need > self._budget[place]:
                return place
        return None

    def split(self, columns: Sequence[ColumnBytes]) -> tuple[frozenset[str], float]:
        """Return names of the columns that may be resident where not all are, and the bytes of a block of the
        others.
        """
        block_bytes = bytes_of_block(self._free[c.place] for c in columns if c.place in self._free)
        return resident_share(columns, self._budget, block_bytes), block_bytes

    def take(self, needs: Mapping[Place, int]) -> None:
        """Subtract bytes that are taken now."""
        for place in needs.keys() & self._budget.keys():
            self._budget[place] -= needs[place]
            self._free[place] -= needs[place]

    def explain(self, place: Place, needs: Mapping[Place, int], *, fits: bool) -> str:
        """Return the figures of a decision, in words."""
        added, where = self._training.get(place, 0), f"{place[1]} ({place[0]})"
        total = f"{size(needs[place])} and training adds {size(added)}" if added else size(needs[place])
        if place not in self._free:
            return f"{total} on {where}, whose free memory is unknown"
        relation = "within" if fits else "more than"
        return f"{total}, {relation} {_USABLE_FRACTION:.0%} of the {size(self._free[place])} free on {where}"


def bytes_added_by_training(
    plan: Plan, segments: Sequence[Segment], states: Mapping[str, NodeState]
) -> dict[Place, int]:
    """Return bytes that training adds on each device: gradients, and optimizer state that is not there yet."""
    optimizers = {node: group.optimizer for segment in segments for group in segment.groups for node in group.nodes}
    added: dict[Place, int] = {}
    for assignment in plan.assignments:
        if assignment.node in optimizers:
            has_state = assignment.node in states and states[assignment.node].slots
            slots = 0 if has_state else state_slots(optimizers[assignment.node])
            place = (assignment.framework, assignment.device)
            added[place] = added.get(place, 0) + assignment.resident_nbytes * (1 + slots)
    return added


def state_slots(optimizer: Optimizer) -> int:
    """Return the number of values that an optimizer stores per parameter; Adam's number for an unknown one."""
    return 2 if optimizer.own is not None else len(OPTIMIZERS[optimizer.name].slots(optimizer.settings))


# -- Resident share: which columns stay on their devices where not all of them fit -------------------------------------


_WORTHWHILE = 4
"""How many times the bytes of its row numbers a resident column must save."""


def resident_share(columns: Sequence[ColumnBytes], room: Mapping[Place, float], block_bytes: float) -> frozenset[str]:
    """Return the names of the columns to keep: in each place the largest that fit next to the blocks of the others.

    Row numbers of resident columns are streamed, so columns with few bytes per row are not worth it.

    Args:
        columns: All columns of a phase.
        room: Bytes that may be used; places without a limit are left out.
        block_bytes: Bytes of one block of streamed rows.
    """
    kept: list[ColumnBytes] = []
    left = {place: nbytes - BLOCKS * block_bytes for place, nbytes in room.items()}
    for column in sorted(columns, key=lambda item: -item.nbytes):
        if column.place not in left:
            kept.append(column)
        elif column.nbytes <= left[column.place]:
            left[column.place] -= column.nbytes
            kept.append(column)
    saved: dict[tuple[Place, object], float] = {}
    for column in kept:
        key = (column.place, column.stream)
        saved[key] = saved.get(key, 0) + column.row_bytes
    worth = [column for column in kept if saved[column.place, column.stream] >= _WORTHWHILE * column.index_bytes]
    return frozenset(name for column in worth for name in column.names)


# -- -------------------------------------------------------------------------------------------------------------------
# Loader factory: the rows of a phase in host memory or behind a source, and the loaders that can be made of them.


BLOCK_BYTES = 32 * 2**20
"""Bytes of one block of streamed rows, where there is room for that."""
_MEMORY_SHARE = 0.25
"""The part of the free memory that all blocks take together at most."""
_TIMED_ITEMS = 4
"""Items that are read to measure how long that takes."""

Place = tuple[str, Device]
"""A framework and a device."""
OnLoaded = Callable[[int], None]
"""Is called with the bytes of each column when it is on its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBytes:
    """A column that may be resident separately.

    Attributes:
        names: Names of all values that are this array in this place.
        shown: Name for messages.
        place: Its place.
        stream: Stream of its rows.
        nbytes: Bytes of all rows.
        row_bytes: Bytes of a row.
        index_bytes: Bytes of a row number on its device.
    """

    names: tuple[str, ...]
    shown: str
    place: Place
    stream: StreamKey
    nbytes: int
    row_bytes: float
    index_bytes: int

    @classmethod
    def of(cls, column: Column, names: tuple[str, ...], nbytes: int, n_rows: int) -> ColumnBytes:
        """Return the entry of a column of a plan."""
        return cls(
            names=names,
            shown=column.shown,
            place=(column.framework, column.device),
            stream=stream_of(column),
            nbytes=nbytes,
            row_bytes=nbytes / max(n_rows, 1),
            index_bytes=np.dtype(column.backend.index_dtype).itemsize,
        )


def mixed_block_steps(
    columns: Sequence[ColumnBytes], resident: Collection[str], block_bytes: float, epochs: EpochPlan
) -> int:
    """Return the steps of a block if these columns are resident: their row numbers are streamed."""
    orders = {(column.place, column.stream): column.index_bytes for column in columns if column.names[0] in resident}
    row_bytes = sum(column.row_bytes for column in columns if column.names[0] not in resident) + sum(orders.values())
    return steps_of_block(block_bytes, row_bytes * epochs.batch_size, epochs.n_steps)


class LoaderFactory(ABC):
    """The rows of a phase, or of its validation, and the loaders that copy them to their devices.

    Attributes:
        plan: The plan, with the device of each column.
        batch_size: Largest number of rows of one feature set in a step, 1 if unknown.
        n_steps: Steps of an epoch; None if unknown.
        arrays: Columns in host memory, by value name; empty if they are not in memory, or ownership was given up.
    """

    plan: Plan
    batch_size: int
    n_steps: int | None = None
    arrays: Mapping[str, HostColumn]

    def notes(self) -> tuple[str, ...]:
        """Return notes for users about the origin of the rows."""
        return ()

    @abstractmethod
    def nbytes(self) -> dict[Place, int]:
        """Return bytes that resident columns take, by framework and device."""

    @abstractmethod
    def resident(self, on_loaded: OnLoaded | None = None) -> BatchLoader:
        """Put all rows on their devices.

        Raises:
            OutOfMemoryError: no room.
        """

    @abstractmethod
    def streamed(self) -> BatchLoader:
        """Keep all rows where they are, and copy them to their devices in blocks."""

    def columns(self) -> Sequence[ColumnBytes]:
        """Return columns that may be resident separately, as `mixed` takes their names; none by default."""
        return ()

    def mixed(self, resident: Collection[str], block_bytes: float, on_loaded: OnLoaded | None = None) -> BatchLoader:
        """Put the columns with these names on their devices, and stream the others in blocks of at most `block_bytes`
        bytes.

        Raises:
            OutOfMemoryError: no room.
        """
        return self.streamed()


class RowsLoaderFactory(LoaderFactory):
    """Rows in host memory.

    Args:
        plan: Plan with the columns and their devices.
        make_arrays: Function that makes the host columns, by value name; called again after they were given to a
            device.
        epochs: Order of the rows in each epoch.

    Raises:
        ColumnError: data that do not fit the plan.
    """

    def __init__(self, plan: Plan, make_arrays: Callable[[], Mapping[str, HostColumn]], epochs: EpochPlan) -> None:
        self.plan, self.arrays = plan, make_arrays()
        self.batch_size, self.n_steps = epochs.batch_size, epochs.n_steps
        self._make_arrays, self._epochs = make_arrays, epochs
        self._nbytes: dict[Place, int] = {}
        self._columns: list[ColumnBytes] = []
        for column in self._distinct(as_arrays(self.arrays) or {}):  # counted now: later they may have been given away
            place = (column.framework, column.device)
            self._nbytes[place] = self._nbytes.get(place, 0) + self.arrays[column.name].nbytes

    def nbytes(self) -> dict[Place, int]:
        """Return the bytes of resident rows by place; empty if rows differ in length, which are not resident."""
        return self._nbytes

    def resident(self, on_loaded: OnLoaded | None = None) -> BatchLoader:
        """Return a resident loader; a streamed one if rows differ in length, because each batch has its own shape."""
        arrays = as_arrays(self._host_arrays())
        if arrays is None:
            return self.streamed()
        self.arrays = {}
        return ResidentLoader(self.plan.columns, load(self.plan, arrays, on_loaded), self._epochs)

    def streamed(self) -> BatchLoader:
        arrays, epochs = self._host_arrays(), self._epochs
        row_bytes = sum(
            arrays[column.name].nbytes / max(len(arrays[column.name]), 1) for column in self._distinct(arrays)
        )
        block_steps = steps_of_block(_block_bytes(self.plan.columns), row_bytes * epochs.batch_size, epochs.n_steps)
        return StreamingLoader(self.plan.columns, arrays, epochs, block_steps)

    def columns(self) -> Sequence[ColumnBytes]:
        """Return the columns that may be resident; none if rows differ in length."""
        arrays = {} if self._columns else as_arrays(self._host_arrays()) or {}
        for column in self._distinct(arrays):
            place, array = (column.framework, column.device), arrays[column.name]
            same = tuple(
                other.name
                for other in self.plan.columns
                if arrays[other.name] is array and (other.framework, other.device) == place
            )
            self._columns.append(ColumnBytes.of(column, same, array.nbytes, len(array)))
        return self._columns

    def mixed(self, resident: Collection[str], block_bytes: float, on_loaded: OnLoaded | None = None) -> BatchLoader:
        columns, arrays, epochs = self.columns(), as_arrays(self._host_arrays()), self._epochs
        if arrays is None:
            return self.streamed()
        self.arrays = {}
        kept = tuple(column for column in self.plan.columns if column.name in resident)
        tensors = load(replace(self.plan, columns=kept), arrays, on_loaded)
        left = {name: array for name, array in arrays.items() if name not in tensors}
        steps = mixed_block_steps(columns, resident, block_bytes, epochs)
        return MixedLoader(self.plan.columns, left, epochs, steps, tensors)

    def _host_arrays(self) -> Mapping[str, HostColumn]:
        if not self.arrays:
            self.arrays = self._make_arrays()
        return self.arrays

    def _distinct(self, arrays: Mapping[str, HostColumn]) -> list[Column]:
        """Return columns, without repetitions of one array in the same place."""
        distinct: dict[tuple[int, str, Device], Column] = {}
        for column in self.plan.columns:
            if column.name in arrays:
                distinct[id(arrays[column.name]), column.framework, column.device] = column
        return list(distinct.values())


class SourceLoaderFactory(LoaderFactory):
    """Rows that a source gives as they are needed; they are never all there.

    Args:
        plan: Plan with the columns and their devices.
        source: Source of batches, or of items.
        batch_size: The most rows of a step, 1 if that is not known.
        make_loader: Function that makes a loader with blocks of a number of bytes.
    """

    def __init__(
        self, plan: Plan, source: Source, batch_size: int, make_loader: Callable[[float], BatchLoader]
    ) -> None:
        self.plan, self.arrays, self.batch_size = plan, {}, batch_size
        self._source, self._make_loader = source, make_loader

    def notes(self) -> tuple[str, ...]:
        return self._source.notes()

    def nbytes(self) -> dict[Place, int]:
        """Return nothing: the size of a source is unknown."""
        return {}

    def resident(self, on_loaded: OnLoaded | None = None) -> BatchLoader:
        """Return a streamed loader, because the size of a source is unknown."""
        return self.streamed()

    def streamed(self) -> BatchLoader:
        return self._make_loader(_block_bytes(self.plan.columns))


def batch_source_loaders(
    plan: Plan,
    source: BatchSource,
    ranges: Mapping[str, TargetRange],
    accumulate: int,
    seed: int,
    share: Callable[[Iterable[tuple[int, Batch]]], Iterator[tuple[int, Batch]]] = iter,
) -> SourceLoaderFactory:
    """Return loaders of the batches of a source.

    Args:
        plan: The plan, with the device of each column.
        source: Source of the batches.
        ranges: Targets that the losses accept, by value name.
        accumulate: Batches for one step.
        seed: Seed of the graph.
        share: Function that returns this process's part of numbered batches.
    """

    def make_loader(block_bytes: float) -> BatchLoader:
        return BatchSourceLoader(plan.columns, source, ranges, accumulate, int(block_bytes), seed, share)

    return SourceLoaderFactory(plan, source, 1, make_loader)


def map_source_loaders(
    plan: Plan, source: MapSource, ranges: Mapping[str, TargetRange], epochs: EpochPlan, seed: int
) -> SourceLoaderFactory:
    """Return loaders of the items of a data set, in the order of samplers.

    Args:
        plan: The plan, with the device of each column.
        source: Source of the items.
        ranges: Targets that the losses accept, by value name.
        epochs: Plan of the epochs.
        seed: Seed of the graph.
    """

    def make_loader(block_bytes: float) -> BatchLoader:
        step_bytes = epochs.batch_size * sum(column.spec.nbytes for column in plan.columns)
        by_bytes = steps_of_block(block_bytes, step_bytes, epochs.n_steps)
        items = np.arange(min(source.rows, _TIMED_ITEMS))
        source.example  # noqa: B018 - says how it is read
        began = time.perf_counter()
        with SourceRandomness(0, in_turn=bool(source.passes_thread_rng)).drawing():  # what is read here is read again
            source.gather(items)
        seconds = (time.perf_counter() - began) / len(items)
        block_steps = min(by_bytes, max(1, int(BLOCK_SECONDS / (seconds * epochs.batch_size))))
        return MapSourceLoader(plan.columns, source, ranges, epochs, block_steps, seed)

    return SourceLoaderFactory(plan, source, epochs.batch_size, make_loader)


def steps_of_block(block_bytes: float, step_bytes: float, n_steps: int) -> int:
    """Return the number of steps of `step_bytes` bytes that are streamed together, at least one."""
    return max(1, min(int(block_bytes / max(step_bytes, 1.0)), n_steps))


def _block_bytes(columns: Sequence[Column]) -> float:
    places = {(column.framework, column.device) for column in columns}
    return bytes_of_block(free for place in places if (free := free_memory(place)) is not None)


def bytes_of_block(free: Iterable[int]) -> float:
    """Return the largest size of one block of streamed rows, given the free bytes on each device."""
    return min(BLOCK_BYTES, min(free, default=math.inf) * _MEMORY_SHARE / BLOCKS)


def free_memory(place: Place) -> int | None:
    """Return bytes that are free on a device; None if its backend does not say."""
    framework, device = place
    memory = registry().find(framework, device.kind).capability(Memory)
    return None if memory is None else memory.memory(device).free or None
