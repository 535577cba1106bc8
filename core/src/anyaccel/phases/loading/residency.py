"""Residency: whether rows stay on their devices or are streamed, decided from measured memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anyaccel.display import size
from anyaccel.errors import OutOfMemoryError
from anyaccel.graph import Plan
from anyaccel.phases.events import LogEvent
from anyaccel.phases.loading.loader import Supply
from anyaccel.phases.loading.provision import Place, Provision, free_memory
from anyaccel.phases.traceback_cleanup import forget
from anyaccel.segment import NodeState, Segment
from anyaccel.specs import Optimizer

_FULL = 0.8
"""The part of the free memory that data and what training adds may fill; the rest is for activations."""
_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def supplies(
    wish: str,
    provisions: Sequence[Provision],
    names: Sequence[str],
    growth: Mapping[Place, int],
    tell: LogEvent,
    loaded: Callable[[int], None] | None = None,
) -> list[Supply]:
    """A supply for each provision, in their order; what comes first is resident first.

    Where `auto` decides, it says what and why: routine if rows stay.

    Args:
        wish: one of `auto`, `resident` and `streamed`.
        provisions: the rows of a phase, and of its validation.
        names: of these, for what is told.
        growth: bytes that training adds, by framework and device.
        tell: is told what was decided, and why.
        loaded: is told the bytes of each column that is on its device.

    Raises:
        OutOfMemoryError: no room for rows that are to be resident.
    """
    places = {place for one in provisions for place in one.nbytes()}
    left = {place: free for place in places if (free := free_memory(place)) is not None}
    room = {place: _FULL * free - growth.get(place, 0) for place, free in left.items()}
    found: list[Supply] = []
    for provision, name in zip(provisions, names, strict=True):
        if wish == "streamed":
            found.append(provision.streamed())
            continue
        needs = provision.nbytes()
        short = next((place for place, need in needs.items() if need > room.get(place, need)), None)
        if wish == "auto" and short is not None:
            tell("residency", f"{name}: streamed, as its rows take {_weighed(short, needs[short], left, growth)}")
            found.append(provision.streamed())
            continue
        found.append(_loaded(wish, provision, name, tell, loaded))
        if wish == "auto" and any(needs.values()) and found[-1].residency == "resident":
            weighed = "; ".join(_weighed(place, need, left, growth) for place, need in needs.items())
            tell("residency", f"{name}: resident, as its rows take {weighed}", verbose=True)
        for place, need in needs.items():
            if place in room:
                room[place] -= need
                left[place] -= need
    return found


def _loaded(wish: str, provision: Provision, name: str, tell: LogEvent, loaded: Callable[[int], None] | None) -> Supply:
    needs = provision.nbytes()
    try:
        return provision.resident(loaded)
    except OutOfMemoryError as error:
        forget(error)
        if wish == "resident":
            raise _full(name, needs, error) from None
        tell("memory", f"{name}: streamed, as there was no room for them: {error.problem}")
    return provision.streamed()


def _full(name: str, needs: Mapping[Place, int], error: OutOfMemoryError) -> OutOfMemoryError:
    taken = ", ".join(f"{size(nbytes)} on {device} ({framework})" for (framework, device), nbytes in needs.items())
    return OutOfMemoryError(
        f"{name}: {error.problem}",
        available=f"{error.available}; all rows take {taken}" if error.available else f"all rows take {taken}",
        hint="write residency='auto', so that they are streamed where they do not fit",
    )


def _weighed(place: Place, need: int, left: Mapping[Place, int], growth: Mapping[Place, int]) -> str:
    added, where = growth.get(place, 0), f"{place[1]} ({place[0]})"
    whole = f"{size(need)} and training adds {size(added)}" if added else size(need)
    if place in left:
        return f"{whole}, and {size(left[place])} are free on {where}"
    return f"{whole} on {where}, which does not say what is free"


def growth(plan: Plan, segments: Sequence[Segment], states: Mapping[str, NodeState]) -> dict[Place, int]:
    """Bytes that training adds on each device: gradients, and slots of optimizers that are not there yet."""
    recipes = {node: group.optimizer for one in segments for group in one.groups for node in group.nodes}
    found: dict[Place, int] = {}
    for one in plan.assignments:
        if one.node in recipes:
            known = one.node in states and states[one.node].slots
            slots = 0 if known else slots_of(recipes[one.node])
            place = (one.framework, one.device)
            found[place] = found.get(place, 0) + one.nbytes * (1 + slots)
    return found


def slots_of(recipe: Optimizer) -> int:
    """How many values an optimizer keeps for each parameter; of one that is not known as many as Adam does."""
    return _SLOTS.get(recipe.name, 2)
