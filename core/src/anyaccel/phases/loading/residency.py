"""Residency: whether rows stay on their devices or are streamed, decided from measured memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anyaccel.errors import OutOfMemoryError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.graph import Plan
from anyaccel.html import listing, size
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loading.loader_factory import ColumnBytes, LoaderFactory, OnLoaded, Place, free_memory
from anyaccel.phases.loading.resident_share import block_bytes_beside, resident_share
from anyaccel.phases.memory_error import as_out_of_memory
from anyaccel.phases.traceback_cleanup import release_frames
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
    """A loader for each factory; the first have the first claim on memory.

    Args:
        residency: `"auto"`, `"resident"` or `"streamed"`.
        factories: the rows of a phase, and of its validation.
        names: their names in events.
        training_bytes: bytes that training adds, by framework and device.
        log_event: receives what `"auto"` decided and why; verbose if rows stay.
        on_loaded: see `OnLoaded`.

    Raises:
        OutOfMemoryError: no room for rows that are to be resident.
    """
    decides = residency == "auto"
    memory = MemoryBudget.measured(factories, training_bytes)
    loaders: list[BatchLoader] = []
    for factory, name in zip(factories, names, strict=True):
        needs = factory.nbytes()
        full_place = memory.exceeded(needs) if decides else None
        if full_place is not None:
            loaders.append(_partly_resident(factory, name, memory, full_place, log_event, on_loaded))
            continue
        if residency == "streamed":
            loaders.append(factory.streamed())
            continue
        loaders.append(_resident(residency, factory, name, log_event, on_loaded))
        if decides and any(needs.values()) and loaders[-1].residency == "resident":
            reasons = "; ".join(memory.explain(place, needs, fits=True) for place in needs)
            log_event("residency", f"{name}: resident, as they take {reasons}", verbose=True)
        memory.take(needs)
    return loaders


def _partly_resident(
    factory: LoaderFactory,
    name: str,
    memory: MemoryBudget,
    full_place: Place,
    log_event: LogEvent,
    on_loaded: OnLoaded | None,
) -> BatchLoader:
    """Not all rows fit: as many columns as do are resident, if that is worth it, and the others are streamed."""
    columns, figures = factory.columns(), memory.explain(full_place, factory.nbytes(), fits=False)
    resident, block_bytes = memory.split(columns)
    if resident:
        try:
            loader = factory.mixed(resident, block_bytes, on_loaded)
        except MemoryError as failure:
            error = as_out_of_memory(failure)
            release_frames(error)
            log_event("memory", f"{name}: streamed, as memory ran out while they were loaded ({error.problem})")
            return factory.streamed()
        memory.take(bytes_of(columns, resident))
        log_event("residency", f"{name}: {mixed_words(columns, resident)}, as all take {figures}")
        return loader
    log_event("residency", f"{name}: streamed, as they take {figures}")
    return factory.streamed()


def bytes_of(columns: Sequence[ColumnBytes], resident: Collection[str]) -> dict[Place, int]:
    """Bytes of the columns of these names, by place."""
    nbytes: dict[Place, int] = {}
    for column in columns:
        if column.names[0] in resident:
            nbytes[column.place] = nbytes.get(column.place, 0) + column.nbytes
    return nbytes


def mixed_words(columns: Sequence[ColumnBytes], resident: Collection[str]) -> str:
    """Which columns are streamed and which are resident, in words."""
    groups: dict[bool, list[ColumnBytes]] = {False: [], True: []}
    for column in columns:
        groups[column.names[0] in resident].append(column)
    streamed, kept = (
        f"{listing([each.shown for each in group], 4)} ({size(sum(each.nbytes for each in group))})"
        for group in (groups[False], groups[True])
    )
    return f"{streamed} streamed, {kept} resident"


class MemoryBudget:
    """What of the free memory of every device rows may take.

    Args:
        free: bytes that are free, by framework and device; those of which it is unknown are left out.
        training_bytes: bytes that training adds.
    """

    def __init__(self, free: Mapping[Place, int], training_bytes: Mapping[Place, int]) -> None:
        self._training, self._free = training_bytes, dict(free)
        self._budget = {
            place: _USABLE_FRACTION * nbytes - training_bytes.get(place, 0) for place, nbytes in self._free.items()
        }

    @classmethod
    def measured(cls, factories: Sequence[LoaderFactory], training_bytes: Mapping[Place, int]) -> MemoryBudget:
        """The memory of every device that rows go to, measured now."""
        places = {place for factory in factories for place in factory.nbytes()}
        return cls({place: free for place in places if (free := free_memory(place)) is not None}, training_bytes)

    def exceeded(self, needs: Mapping[Place, int]) -> Place | None:
        """A place where so many bytes are too many; places whose free memory is unknown are not."""
        return next(
            (place for place, need in needs.items() if place in self._budget and need > self._budget[place]), None
        )

    def split(self, columns: Sequence[ColumnBytes]) -> tuple[frozenset[str], float]:
        """Names of the columns that may be resident where not all are, and the bytes of a block of the others."""
        block_bytes = block_bytes_beside({c.place: self._free[c.place] for c in columns if c.place in self._free})
        return resident_share(columns, self._budget, block_bytes), block_bytes

    def take(self, needs: Mapping[Place, int]) -> None:
        """Subtract bytes that are taken now."""
        for place in needs.keys() & self._budget.keys():
            self._budget[place] -= needs[place]
            self._free[place] -= needs[place]

    def explain(self, place: Place, needs: Mapping[Place, int], *, fits: bool) -> str:
        """The figures of a decision, in words."""
        added, where = self._training.get(place, 0), f"{place[1]} ({place[0]})"
        total = f"{size(needs[place])} and training adds {size(added)}" if added else size(needs[place])
        if place not in self._free:
            return f"{total} on {where}, whose free memory is unknown"
        relation = "within" if fits else "more than"
        return f"{total}, {relation} {_USABLE_FRACTION:.0%} of the {size(self._free[place])} free on {where}"


def _resident(
    residency: str, factory: LoaderFactory, name: str, log_event: LogEvent, on_loaded: OnLoaded | None
) -> BatchLoader:
    needs = factory.nbytes()
    try:
        return factory.resident(on_loaded)
    except MemoryError as failure:
        error = as_out_of_memory(failure)
        release_frames(error)
        if residency == "resident":
            raise _no_room(name, needs, error) from None
        log_event("memory", f"{name}: streamed, as memory ran out while they were loaded ({error.problem})")
    return factory.streamed()


def _no_room(name: str, needs: Mapping[Place, int], error: OutOfMemoryError) -> OutOfMemoryError:
    rows = ", ".join(f"{size(nbytes)} on {device} ({framework})" for (framework, device), nbytes in needs.items())
    return OutOfMemoryError(
        f"{name}: {error.problem}",
        cause=f"all rows take {rows}",
        hint="write residency='auto', so that rows that do not fit are streamed",
    )


def bytes_added_by_training(
    plan: Plan, segments: Sequence[Segment], states: Mapping[str, NodeState]
) -> dict[Place, int]:
    """Bytes that training adds on each device: gradients, and optimizer state that is not there yet."""
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
    """How many values an optimizer keeps for each parameter; for an unknown one as many as Adam does."""
    return 2 if optimizer.own is not None else len(OPTIMIZERS[optimizer.name].slots(optimizer.settings))
