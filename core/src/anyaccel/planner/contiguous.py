"""The best split of an order into contiguous parts, one for each device: dynamic programming over prefixes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from anyaccel.planner.problem import Floats, Ints, Problem, Shared

MOST_STATES = 64  # of devices in use, by class, that are tried exactly
PASSED = -1  # instead of a transition: the device is left out
WINDOWS = (1.02, 1.1, 1.3, 1.8, 3.0, 10.0, math.inf)  # of the lower bound: the first with an answer is enough


class Transition(NamedTuple):
    """From one set of devices in use to that with one device more."""

    source: int
    target: int
    device_class: int


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
    tables = _transition_tables(problem)
    best: Split | None = None
    for factor in WINDOWS if objective == "throughput" else (math.inf,):
        window = min(bound * factor if factor < math.inf else math.inf, good)
        for table in tables:
            found = _Search(problem, order, objective, window).run(table)
            if found is not None and (best is None or found.value < best.value):
                best, window = found, found.value
        if best is not None or window >= good:
            break
    return best


class Table(NamedTuple):
    """Which sets of devices in use there are and how they grow; `in_order`, each may pass on without its device."""

    states: int
    transitions: list[Transition]
    in_order: bool


def _transition_tables(problem: Problem) -> list[Table]:
    """Which devices may follow in which order: all, if they are few or alike, else some fixed orders of the devices."""
    counts = np.bincount(problem.device_class, minlength=len(problem.classes))
    if math.prod(int(count) + 1 for count in counts) <= MOST_STATES:
        vectors = list(itertools.product(*(range(int(count) + 1) for count in counts)))
        index = {vector: i for i, vector in enumerate(vectors)}
        table = [
            Transition(index[v], index[(*v[:c], v[c] + 1, *v[c + 1 :])], c)
            for v in vectors
            for c in range(len(counts))
            if v[c] < counts[c]
        ]
        return [Table(len(vectors), table, in_order=False)]
    by_memory = sorted(range(len(problem.devices)), key=lambda d: -problem.devices[d].usable)
    orders = [list(range(len(problem.devices))), by_memory, by_memory[::-1]]
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

    def __init__(self, problem: Problem, order: Ints, objective: str, window: float) -> None:
        self.problem, self.order, self.window = problem, order, window
        self.add = objective == "latency"
        n = len(order)
        position = np.empty(n, dtype=np.int64)
        position[order] = np.arange(n)
        self.sent = _Ranges(problem.tensors, position, n, all_hits=False)
        self.tied = _Ranges(problem.ties, position, n, all_hits=True) if len(problem.ties.nbytes) else None
        seconds = problem.seconds[:, order]
        possible = np.isfinite(seconds)
        zero = np.zeros((len(problem.classes), 1))
        self.elapsed = np.concatenate([zero, np.cumsum(np.where(possible, seconds, 0.0), axis=1)], axis=1)
        ends = np.where(possible, n, np.arange(n))  # the first unit from each on that a class cannot compute
        self.barrier = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        self.held = np.concatenate([zero, np.cumsum(problem.resident[:, order], axis=1)], axis=1)
        self.transient = problem.transient[:, order]
        self.has_transient = bool(self.transient.any())

    def _loads(self, start: int) -> Iterator[tuple[int, Floats]]:
        """For each class that can hold the next unit, the seconds of the ranges from `start` that it can hold."""
        sent, tied, reach = self._reach(start)
        for c, stop in reach:
            load = self.elapsed[c, start + 1 : stop + 1] - self.elapsed[c, start]
            load = load + sent[: stop - start] * self.problem.per_byte[c]
            memory = self.held[c, start + 1 : stop + 1] - self.held[c, start]
            if self.has_transient:
                memory = memory + np.maximum.accumulate(self.transient[c, start:stop])
            if tied is not None:
                memory = memory + tied[: stop - start]
            bad = (memory > self.problem.capacity[c]) | ~(load <= self.window * (1 + 1e-12))
            yield c, np.where(bad, np.inf, load)

    def _reach(self, start: int) -> tuple[Floats, Floats | None, list[tuple[int, int]]]:
        reach = []
        for c in range(len(self.elapsed)):
            most = self.elapsed[c, start] + (self.window * (1 + 1e-9))
            stop = min(
                int(np.searchsorted(self.elapsed[c], most, side="right")) - 1,
                int(np.searchsorted(self.held[c], self.held[c, start] + self.problem.capacity[c], side="right")) - 1,
                int(self.barrier[c, start]),
            )
            if stop > start:
                reach.append((c, stop))
        far = max((stop for _, stop in reach), default=start)
        return self.sent.row(start, far), self.tied.row(start, far) if self.tied is not None else None, reach

    def run(self, table: Table) -> Split | None:
        """The best split, with classes given to devices in the order of the parts."""
        n, self.table = len(self.order), table
        self.best = np.full((table.states, n + 1), np.inf)
        self.best[0, 0] = 0.0
        self.chosen = np.zeros(
            (table.states, n + 1), dtype=np.int64
        )  # the transition that gave it, or that it was passed
        self.starts = np.zeros((table.states, n + 1), dtype=np.int64)
        for start in range(n):
            if table.in_order:
                self._pass_on(start)
            if np.isfinite(self.best[:, start]).any():
                for c, load in self._loads(start):
                    self._extend(start, c, load)
            self.sent.leave(start)
            if self.tied is not None:
                self.tied.leave(start)
        state = int(np.argmin(self.best[:, n]))
        if not math.isfinite(self.best[state, n]):
            return None
        return Split(self._assignment(state), float(self.best[state, n]), not table.in_order)

    def _pass_on(self, start: int) -> None:
        """Leave a device idle where that is better."""
        for state in range(1, self.table.states):
            if self.best[state - 1, start] < self.best[state, start]:
                self.best[state, start] = self.best[state - 1, start]
                self.chosen[state, start] = PASSED

    def _extend(self, start: int, c: int, load: Floats) -> None:
        """Give a device of a class the ranges from `start`."""
        part = slice(start + 1, start + 1 + len(load))
        for t, (source, target, device_class) in enumerate(self.table.transitions):
            so_far = self.best[source, start]
            if device_class != c or not math.isfinite(so_far):
                continue
            value = load + so_far if self.add else np.maximum(load, so_far)
            better = value < self.best[target, part]
            self.best[target, part][better] = value[better]
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
        free = {c: np.flatnonzero(self.problem.device_class == c).tolist()[::-1] for c in range(len(self.elapsed))}
        assignment = np.empty(len(self.order), dtype=np.int64)
        for start, end, c in reversed(parts):
            assignment[self.order[start:end]] = free[c].pop()
        return assignment
