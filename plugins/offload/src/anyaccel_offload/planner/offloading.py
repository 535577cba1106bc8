"""Which blocks rest outside their device when not all fit: spread over depth, so that the others hide their copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyaccel_offload.planner.problem import Floats, Ints, Problem
from anyaccel_offload.planner.values import OffloadTier

SLOTS = (2, 1)  # staging slots: with two the next block is copied while one computes


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """Where units are computed, in which tier some of them rest, and how many staging slots each device needs."""

    assignment: Ints
    tier: dict[int, OffloadTier]
    slots: dict[int, int]

    def staging(self, problem: Problem) -> Floats:
        """Bytes of the staging slots of each device: each as large as the largest that is copied.

        In training, a slot has room for gradients, too, which leave the device while the next block computes its own.
        """
        made = np.zeros(len(problem.devices))
        for u in self.tier:
            d = int(self.assignment[u])
            c = int(problem.device_class[d])
            made[d] = max(made[d], self.slots[d] * float(problem.slots[c, u]))
        return made

    def freed(self, problem: Problem) -> Floats:
        """Bytes that no longer stay on each device."""
        made = np.zeros(len(problem.devices))
        for u in self.tier:
            d = int(self.assignment[u])
            made[d] += float(problem.offloadable[int(problem.device_class[d]), u])
        return made

    def copy(self, problem: Problem) -> Floats:
        """Seconds that each device copies in a step; in training weights twice and gradients once."""
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
        """Seconds of each device in a step: copies run beside the compute where there are two slots."""
        copy = self.copy(problem)
        busy = problem.compute(self.assignment) + problem.transfer(self.assignment)
        one = np.array([self.slots.get(d) == 1 for d in range(len(busy))])
        return np.where(one, busy + copy, np.maximum(busy, copy))


def find_offload(problem: Problem, tiers: Sequence[OffloadTier], objective: str) -> Streamed | None:
    """The best of some splits in which one device streams or all do; None if none fits in memory and tiers."""
    devices = list(range(len(problem.devices)))
    sets = [devices, *([d] for d in devices if len(devices) > 1)]
    found: list[tuple[float, float, int, Streamed]] = []
    for slots in SLOTS:
        for streaming, alone in [*((each, False) for each in sets), *((each, True) for each in sets)]:
            made = _split(problem, tiers, streaming, slots, alone)
            if made is not None:
                seconds = made.seconds(problem)
                value = float(seconds.sum() if objective == "latency" else seconds.max())
                away = sum(float(problem.weights[:, u].max()) for u in made.tier)
                found.append((value if made.copy(problem).any() else 0.0, away, len(found), made))
        if found:
            break
    return min(found, key=lambda each: each[:3])[3] if found else None


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
    """Units in order: devices that keep what they have are filled, or idle, and the others share the rest."""
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
    """Bytes that a device of a class needs for the units from `start` to each; ties counted for each unit."""
    tied = np.zeros(len(problem.units))
    np.add.at(tied, problem.ties.units[:, 1], problem.ties.nbytes[problem.ties.units[:, 0]])
    held: Floats = np.cumsum((problem.resident[c] + tied)[start:])
    return held + np.maximum.accumulate(problem.transient[c, start:]) if start < len(problem.units) else held


def _spread(problem: Problem, assignment: Ints, d: int, slots: int) -> list[int] | None:
    """Units of a device that are offloaded, evenly over depth; None if even all of them are not enough."""
    c = int(problem.device_class[d])
    units = np.flatnonzero(assignment == d)
    need = float(problem.memory(assignment)[d] - problem.capacity[c])
    if need <= 0:
        return []
    units = units[problem.weights[c, units] > 0]

    for largest in np.unique(problem.slots[c, units])[-8:].tolist():
        some = units[problem.slots[c, units] <= largest]  # a large block that stays makes the slots smaller
        chosen = _evenly(some, problem.offloadable[c], problem.slots[c], slots, need)
        if chosen is not None:
            return _without_surplus(chosen, problem.offloadable[c], problem.slots[c], slots, need)
    return None


def _evenly(units: Ints, offloadable: Floats, sizes: Floats, slots: int, need: float) -> list[int] | None:
    """About the fewest units, evenly over depth, that free what is needed besides their slots."""

    def chosen(m: int) -> Ints:
        made: Ints = units[((np.arange(m) + 0.5) * len(units) / m).astype(int)]
        return made

    def is_enough(some: Ints) -> bool:
        return float(offloadable[some].sum() - slots * sizes[some].max(initial=0.0)) >= need

    if not is_enough(units):
        return None
    few, many = 0, len(units)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(chosen(middle)) else (middle, many)
    found: list[int] = chosen(many).tolist()
    return found


def _without_surplus(chosen: list[int], offloadable: Floats, sizes: Floats, slots: int, need: float) -> list[int]:
    """Leave out what need not be offloaded, the largest first."""
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


def _into_tiers(problem: Problem, away: dict[int, int], tiers: Sequence[OffloadTier]) -> dict[int, OffloadTier] | None:
    """The first tier with room for each unit, in order."""
    left = [math.inf if tier.memory is None else float(tier.memory) for tier in tiers]
    made: dict[int, OffloadTier] = {}
    for unit in sorted(away):
        size = float(problem.offloadable[int(problem.device_class[away[unit]]), unit])
        t = next((t for t, room in enumerate(left) if size <= room), None)
        if t is None:
            return None
        left[t] -= size
        made[unit] = tiers[t]
    return made
