"""An exact search (branch and bound): tries devices and tiers of units, and leaves out what cannot be better."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anyaccel_offload.planner.problem import Ints, Problem
from anyaccel_offload.planner.values import OffloadTier

MOST_VISITS = 20_000  # states of units to try for one plan: about a quarter of a second
WHOLE = 20  # number of units up to which all are tried together
NEAR_BOUND = 1.03  # times the lower bound: a plan of many units that is good enough
NEAR = 4096  # combinations of states of some units that are tried together, before bounds leave out most
STAYS = -1  # instead of the index of a tier: the weights of the unit stay on the device
_TOLERANCE = 1e-12
Value = tuple[float, float, float]
State = tuple[int, int]  # device, and index of the tier or STAYS


class _Cost(NamedTuple):
    """The cost that a unit in a state adds to its device."""

    device: int
    tier: int
    seconds: float
    held: float
    transient: float
    slot: float
    copy: float
    rests: float  # bytes in the tier
    copied: float  # bytes, for the last part of a value


class _Load(NamedTuple):
    """The work, copies and memory of a device, for a part of the units."""

    seconds: float = 0.0
    held: float = 0.0
    transient: float = 0.0
    slot: float = 0.0
    copy: float = 0.0


class ExactSearch:
    """Finds the best states of units: the device of each, and the tier of its weights if they are offloaded.

    Args:
        problem: Problem to solve.
        tiers: Tiers for offloaded weights; none if all weights stay on devices.
        objective: `"throughput"` or `"latency"`.

    Attributes:
        visits: Number of states tried so far, over all searches.
    """

    def __init__(self, problem: Problem, tiers: Sequence[OffloadTier], objective: str) -> None:
        self.problem, self.latency = problem, objective == "latency"
        self.visits = 0
        n, classes = len(problem.units), problem.device_class.tolist()
        self.classes: list[int] = classes
        self.devices = range(len(classes))
        self.capacity: list[float] = problem.capacity[problem.device_class].tolist()
        self.per_byte: list[float] = problem.per_byte[problem.device_class].tolist()
        self.room = [math.inf if tier.memory is None else float(tier.memory) for tier in tiers]
        links = [device.offload_link or device.link for device in problem.devices]
        moved = problem.weights + (problem.slots if problem.settings.training else 0)
        copied = problem.weights.max(axis=0).tolist()
        self.options: list[list[_Cost]] = []
        for u in range(n):
            made = []
            for d, c in enumerate(classes):
                if not math.isfinite(problem.seconds[c, u]):
                    continue
                held, off = float(problem.resident[c, u]), float(problem.offloadable[c, u])
                plain = (float(problem.seconds[c, u]), held, float(problem.transient[c, u]))
                made.append(_Cost(d, STAYS, *plain, 0.0, 0.0, 0.0, 0.0))
                for t, tier in enumerate(tiers if problem.weights[c, u] > 0 else ()):
                    rates = [rate for rate in (links[d], tier.bandwidth) if rate]
                    seconds = float(moved[c, u]) / min(rates) if rates else 0.0
                    away = (plain[0], held - off, plain[2], float(problem.slots[c, u]), seconds, off, copied[u])
                    made.append(_Cost(d, t, *away))
            self.options.append(made)
        self.fastest: list[float] = problem.seconds.min(axis=0).tolist()
        # No device computes faster than `speed` times the fastest of each unit.
        times = np.where(np.isfinite(problem.seconds), problem.seconds, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = np.nanmax(np.where(times > 0, problem.seconds.min(axis=0) / times, np.nan), axis=1, initial=0.0)
        self.speed: list[float] = np.where(speed > 0, speed, 1.0)[problem.device_class].tolist()
        self.touched: list[list[int]] = [[] for _ in range(n)]
        for thing, unit in problem.tensors.units.tolist():
            self.touched[unit].append(thing)
        self.crossing = problem.crossing_bytes
        self.connected: list[list[int]] = [[] for _ in range(n)]
        for a, b in problem.connected.tolist():
            self.connected[a].append(b)
            self.connected[b].append(a)
        self.tensor_bytes: list[float] = problem.tensors.nbytes.tolist()
        self.tied: list[list[int]] = [[] for _ in range(n)]
        for thing, unit in problem.ties.units.tolist():
            self.tied[unit].append(thing)
        self.tie_bytes: list[float] = problem.ties.nbytes.tolist()
        fastest = [[min(link or math.inf, tier.bandwidth or math.inf) for tier in tiers] for link in links]
        self.rates = [max(of_device, default=math.inf) for of_device in fastest]
        some = problem.offloadable > 0
        self.least_copy = float((moved[some] / problem.offloadable[some]).min()) if tiers and some.any() else 0.0
        self.least_held: list[float] = problem.resident.min(axis=0).tolist()
        # Units that weigh most are tried first: what does not fit is found early.
        self.order: list[int] = np.argsort(-problem.resident.max(axis=0), kind="stable").tolist()

    def first(self) -> list[State] | None:
        """Return states that fit, or None if none were found."""
        units = range(len(self.options))
        made = self.run([None] * len(units), units, None, MOST_VISITS)
        return None if made is None else made[0]

    def refine(self, states: Sequence[State], bound: float, share: float = 1.0) -> list[State]:
        """Return states that are at least as good: the best of all for few units, otherwise the best of many changes.

        Many units do not change if their objective is near its lower bound.

        Args:
            states: State of each unit to begin with.
            bound: Lower bound of the objective.
            share: Part of `MOST_VISITS` to try at most, for each of both.
        """
        found = self.run(states, (), None, 1)
        if found is None:
            return list(states)
        best, value = found
        n, most = len(states), int(share * MOST_VISITS)
        if n > WHOLE and value[1 if self.problem.estimated else 0] <= bound * NEAR_BOUND:
            return best
        draw, until = random.Random(0), self.visits + most
        size = min(n, max(2, int(math.log(NEAR) / math.log(max(2, max(len(it) for it in self.options))))))
        while size < n and self.visits < until:
            before = value
            for free in self._neighbourhoods(best, size, draw):
                self.visits += n // 8
                if self.visits >= until:
                    break
                best, value = self.run(best, free, value, NEAR // 4) or (best, value)
            size += value == before  # sets of more units where sets of fewer bring nothing
        if n <= max(size, WHOLE):
            best, value = self.run(best, range(n), value, most) or (best, value)
        return best

    def _neighbourhoods(self, states: Sequence[State], size: int, draw: random.Random) -> Iterator[list[int]]:
        """Yield sets of units to change together: around the ends of devices' parts, in order, and drawn at random."""
        n = len(states)
        ends = [u for u in range(1, n) if states[u][0] != states[u - 1][0]]
        starts = [max(0, min(n - size, u - size // 2)) for u in ends]
        starts += range(0, n - size + 1, max(1, size // 2))
        for start in dict.fromkeys(starts):
            yield list(range(start, start + size))
        self.run(states, (), None, 1)
        busy = max(self.devices, key=lambda d: max(self.loads[d].seconds, self.loads[d].copy))
        slowest = [u for u in range(n) if states[u][0] == busy]
        for _ in range(n):
            some = draw.sample(slowest, min(len(slowest), max(1, size // 2)))
            yield some + draw.sample([u for u in range(n) if u not in some], min(n, size) - len(some))

    def run(
        self, states: Sequence[State | None], free: Sequence[int], best: Value | None, most: int
    ) -> tuple[list[State], Value] | None:
        """Return the best states with their value; None if none is better than `best`, or none was found in time.

        Args:
            states: State of each unit that is not free.
            free: Units whose states are tried.
            best: Value that a result must improve on.
            most: Maximum number of states to try, in addition to `visits`.
        """
        self.free = sorted(free, key=self.order.index)
        self.loads = [_Load() for _ in self.devices]
        self.left = list(self.room)
        self.at: list[int | None] = [None] * len(self.options)
        self.count = [0] * len(self.devices)
        self.on = [[0] * len(self.devices) for _ in self.tensor_bytes]
        self.used_by = [0] * len(self.tensor_bytes)
        self.holds = [[0] * len(self.devices) for _ in self.tie_bytes]
        self.best, self.until = best, self.visits + most
        self.found: tuple[list[State], Value] | None = None
        self.chosen = [(0, STAYS) if state is None else state for state in states]
        self.copied = 0.0
        is_free = set(free)
        for u, state in enumerate(states):
            if u not in is_free:
                cost = next((it for it in self.options[u] if (it.device, it.tier) == state), None)
                if cost is None or not self._add(u, cost):
                    return None
        self.rest_seconds, self.rest_held = [0.0], [0.0]
        for u in reversed(self.free):
            self.rest_seconds.append(self.rest_seconds[-1] + self.fastest[u])
            self.rest_held.append(self.rest_held[-1] + self.least_held[u])
        self._descend(0)
        return self.found

    def _descend(self, depth: int) -> None:
        if depth == len(self.free):
            bound = self._bound(0)
            if bound is not None and self._improves(bound):
                self.best, self.found = bound, (list(self.chosen), bound)
            return
        unit, rest = self.free[depth], len(self.free) - depth - 1
        ways: list[tuple[Value, int, _Cost]] = []
        for i, cost in enumerate(self.options[unit]):
            if self.visits >= self.until:
                return
            classes = self.classes  # an idle device gives the same results as an earlier idle one of its class
            if not self.count[cost.device] and any(
                not self.count[e] and classes[e] == classes[cost.device] for e in range(cost.device)
            ):
                continue
            self.visits += 1
            before = list(self.loads)
            if self._add(unit, cost):
                bound = self._bound(rest)
                if bound is not None and self._improves(bound):
                    ways.append((bound, i, cost))
                self._remove(unit, cost)
            self.loads = before
        for bound, _, cost in sorted(ways, key=lambda it: it[:2]):
            if not self._improves(bound):
                continue
            before = list(self.loads)
            self._add(unit, cost)
            self.chosen[unit] = (cost.device, cost.tier)
            self._descend(depth + 1)
            self._remove(unit, cost)
            self.loads = before

    def _add(self, unit: int, cost: _Cost) -> bool:
        """Put a unit in a state; return False, with nothing changed, if its device or tier has no room."""
        d = cost.device
        load = self.loads[d]
        held = load.held + cost.held
        for t in self.tied[unit]:
            if not self.holds[t][d]:
                held += self.tie_bytes[t]
        transient, slot = max(load.transient, cost.transient), max(load.slot, cost.slot)
        if held + transient + slot > self.capacity[d]:
            return False
        if cost.tier != STAYS:
            if cost.rests > self.left[cost.tier]:
                return False
            self.left[cost.tier] -= cost.rests
            self.copied += cost.copied
        self.count[d] += 1
        self.copied += self._crossings(unit, d)
        self.at[unit] = d
        for t in self.tied[unit]:
            self.holds[t][d] += 1
        self.loads[d] = _Load(load.seconds + cost.seconds, held, transient, slot, load.copy + cost.copy)
        for t in self.touched[unit]:
            on = self.on[t]
            if not on[d]:
                self.used_by[t] += 1
                sharing = []
                if self.used_by[t] > 1:
                    sharing = [d] if self.used_by[t] > 2 else [d, *(e for e in self.devices if on[e])]
                for e in sharing:
                    more = self.loads[e].seconds + self.tensor_bytes[t] * self.per_byte[e]
                    self.loads[e] = self.loads[e]._replace(seconds=more)
            on[d] += 1
        return True

    def _remove(self, unit: int, cost: _Cost) -> None:
        """Take a unit out again; the caller restores the loads."""
        d = cost.device
        if cost.tier != STAYS:
            self.left[cost.tier] += cost.rests
            self.copied -= cost.copied
        self.count[d] -= 1
        self.at[unit] = None
        self.copied -= self._crossings(unit, d)
        for t in self.tied[unit]:
            self.holds[t][d] -= 1
        for t in self.touched[unit]:
            self.on[t][d] -= 1
            if not self.on[t][d]:
                self.used_by[t] -= 1

    def _crossings(self, unit: int, d: int) -> float:
        return self.crossing * sum(self.at[u] not in (None, d) for u in self.connected[unit])

    def _bound(self, rest: int) -> Value | None:
        """Return a bound of the value with the last `rest` units in any state; None if they cannot fit."""
        one, most, total, busy, work, free = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        copied, rate = 0.0, 0.0
        for d, load in enumerate(self.loads):
            left = self.capacity[d] - load.held - load.transient - load.slot
            free += left
            seconds = max(load.seconds, load.copy)
            if load.slot > left:
                one += 1
                seconds = load.seconds + load.copy
            most = max(most, seconds)
            total += seconds
            busy += load.seconds
            work += load.seconds * self.speed[d]
            rate += self.rates[d]
            copied += load.copy * self.rates[d] if load.copy else 0.0
        excess = self.rest_held[rest] - free
        if excess > 0 and not self.room:
            return None
        more = self.rest_seconds[rest]
        if self.latency:
            value = max(total, busy + more)
        else:
            value = max(most, (work + more) / sum(self.speed))
            if excess > 0 and rate < math.inf:
                value = max(value, (copied + excess * self.least_copy) / rate)
        away = self.copied
        return (one, value, away) if self.problem.estimated else (value, one, away)

    def _improves(self, value: Value) -> bool:
        return self.best is None or is_better(value, self.best)


def is_better(found: Value, value: Value) -> bool:
    """Return whether the first figure that differs by more than rounding is lower."""
    for a, b in zip(found, value, strict=True):
        if not math.isclose(a, b, rel_tol=_TOLERANCE):
            return a < b
    return False


def states_of(assignment: Ints, tier_of: dict[int, int]) -> list[State]:
    """Return the states of units from their devices, and the tiers of those that are offloaded."""
    return [(d, tier_of.get(u, STAYS)) for u, d in enumerate(assignment.tolist())]
