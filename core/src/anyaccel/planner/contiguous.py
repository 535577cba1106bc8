"""The best split of an order into contiguous parts, one for each device: dynamic programming over prefixes."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from anyaccel.planner.feasible_prefixes import OrderedUnits, Table, Transition, least_window, prefix_bounds, steps
from anyaccel.planner.problem import Floats, Ints, Problem, Shared

MOST_STATES = 256  # sets of devices in use, by class, that are tried
MOST_STEPS = 80_000  # transitions from prefixes that are tried exactly: about half a second
PASSED = -1  # instead of a transition: the device is left out
WINDOWS = (1.002, 1.02, 1.1, 1.3, 1.8, 3.0, 10.0, math.inf)  # of the lower bound: the first with an answer is enough


class Split(NamedTuple):
    """The device of each unit, the value of the objective, and whether no contiguous split of the order is better."""

    assignment: Ints
    value: float
    exact: bool


def best_split(problem: Problem, order: Ints, objective: str, good: float = math.inf) -> Split | None:
    """The contiguous split of least bottleneck or latency; None if none fits or all are worse than `good`."""
    bound = problem.lower_bound(objective)
    if not math.isfinite(bound):
        return None
    units = OrderedUnits(problem, order)
    full = _all_sets(problem)
    if full is not None:
        best, is_complete = _within(problem, order, units, full, objective, bound, good)
        if is_complete:
            return best
    best = None
    for table in _device_orders(problem):
        found, _ = _within(problem, order, units, table, objective, bound, good)
        if found is not None:
            best, good = found, found.value
    return best


def _within(
    problem: Problem, order: Ints, units: OrderedUnits, table: Table, objective: str, bound: float, good: float
) -> tuple[Split | None, bool]:
    """The best split with a table, None if none is better than `good`; and whether this did not take too many steps."""
    throughput = objective == "throughput"
    least = least_window(units, table, bound) if throughput else math.inf
    for factor in WINDOWS if throughput else (math.inf,):
        window = min(least * factor, good)
        bounds = prefix_bounds(units, table, window)
        if bounds is not None:
            if not table.in_order and steps(table, *bounds) > MOST_STEPS:
                return None, False
            found = _Search(problem, order, units, objective, window).run(table, bounds)
            if found is not None and found.value < good:
                return found, True
        if window >= good:
            break
    return None, True


def _all_sets(problem: Problem) -> Table | None:
    """Which devices may follow in which order: all; None if they are too many."""
    counts = np.bincount(problem.device_class, minlength=len(problem.classes))
    if math.prod(int(count) + 1 for count in counts) > MOST_STATES:
        return None
    vectors = list(itertools.product(*(range(int(count) + 1) for count in counts)))
    index = {vector: i for i, vector in enumerate(vectors)}
    transitions = [
        Transition(index[v], index[(*v[:c], v[c] + 1, *v[c + 1 :])], c)
        for v in vectors
        for c in range(len(counts))
        if v[c] < counts[c]
    ]
    return Table(len(vectors), transitions, in_order=False)


def _device_orders(problem: Problem) -> list[Table]:
    """Some fixed orders of the devices: as given, by memory, and by rate."""
    by_memory = sorted(range(len(problem.devices)), key=lambda d: -problem.devices[d].usable)
    by_rate = sorted(range(len(problem.devices)), key=lambda d: -problem.devices[d].rate)
    orders = [list(range(len(problem.devices))), by_memory, by_memory[::-1], by_rate, by_rate[::-1]]
    by_class = dict.fromkeys(tuple(problem.device_class[devices].tolist()) for devices in orders)
    return [
        Table(len(classes) + 1, [Transition(t, t + 1, c) for t, c in enumerate(classes)], in_order=True)
        for classes in by_class
    ]


class _Ranges:
    """What the shared things cost that a range of positions touches, for growing ranges of each start.

    A tensor costs a device its size if the range has some of the units that touch it, but not all. With `all_hits` it
    costs the size if the range has any, as a tied parameter does.
    """

    def __init__(self, shared: Shared, position: Ints, n: int, *, all_hits: bool) -> None:
        self.bins = np.zeros(n + 1)
        things, places = shared.units[:, 0], position[shared.units[:, 1]]
        rows = np.lexsort((places, things))
        things, places = things[rows], places[rows]
        sizes = shared.nbytes[things] if len(things) else np.zeros(0)
        first = np.ones(len(things), dtype=bool)
        first[1:] = things[1:] != things[:-1]
        last = np.roll(first, -1) if len(things) else first
        np.add.at(self.bins, places[first], sizes[first])
        moves = [(places[:-1][~first[1:]], places[1:][~first[1:]], sizes[1:][~first[1:]])]
        if not all_hits:
            np.add.at(self.bins, places[last], -sizes[last])
            moves.append((places[first], places[last], sizes[first]))
        start, into, amount = (np.concatenate(columns) for columns in zip(*moves, strict=True))
        by_start = np.argsort(start, kind="stable")
        self._into, self._amount = into[by_start], amount[by_start]
        self._offsets = np.searchsorted(start[by_start], np.arange(n + 2)).tolist()

    def row(self, start: int, stop: int) -> Floats:
        """The bytes of the ranges from `start` to each end up to `stop`."""
        made: Floats = self.bins[start:stop].cumsum()
        return made

    def leave(self, start: int) -> None:
        """Go on to ranges that begin after `start`."""
        a, b = self._offsets[start], self._offsets[start + 1]
        if a < b:
            np.add.at(self.bins, self._into[a:b], self._amount[a:b])


class _Search:
    """One pass over all starts: the best value for each set of devices in use and each prefix of the order."""

    def __init__(self, problem: Problem, order: Ints, units: OrderedUnits, objective: str, window: float) -> None:
        self.problem, self.order, self.units, self.window = problem, order, units, window
        self.add = objective == "latency"
        n = len(order)
        position = np.empty(n, dtype=np.int64)
        position[order] = np.arange(n)
        self.sent = _Ranges(problem.tensors, position, n, all_hits=False)
        self.tied = _Ranges(problem.ties, position, n, all_hits=True) if len(problem.ties.nbytes) else None
        self.transient = problem.transient[:, order]
        self.has_transient = bool(self.transient.any())

    def run(self, table: Table, bounds: tuple[list[int], list[int]]) -> Split | None:
        """The best split, with classes given to devices in the order of the parts."""
        n, self.table, self.bounds = len(self.order), table, bounds
        self.best = np.full((table.states, n + 1), np.inf)
        self.best[0, 0] = 0.0
        shape = (table.states, n + 1)
        self.chosen = np.zeros(shape, dtype=np.int64)  # the transition that gave it, or that it was passed
        self.starts = np.zeros(shape, dtype=np.int64)
        leaving: list[list[tuple[int, Transition]]] = [[] for _ in range(table.states)]
        for t, transition in enumerate(table.transitions):
            leaving[transition.source].append((t, transition))
        states = _by_prefix(n, *bounds)
        for start in range(n):
            if table.in_order:
                self._pass_on(start, states[start])
            going = [each for s in states[start] if math.isfinite(self.best[s, start]) for each in leaving[s]]
            if going:
                self._extend_all(start, going)
            self.sent.leave(start)
            if self.tied is not None:
                self.tied.leave(start)
        state = int(np.argmin(self.best[:, n]))
        if not math.isfinite(self.best[state, n]):
            return None
        return Split(self._assignment(state), float(self.best[state, n]), not table.in_order)

    def _pass_on(self, start: int, states: list[int]) -> None:
        """Leave a device idle where that is better."""
        for state in states:
            if state and self.best[state - 1, start] < self.best[state, start]:
                self.best[state, start] = self.best[state - 1, start]
                self.chosen[state, start] = PASSED

    def _extend_all(self, start: int, going: list[tuple[int, Transition]]) -> None:
        """Give a device of each class that may come next the ranges from `start`."""
        stops = {c: self.units.stop(c, start, self.window) for c in {each.device_class for _, each in going}}
        far = max(stops.values())
        if far == start:
            return
        sent = self.sent.row(start, far)
        tied = self.tied.row(start, far) if self.tied is not None else None
        loads = {c: self._load(c, start, stop, sent, tied) for c, stop in stops.items()}
        for t, transition in going:
            self._extend(start, t, transition, loads[transition.device_class])

    def _load(self, c: int, start: int, stop: int, sent: Floats, tied: Floats | None) -> Floats:
        """Seconds of the ranges from `start` up to `stop`; infinite for those that do not fit or take too long."""
        part = slice(start + 1, stop + 1)
        load: Floats = self.units.elapsed[c, part] - self.units.elapsed[c, start]
        if self.problem.per_byte[c]:
            load += sent[: stop - start] * self.problem.per_byte[c]
        if not self.add or self.window < math.inf:
            load[load > self.window * (1 + 1e-12)] = math.inf
        if self.has_transient or tied is not None:
            memory = self.units.held[c, part] - self.units.held[c, start]
            if self.has_transient:
                memory += np.maximum.accumulate(self.transient[c, start:stop])
            if tied is not None:
                memory += tied[: stop - start]
            load[memory > self.problem.capacity[c]] = math.inf
        return load

    def _extend(self, start: int, t: int, transition: Transition, load: Floats) -> None:
        """Give a device of a class the ranges from `start`."""
        source, target, _ = transition
        low, high = self.bounds
        first = max(start + 1, low[target])
        load = load[first - start - 1 : high[target] - start]
        part = slice(first, first + len(load))
        value = load + self.best[source, start] if self.add else np.maximum(load, self.best[source, start])
        better = value < self.best[target, part]
        np.copyto(self.best[target, part], value, where=better)
        self.chosen[target, part][better] = t
        self.starts[target, part][better] = start

    def _assignment(self, state: int) -> Ints:
        parts, end = [], len(self.order)
        while end:
            if self.chosen[state, end] == PASSED:
                state -= 1
                continue
            transition, start = self.table.transitions[int(self.chosen[state, end])], int(self.starts[state, end])
            parts.append((start, end, transition.device_class))
            state, end = transition.source, start
        classes = len(self.problem.classes)
        free = {c: np.flatnonzero(self.problem.device_class == c).tolist()[::-1] for c in range(classes)}
        assignment = np.empty(len(self.order), dtype=np.int64)
        for start, end, c in reversed(parts):
            assignment[self.order[start:end]] = free[c].pop()
        return assignment


def _by_prefix(n: int, low: list[int], high: list[int]) -> list[list[int]]:
    """The states that each prefix can be reached with and be gone on from."""
    made: list[list[int]] = [[] for _ in range(n + 1)]
    for state, (first, last) in enumerate(zip(low, high, strict=True)):
        for prefix in range(first, last + 1):
            made[prefix].append(state)
    return made
