"""Offloading: which blocks leave their device if not all fit, spread over depth so that others hide their copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyaccel_offload.planner.assignment import FEW, MOST_TRIALS, neighbours
from anyaccel_offload.planner.exact_search import STAYS, ExactSearch, State, is_better, states_of
from anyaccel_offload.planner.problem import Floats, Ints, Problem
from anyaccel_offload.planner.values import OffloadTier

MOST_STARTS = 6  # starts of changes of single units
SLOTS = (2, 1)  # staging slots: with two the next block is copied while one computes


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """The devices of units, the tiers of offloaded units, and the number of staging slots of each device."""

    assignment: Ints
    tier: dict[int, OffloadTier]
    slots: dict[int, int]

    def staging(self, problem: Problem) -> Floats:
        """Return the bytes of the staging slots of each device: each as large as its largest streamed unit.

        In training, a slot also has room for gradients, which leave the device while the next block computes its own.
        """
        made = np.zeros(len(problem.devices))
        for u in self.tier:
            d = int(self.assignment[u])
            c = int(problem.device_class[d])
            made[d] = max(made[d], self.slots[d] * float(problem.slots[c, u]))
        return made

    def freed(self, problem: Problem) -> Floats:
        """Return the bytes that no longer stay on each device."""
        made = np.zeros(len(problem.devices))
        for u in self.tier:
            d = int(self.assignment[u])
            made[d] += float(problem.offloadable[int(problem.device_class[d]), u])
        return made

    def copy(self, problem: Problem) -> Floats:
        """Return the seconds that each device copies in a step; in training weights twice and gradients once."""
        made = np.zeros(len(problem.devices))
        for u, tier in self.tier.items():
            d = int(self.assignment[u])
            device = problem.devices[d]
            rates = [rate for rate in (device.offload_link or device.link, tier.bandwidth) if rate]
            c = int(problem.device_class[d])
            moved = problem.weights[c, u] + (problem.slots[c, u] if problem.settings.training else 0)
            if rates:
                made[d] += float(moved) / min(rates)
        return made

    def seconds(self, problem: Problem) -> Floats:
        """Return the seconds of each device in a step: with two slots, copies overlap with the computation."""
        copy = self.copy(problem)
        busy = problem.compute(self.assignment) + problem.transfer(self.assignment)
        one = np.array([self.slots.get(d) == 1 for d in range(len(busy))])
        return np.where(one, busy + copy, np.maximum(busy, copy))


def find_offload(problem: Problem, tiers: Sequence[OffloadTier], objective: str) -> Streamed | None:
    """Return the best of some splits that stream on one device, or on all; None if none fits in memory and tiers."""
    devices = list(range(len(problem.devices)))
    sets = [devices, *([d] for d in devices if len(devices) > 1)]
    found: list[tuple[float, float, int, Streamed]] = []
    for slots in SLOTS:
        for streaming, alone in [*((chosen, False) for chosen in sets), *((chosen, True) for chosen in sets)]:
            made = _split(problem, tiers, streaming, slots, alone)
            if made is not None:
                seconds = made.seconds(problem)
                value = float(seconds.sum() if objective == "latency" else seconds.max())
                away = sum(float(problem.weights[:, u].max()) for u in made.tier)
                found.append((value if made.copy(problem).any() else 0.0, away, len(found), made))
        if found:
            break
    found.sort(key=lambda candidate: candidate[:3])
    starts = [candidate for *_, candidate in found[: MOST_STARTS if len(problem.units) <= FEW else 1]]
    if len(problem.units) <= FEW or not starts:
        repaired = _repaired(problem, tiers)
        starts += [] if repaired is None else [repaired]
    if len(problem.units) <= FEW:
        search = ExactSearch(problem, tiers, objective)
        if not starts:
            states = search.first()
            starts = [] if states is None else [_streamed(problem, tiers, states)]
        starts.sort(key=lambda candidate: value_of(problem, candidate, objective))
        bound = max(problem.lower_bound(objective), least_copying(problem, tiers, objective))
        starts = [_refined(problem, tiers, search, candidate, bound, 0.25) for candidate in starts]
        starts.sort(key=lambda candidate: value_of(problem, candidate, objective))
        starts = [_refined(problem, tiers, search, candidate, bound, 1.0) for candidate in starts[:1]]
    spread = [_spread_out(problem, tiers, objective, candidate) for candidate in starts]
    return min(spread, key=lambda candidate: value_of(problem, candidate, objective), default=None)


def value_of(problem: Problem, made: Streamed, objective: str) -> tuple[float, float, float]:
    """Return the objective, the number of devices with only one slot, and the copied bytes: lower is better.

    A crossing to another device counts like the copy of a unit: parts in order wait less for each other. If
    times are estimated, two slots have priority: with many rows blocks compute longer than estimated, and hide copies.
    """
    seconds = made.seconds(problem)
    away = sum(float(problem.weights[:, u].max()) for u in made.tier)
    away += problem.crossing_bytes * problem.crossings(made.assignment)
    one = sum(slots == 1 for slots in made.slots.values())
    value = float(seconds.sum() if objective == "latency" else seconds.max())
    return (one, value, away) if problem.estimated else (value, one, away)


def _fitted(problem: Problem, tiers: Sequence[OffloadTier], assignment: Ints, away: set[int]) -> Streamed | None:
    """Return these units offloaded, with two slots on each device that has room for them; None if it does not fit."""
    if not np.isfinite(problem.compute(assignment)).all():
        return None
    tier = _into_tiers(problem, {u: int(assignment[u]) for u in away}, tiers)
    if tier is None:
        return None
    slots = dict.fromkeys((int(assignment[u]) for u in away), 1)
    made = Streamed(assignment=assignment, tier=tier, slots=slots)
    staging = made.staging(problem)
    free = problem.capacity[problem.device_class] - problem.memory(assignment) + made.freed(problem) - staging
    if np.any(free < 0):
        return None
    return replace(made, slots={d: 2 if staging[d] <= free[d] else 1 for d in slots})


def _refined(
    problem: Problem, tiers: Sequence[OffloadTier], search: ExactSearch, start: Streamed, bound: float, share: float
) -> Streamed:
    """Change the devices and tiers of units while that is better."""
    names = [tier.name for tier in tiers]
    states = states_of(start.assignment, {u: names.index(tier.name) for u, tier in start.tier.items()})
    return _streamed(problem, tiers, search.refine(states, bound, share))


def _spread_out(problem: Problem, tiers: Sequence[OffloadTier], objective: str, made: Streamed) -> Streamed:
    """Give devices parts in order, and spread their offloaded units over depth, if that is as good."""
    middle = {int(d): float(np.flatnonzero(made.assignment == d).mean()) for d in np.unique(made.assignment)}
    parts = sorted(middle, key=lambda d: middle[d])
    in_order: Ints = np.repeat(parts, [int((made.assignment == d).sum()) for d in parts])
    for assignment in (in_order, made.assignment):
        even = _fitted(problem, tiers, assignment, _respread(problem, made, assignment))
        if even is not None and not is_better(value_of(problem, made, objective), value_of(problem, even, objective)):
            return even
    return made


def _streamed(problem: Problem, tiers: Sequence[OffloadTier], states: Sequence[State]) -> Streamed:
    """Return these states, with two slots on each device that has room for them."""
    assignment = np.array([d for d, _ in states], dtype=np.int64)
    tier = {u: tiers[t] for u, (_, t) in enumerate(states) if t != STAYS}
    made = Streamed(assignment=assignment, tier=tier, slots=dict.fromkeys((int(assignment[u]) for u in tier), 1))
    staging = made.staging(problem)
    free = problem.capacity[problem.device_class] - problem.memory(assignment) + made.freed(problem) - staging
    return replace(made, slots={d: 2 if staging[d] <= free[d] else 1 for d in made.slots})


def _respread(problem: Problem, made: Streamed, assignment: Ints) -> set[int]:
    """Return as many offloaded units on each device as before, evenly over depth if the offloaded units have one size.

    Units of other sizes do not change.
    """
    away: set[int] = set()
    for d in made.slots:
        c = int(problem.device_class[d])
        here = np.flatnonzero(assignment == d)
        chosen = [u for u in made.tier if made.assignment[u] == d]
        alike = here[problem.slots[c, here] == problem.slots[c, chosen[0]]]
        same = all(problem.slots[c, u] == problem.slots[c, chosen[0]] for u in chosen) and len(alike) >= len(chosen)
        away |= set(_spaced(alike, len(chosen)).tolist() if same else chosen)
    return away


def _repaired(problem: Problem, tiers: Sequence[OffloadTier]) -> Streamed | None:
    """Offload all weights, with one slot, and move units until each device has room; return None if that fails.

    Then units with room stay, as the tiers may have less.
    """
    devices = range(len(problem.devices))
    weighty = set(np.flatnonzero(problem.weights.max(axis=0) > 0).tolist())
    starts = [np.full(len(problem.units), d, dtype=np.int64) for d in devices]
    for assignment in [_by_memory(problem, list(devices), False), *starts]:
        away, missing = set(weighty), _missing(problem, assignment, weighty)
        trials, moved = 0, True
        while moved and trials < MOST_TRIALS and missing.sum() > 0:
            moved = False
            for other in neighbours(assignment, missing):
                trials += 1
                if (found := _missing(problem, other, away)).sum() < missing.sum():
                    assignment, missing, moved = other, found, True
                    break
        if missing.sum() > 0:
            continue
        for u in sorted(away, key=lambda u: -float(problem.offloadable[:, u].max())):
            if _missing(problem, assignment, away - {u}).sum() == 0:
                away.discard(u)
        made = _fitted(problem, tiers, assignment, away)
        if made is not None:
            return made
    return None


def _missing(problem: Problem, assignment: Ints, away: set[int]) -> Floats:
    """Return the bytes that each device lacks, with one slot; infinite if it cannot compute its units."""
    made = Streamed(
        assignment=assignment,
        tier=dict.fromkeys(away, OffloadTier(name="cpu")),
        slots=dict.fromkeys(range(len(problem.devices)), 1),
    )
    need = problem.memory(assignment) - made.freed(problem) + made.staging(problem)
    lacking: Floats = np.maximum(0, need - problem.capacity[problem.device_class])
    return np.where(np.isfinite(problem.compute(assignment)), lacking, 1e18)


def least_copying(problem: Problem, tiers: Sequence[OffloadTier], objective: str) -> float:
    """Return a lower bound of seconds for any plan: what does not fit is copied, over all links in parallel.

    A device that copies has at least one staging slot, which takes the room of other weights.
    """
    excess = float(problem.resident.min(axis=0).sum() + problem.ties.nbytes.sum())
    excess -= float(problem.capacity[problem.device_class].sum())
    some = problem.offloadable > 0
    if not tiers or not 0 < excess < math.inf or not some.any():
        return 0.0
    moved = problem.weights + (problem.slots if problem.settings.training else 0)
    least = float((moved[some] / problem.offloadable[some]).min())  # bytes that are copied for each offloaded byte
    slot = float(problem.slots[some].min())
    links = [device.offload_link or device.link or math.inf for device in problem.devices]
    rates = [[min(link, tier.bandwidth or math.inf) for link in links] for tier in tiers]
    fastest = sorted((max(of_tier[d] for of_tier in rates) for d in range(len(links))), reverse=True)
    counts = range(1, len(links) + 1)  # of devices that copy
    at_once = min((excess + count * slot) * least / sum(fastest[:count]) for count in counts)
    # The fastest tiers are filled first; then the devices' mean is below none of them.
    mean, rest = 0.0, excess + slot
    for tier, of_tier in sorted(zip(tiers, rates, strict=True), key=lambda pair: -max(pair[1])):
        taken = min(rest, math.inf if tier.memory is None else tier.memory)
        mean += taken * least / max(of_tier)
        rest -= taken
    return mean if objective == "latency" else max(at_once, mean / len(links))


def _split(
    problem: Problem, tiers: Sequence[OffloadTier], streaming: list[int], slots: int, alone: bool
) -> Streamed | None:
    assignment = _by_memory(problem, streaming, alone)
    away: dict[int, int] = {}
    for d in streaming:
        chosen = _spread(problem, assignment, d, slots)
        if chosen is None:
            return None
        away.update(dict.fromkeys(chosen, d))
    tier = _into_tiers(problem, away, tiers)
    if tier is None:
        return None
    made = Streamed(assignment=assignment, tier=tier, slots=dict.fromkeys(away.values(), slots))
    need = problem.memory(assignment) - made.freed(problem) + made.staging(problem)
    possible = np.isfinite(problem.compute(assignment)).all()
    return made if possible and np.all(need <= problem.capacity[problem.device_class]) else None


def _by_memory(problem: Problem, streaming: list[int], alone: bool) -> Ints:
    """Assign units in order: devices with resident units are filled, or idle, and the others share the rest."""
    n = len(problem.units)
    total = float(problem.resident.max(axis=0).sum())
    capacity = np.minimum(problem.capacity[problem.device_class], total + 1)
    kept = [d for d in range(len(capacity)) if d not in streaming and not alone]
    rest = max(0.0, total - float(capacity[kept].sum()))
    room = float(capacity[streaming].sum())
    assignment = np.full(n, streaming[-1], dtype=np.int64)
    start = 0
    for d in sorted([*streaming, *kept]):
        c = int(problem.device_class[d])
        limit = rest * capacity[d] / room if d in streaming and room else capacity[d]
        held = np.cumsum(problem.resident[c, start:]) if d in streaming else _filled(problem, c, start)
        stop = start + int(np.searchsorted(held, limit, side="right"))
        impossible = np.flatnonzero(~np.isfinite(problem.seconds[c, start:stop]))
        stop = start + int(impossible[0]) if len(impossible) else stop
        assignment[start:stop] = d
        start = stop
    return assignment


def _filled(problem: Problem, c: int, start: int) -> Floats:
    """Return the bytes on a device of a class for the units from `start` to each; ties are counted for each unit."""
    tied = np.zeros(len(problem.units))
    np.add.at(tied, problem.ties.units[:, 1], problem.ties.nbytes[problem.ties.units[:, 0]])
    held: Floats = np.cumsum((problem.resident[c] + tied)[start:])
    return held + np.maximum.accumulate(problem.transient[c, start:]) if start < len(problem.units) else held


def _spread(problem: Problem, assignment: Ints, d: int, slots: int) -> list[int] | None:
    """Return the offloaded units of a device, evenly over depth; None if even all of them are not enough."""
    c = int(problem.device_class[d])
    units = np.flatnonzero(assignment == d)
    need = float(problem.memory(assignment)[d] - problem.capacity[c])
    if need <= 0:
        return []
    units = units[problem.weights[c, units] > 0]

    for largest in np.unique(problem.slots[c, units])[-8:].tolist():
        some = units[problem.slots[c, units] <= largest]  # a large block that stays allows smaller slots
        chosen = _evenly(some, problem.offloadable[c], problem.slots[c], slots, need)
        if chosen is not None:
            # Leave out units that do not have to be offloaded, largest first
            offloadable = problem.offloadable[c]
            sizes = problem.slots[c]
            free, most = float(offloadable[chosen].sum()), 0.0
            by_size = sorted(chosen, key=lambda u: (-sizes[u], u))
            out: set[int] = set()
            for i, unit in enumerate(by_size):
                following = float(sizes[by_size[i + 1]]) if i + 1 < len(by_size) else 0.0
                if free - float(offloadable[unit]) - slots * max(most, following) >= need:
                    free -= float(offloadable[unit])
                    out.add(unit)
                else:
                    most = max(most, float(sizes[unit]))
            return [unit for unit in chosen if unit not in out]
    return None


def _evenly(units: Ints, offloadable: Floats, sizes: Floats, slots: int, need: float) -> list[int] | None:
    """Return about the fewest units, evenly over depth, that free `need` bytes in addition to their slots."""

    def is_enough(some: Ints) -> bool:
        return float(offloadable[some].sum() - slots * sizes[some].max(initial=0.0)) >= need

    if not is_enough(units):
        return None
    few, many = 0, len(units)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(_spaced(units, middle)) else (middle, many)
    found: list[int] = _spaced(units, many).tolist()
    return found


def _spaced(units: Ints, count: int) -> Ints:
    """Return `count` of some units, evenly over depth."""
    made: Ints = units[((np.arange(count) + 0.5) * len(units) / count).astype(int)]
    return made


def _into_tiers(problem: Problem, away: dict[int, int], tiers: Sequence[OffloadTier]) -> dict[int, OffloadTier] | None:
    """Return a tier with room for each unit: in order, or by size if that leaves fewer bytes for slower tiers."""
    size = {unit: float(problem.offloadable[int(problem.device_class[d]), unit]) for unit, d in away.items()}
    best, least = None, math.inf
    for order in (sorted(away), sorted(away, key=lambda u: (-size[u], u)), sorted(away, key=lambda u: (size[u], u))):
        left = [math.inf if tier.memory is None else float(tier.memory) for tier in tiers]
        made: dict[int, OffloadTier] = {}
        for unit in order:
            t = next((t for t, room in enumerate(left) if size[unit] <= room), None)
            if t is None:
                break
            left[t] -= size[unit]
            made[unit] = tiers[t]
        slow = sum(size[unit] for unit, tier in made.items() if tier is not tiers[0])
        if len(made) == len(away) and slow < least:
            best, least = made, slow
        if not slow and best is not None:
            break
    return best
