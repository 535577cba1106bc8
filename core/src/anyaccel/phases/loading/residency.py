"""Residency: whether rows stay on their devices or are streamed, decided from measured memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anyaccel.display import size
from anyaccel.errors import OutOfMemoryError
from anyaccel.graph import Plan
from anyaccel.phases.events import LogEvent
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loading.loader_factory import LoaderFactory, OnLoaded, Place, free_memory
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.segment import NodeState, Segment
from anyaccel.specs import Optimizer

_FILL_SHARE = 0.8
"""The part of the free memory that data and what training adds may fill; the rest is for activations."""
_STATE_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def load_all(
    residency: str,
    factories: Sequence[LoaderFactory],
    names: Sequence[str],
    growth: Mapping[Place, int],
    log_event: LogEvent,
    on_loaded: OnLoaded | None = None,
) -> list[BatchLoader]:
    """A loader for each factory; the first have the first claim on memory.

    Args:
        residency: `auto`, `resident` or `streamed`.
        factories: the rows of a phase, and of its validation.
        names: of these, for events.
        growth: bytes that training adds, by framework and device.
        log_event: receives what `auto` decided and why; verbose if rows stay.
        on_loaded: see `OnLoaded`.

    Raises:
        OutOfMemoryError: no room for rows that are to be resident.
    """
    places = {place for factory in factories for place in factory.nbytes()}
    free = {place: nbytes for place in places if (nbytes := free_memory(place)) is not None}
    room = {place: _FILL_SHARE * nbytes - growth.get(place, 0) for place, nbytes in free.items()}
    loaders: list[BatchLoader] = []
    for factory, name in zip(factories, names, strict=True):
        needs = factory.nbytes()
        short = next((place for place, need in needs.items() if need > room.get(place, need)), None)
        if residency == "auto" and short is not None:
            log_event("residency", f"{name}: streamed, as its rows take {_needed(short, needs[short], free, growth)}")
        if residency == "streamed" or (residency == "auto" and short is not None):
            loaders.append(factory.streamed())
            continue
        loaders.append(_resident(residency, factory, name, log_event, on_loaded))
        if residency == "auto" and any(needs.values()) and loaders[-1].residency == "resident":
            reasons = "; ".join(_needed(place, need, free, growth) for place, need in needs.items())
            log_event("residency", f"{name}: resident, as its rows take {reasons}", verbose=True)
        for place in set(needs) & set(room):
            room[place] -= needs[place]
            free[place] -= needs[place]
    return loaders


def _resident(
    residency: str, factory: LoaderFactory, name: str, log_event: LogEvent, on_loaded: OnLoaded | None
) -> BatchLoader:
    needs = factory.nbytes()
    try:
        return factory.resident(on_loaded)
    except OutOfMemoryError as error:
        release_frames(error)
        if residency == "resident":
            raise _no_room(name, needs, error) from None
        log_event("memory", f"{name}: streamed, as there was no room for them: {error.problem}")
    return factory.streamed()


def _no_room(name: str, needs: Mapping[Place, int], error: OutOfMemoryError) -> OutOfMemoryError:
    rows = ", ".join(f"{size(nbytes)} on {device} ({framework})" for (framework, device), nbytes in needs.items())
    return OutOfMemoryError(
        f"{name}: {error.problem}",
        available=f"{error.available}; all rows take {rows}" if error.available else f"all rows take {rows}",
        hint="write residency='auto', so that rows that do not fit are streamed",
    )


def _needed(place: Place, nbytes: int, free: Mapping[Place, int], growth: Mapping[Place, int]) -> str:
    added, where = growth.get(place, 0), f"{place[1]} ({place[0]})"
    total = f"{size(nbytes)} and training adds {size(added)}" if added else size(nbytes)
    if place in free:
        return f"{total}, and {size(free[place])} are free on {where}"
    return f"{total} on {where}, which does not say what is free"


def training_growth(plan: Plan, segments: Sequence[Segment], states: Mapping[str, NodeState]) -> dict[Place, int]:
    """Bytes that training adds on each device: gradients, and optimizer state that is not there yet."""
    optimizers = {node: group.optimizer for segment in segments for group in segment.groups for node in group.nodes}
    added: dict[Place, int] = {}
    for assignment in plan.assignments:
        if assignment.node in optimizers:
            has_state = assignment.node in states and states[assignment.node].slots
            slots = 0 if has_state else state_slots(optimizers[assignment.node])
            place = (assignment.framework, assignment.device)
            added[place] = added.get(place, 0) + assignment.nbytes * (1 + slots)
    return added


def state_slots(optimizer: Optimizer) -> int:
    """How many values an optimizer keeps for each parameter; for an unknown one as many as Adam does."""
    return _STATE_SLOTS.get(optimizer.name, 2)
