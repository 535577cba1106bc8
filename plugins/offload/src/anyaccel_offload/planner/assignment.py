"""An assignment for a problem: the best contiguous split over several orders, or a packing; improved by moves."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anyaccel_offload.planner.exact_search import WHOLE, ExactSearch, states_of
from anyaccel_offload.planner.problem import Floats, Ints, Problem, Shared

MOST_TRIALS = 400  # of single moves
NEARLY = 1.05
FEW = 100  # number of units up to which several of them are changed together
MOST_CUTS = 64  # of the part of one device, to give some of it to an idle one


class Found(NamedTuple):
    """An assignment, and whether it is `exact`: no contiguous split of the first order is better."""

    assignment: Ints
    method: str
    exact: bool


def find_assignment(problem: Problem, objective: str) -> Found | None:
    """Find the best assignment with all weights on the devices; return None if none fits."""
    best: Split | None = None
    exact = False
    # Whether each unit passes its output only to the next
    things, units = problem.tensors.units[:, 0], problem.tensors.units[:, 1]
    chain = bool(np.all(np.bincount(things) == 2) and np.all(np.diff(units)[::2] == 1)) if len(things) else True
    for order in unit_orders(problem)[: 1 if chain else None]:
        found = best_split(problem, order, objective, best.value if best is not None else math.inf)
        if found is not None and (best is None or found.value < best.value * (1 - 1e-12)):
            best, exact = found, found.exact
    if best is not None:
        assignment, method = best.assignment, "contiguous split"
    else:
        packed = pack(problem)
        if packed is None:
            return None
        assignment, method = packed, "packing"
    in_order, value = assignment, bottleneck(problem, assignment, objective)
    assignment = improve(problem, assignment, objective)
    # Many units in the best contiguous split stay in order: what else is possible would be little better.
    if len(problem.units) <= (WHOLE if exact and chain else FEW):
        bound = problem.lower_bound(objective)
        states = ExactSearch(problem, (), objective).refine(states_of(assignment, {}), bound, 0.25)
        assignment = np.array([d for d, _ in states], dtype=np.int64)
    # Where copies between devices have no known time, parts in order are kept if they are nearly as good.
    if exact and chain and not problem.per_byte.all() and bottleneck(problem, assignment, objective) * NEARLY >= value:
        assignment = in_order
    if objective == "throughput":
        assignment = use_idle(problem, assignment)
    return Found(assignment, method, exact and chain)


def bottleneck(problem: Problem, assignment: Ints, objective: str) -> float:
    """Return the value of the objective."""
    loads = problem.compute(assignment) + problem.transfer(assignment)
    return float(loads.sum() if objective == "latency" else loads.max())


def improve(problem: Problem, assignment: Ints, objective: str) -> Ints:
    """Move single units away from the device with the largest load, or swap them, while that is better."""
    value = bottleneck(problem, assignment, objective)
    trials = 0
    moved = True
    while moved and trials < MOST_TRIALS:
        moved = False
        loads = problem.compute(assignment) + problem.transfer(assignment)
        for other in neighbours(assignment, loads):
            trials += 1
            if trials > MOST_TRIALS:
                break
            found = bottleneck(problem, other, objective)
            if found < value * (1 - 1e-12) and problem.fits(other):
                assignment, value, moved = other, found, True
                break
    return assignment


def neighbours(assignment: Ints, loads: Floats) -> Iterator[Ints]:
    """Yield assignments that move a unit away from the device with the largest load, alone or in exchange."""
    units = np.flatnonzero(assignment == int(np.argmax(loads))).tolist()
    devices = np.argsort(loads, kind="stable").tolist()
    for unit, d in itertools.product(units, devices):
        if d != assignment[unit]:
            other = assignment.copy()
            other[unit] = d
            yield other
    for unit, partner in itertools.product(units, range(len(assignment))):
        if assignment[partner] != assignment[unit]:
            other = assignment.copy()
            other[unit], other[partner] = assignment[partner], assignment[unit]
            yield other


def use_idle(problem: Problem, assignment: Ints) -> Ints:
    """Give idle devices a part of another device's units if the bottleneck does not grow."""
    limit = bottleneck(problem, assignment, "throughput") * (1 + 1e-12)
    for idle in sorted(set(range(len(problem.devices))) - set(assignment.tolist())):
        loads = problem.compute(assignment) + problem.transfer(assignment)
        best, least = None, math.inf
        for d in np.argsort(-loads, kind="stable").tolist():
            units = np.flatnonzero(assignment == d)
            if len(units) < 2:
                continue
            cuts = np.unique(np.linspace(1, len(units) - 1, min(len(units) - 1, MOST_CUTS)).astype(int))
            for part in [part for cut in cuts for part in (units[cut:], units[:cut])]:
                other = assignment.copy()
                other[part] = idle
                if not problem.fits(other):
                    continue
                after = problem.compute(other) + problem.transfer(other)
                if after.max() <= limit and max(after[d], after[idle]) < least:
                    best, least = other, max(after[d], after[idle])
            if best is not None:
                break
        assignment = assignment if best is None else best
    return assignment


# -- the best split of an order into contiguous parts, one for each device: dynamic programming over prefixes ----------


MOST_STATES = 256  # sets of used devices, by class, to try
MOST_STEPS = 80_000  # transitions from prefixes to try exactly: about half a second
PASSED = -1  # instead of a transition: the device is left out
WINDOWS = (
    1.002,
    1.02,
    1.1,
    1.3,
    1.8,
    3.0,
    10.0,
    math.inf,
)  # times the lower bound: the first with an answer is used


class Split(NamedTuple):
    """The device of each unit, the value of the objective, and whether no contiguous split of the order is better."""

    assignment: Ints
    value: float
    exact: bool


def best_split(problem: Problem, order: Ints, objective: str, good: float = math.inf) -> Split | None:
    """Return the contiguous split with the lowest bottleneck or latency; None if none fits and is below `good`."""
    bound = problem.lower_bound(objective)
    if not math.isfinite(bound):
        return None
    units = OrderedUnits(problem, order)
    counts = np.bincount(problem.device_class, minlength=len(problem.classes))
    if math.prod(int(count) + 1 for count in counts) <= MOST_STATES:
        vectors = list(itertools.product(*(range(int(count) + 1) for count in counts)))
        index = {vector: i for i, vector in enumerate(vectors)}
        transitions = [
            Transition(index[v], index[(*v[:c], v[c] + 1, *v[c + 1 :])], c)
            for v in vectors
            for c in range(len(counts))
            if v[c] < counts[c]
        ]
        full = Table(len(vectors), transitions, in_order=False)
        best, is_complete = _within(problem, order, units, full, objective, bound, good)
        if is_complete:
            return best
    best = None
    by_memory = sorted(range(len(problem.devices)), key=lambda d: -problem.devices[d].usable)
    by_rate = sorted(range(len(problem.devices)), key=lambda d: -problem.devices[d].rate)
    orders = [list(range(len(problem.devices))), by_memory, by_memory[::-1], by_rate, by_rate[::-1]]
    by_class = dict.fromkeys(tuple(problem.device_class[devices].tolist()) for devices in orders)
    for classes in by_class:
        table = Table(len(classes) + 1, [Transition(t, t + 1, c) for t, c in enumerate(classes)], in_order=True)
        found, _ = _within(problem, order, units, table, objective, bound, good)
        if found is not None:
            best, good = found, found.value
    return best


def _within(
    problem: Problem, order: Ints, units: OrderedUnits, table: Table, objective: str, bound: float, good: float
) -> tuple[Split | None, bool]:
    """Return the best split with a table, None if none is better than `good`; and whether the step limit was kept."""
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


class _Ranges:
    """The cost of shared things for a range of positions, for growing ranges of each start.

    A tensor costs a device its size if the range has some, but not all, of the units that touch it. With `all_hits` it
    costs the size if the range has any of them, as a tied parameter does.
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
        """Return the bytes of the ranges from `start` to each end up to `stop`."""
        made: Floats = self.bins[start:stop].cumsum()
        return made

    def leave(self, start: int) -> None:
        """Continue with ranges that begin after `start`."""
        a, b = self._offsets[start], self._offsets[start + 1]
        if a < b:
            np.add.at(self.bins, self._into[a:b], self._amount[a:b])


class _Search:
    """One pass over all starts: the best value for each set of used devices and each prefix of the order."""

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
        """Return the best split, with classes assigned to devices in the order of the parts."""
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
            going = [
                transition for s in states[start] if math.isfinite(self.best[s, start]) for transition in leaving[s]
            ]
            if going:
                self._extend_all(start, going)
            self.sent.leave(start)
            if self.tied is not None:
                self.tied.leave(start)
        state = int(np.argmin(self.best[:, n]))
        if not math.isfinite(self.best[state, n]):
            return None
        parts, before, end = [], state, len(self.order)
        while end:
            if self.chosen[before, end] == PASSED:
                before -= 1
                continue
            transition, start = self.table.transitions[int(self.chosen[before, end])], int(self.starts[before, end])
            parts.append((start, end, transition.device_class))
            before, end = transition.source, start
        classes = len(self.problem.classes)
        free = {c: np.flatnonzero(self.problem.device_class == c).tolist()[::-1] for c in range(classes)}
        assignment = np.empty(len(self.order), dtype=np.int64)
        for start, end, c in reversed(parts):
            assignment[self.order[start:end]] = free[c].pop()
        return Split(assignment, float(self.best[state, n]), not table.in_order)

    def _pass_on(self, start: int, states: list[int]) -> None:
        """Leave a device idle if that is better."""
        for state in states:
            if state and self.best[state - 1, start] < self.best[state, start]:
                self.best[state, start] = self.best[state - 1, start]
                self.chosen[state, start] = PASSED

    def _extend_all(self, start: int, going: list[tuple[int, Transition]]) -> None:
        """Give a device of each class that may come next the ranges from `start`."""
        stops = {
            c: self.units.stop(c, start, self.window) for c in {transition.device_class for _, transition in going}
        }
        far = max(stops.values())
        if far == start:
            return
        sent = self.sent.row(start, far)
        tied = self.tied.row(start, far) if self.tied is not None else None
        loads = {c: self._load(c, start, stop, sent, tied) for c, stop in stops.items()}
        for t, transition in going:
            source, target, _ = transition
            low, high = self.bounds
            first = max(start + 1, low[target])
            load = loads[transition.device_class][first - start - 1 : high[target] - start]
            part = slice(first, first + len(load))
            value = load + self.best[source, start] if self.add else np.maximum(load, self.best[source, start])
            better = value < self.best[target, part]
            np.copyto(self.best[target, part], value, where=better)
            self.chosen[target, part][better] = t
            self.starts[target, part][better] = start

    def _load(self, c: int, start: int, stop: int, sent: Floats, tied: Floats | None) -> Floats:
        """Return the seconds of the ranges from `start` up to `stop`; infinite if they do not fit or take too long."""
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


def _by_prefix(n: int, low: list[int], high: list[int]) -> list[list[int]]:
    """Return the states that reach each prefix and can be continued."""
    made: list[list[int]] = [[] for _ in range(n + 1)]
    for state, (first, last) in enumerate(zip(low, high, strict=True)):
        for prefix in range(first, last + 1):
            made[prefix].append(state)
    return made


# -- feasible prefixes -------------------------------------------------------------------------------------------------


_BISECTIONS = 24
_SLACK = 1 + 1e-9  # sums of times are rounded


class Transition(NamedTuple):
    """The step from one set of used devices to the set with one more device."""

    source: int
    target: int
    device_class: int


class Table(NamedTuple):
    """The possible sets of used devices and how they grow; if `in_order`, each may be passed on without its device."""

    states: int
    transitions: list[Transition]
    in_order: bool


class OrderedUnits:
    """The units of a problem in an order, as cumulative sums, by class of devices.

    Attributes:
        elapsed: Seconds of each prefix.
        held: Bytes of each prefix.
        barrier: First unit at or after each position that a class cannot compute.
    """

    def __init__(self, problem: Problem, order: Ints) -> None:
        n = len(order)
        seconds = problem.seconds[:, order]
        possible = np.isfinite(seconds)
        zero = np.zeros((len(problem.classes), 1))
        self.capacity = problem.capacity
        self.elapsed = np.concatenate([zero, np.cumsum(np.where(possible, seconds, 0.0), axis=1)], axis=1)
        self.held: Floats = np.concatenate([zero, np.cumsum(problem.resident[:, order], axis=1)], axis=1)
        ends = np.where(possible, n, np.arange(n))
        self.barrier = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        begins = np.where(possible, 0, np.arange(1, n + 1))
        self._after = np.concatenate([zero.astype(np.int64), np.maximum.accumulate(begins, axis=1)], axis=1)

    def __len__(self) -> int:
        return int(self.elapsed.shape[1]) - 1

    def stop(self, c: int, start: int, window: float) -> int:
        """Return the end of the longest range from `start` that a device of a class can hold, and compute in a time."""
        if start == len(self):
            return start
        most, room = self.elapsed[c, start] + window * _SLACK, self.held[c, start] + self.capacity[c]
        by_time = int(self.elapsed[c].searchsorted(most, side="right")) - 1
        by_memory = int(self.held[c].searchsorted(room, side="right")) - 1
        return min(by_time, by_memory, int(self.barrier[c, start]))

    def start(self, c: int, stop: int, window: float) -> int:
        """Return the beginning of the longest such range that ends at `stop`."""
        least, room = self.elapsed[c, stop] - window * _SLACK, self.held[c, stop] - self.capacity[c]
        by_time = int(self.elapsed[c].searchsorted(least, side="left"))
        by_memory = int(self.held[c].searchsorted(room, side="left"))
        return min(stop, max(by_time, by_memory, int(self._after[c, stop])))


def prefix_bounds(units: OrderedUnits, table: Table, window: float) -> tuple[list[int], list[int]] | None:
    """Return for each state the shortest prefix that can be completed, and the longest one; None if impossible.

    Bytes that are sent, tied or transient are left out, so that no state outside of the bounds is part of a solution.
    """
    low = [len(units)] * table.states
    for source, target, c in sorted(table.transitions, key=lambda transition: -transition.source):
        low[source] = min(
            low[source], units.start(c, low[target], window), low[target] if table.in_order else low[source]
        )
    if low[0] > 0:
        return None
    high = [0] * table.states
    for source, target, c in sorted(table.transitions, key=lambda transition: transition.source):
        passed = high[source] if table.in_order else 0
        high[target] = max(high[target], units.stop(c, high[source], window), passed)
    return low, high


def least_window(units: OrderedUnits, table: Table, bound: float) -> float:
    """Return about the lowest time of the slowest device for which `prefix_bounds` has an answer, or infinity."""
    if prefix_bounds(units, table, math.inf) is None:
        return math.inf
    low, high = bound, max(bound, float(np.max(units.elapsed[:, -1])))
    if prefix_bounds(units, table, low) is not None:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if prefix_bounds(units, table, middle) is not None else (middle, high)
    return high


def steps(table: Table, low: Sequence[int], high: Sequence[int]) -> int:
    """Return the number of transitions from prefixes within bounds."""
    return sum(max(0, high[transition.source] - low[transition.source] + 1) for transition in table.transitions)


# -- topological orders of the units of a problem, in which it is split into contiguous parts --------------------------


def unit_orders(problem: Problem) -> list[Ints]:
    """Return several orders: as given, each source right before its first consumer, depth first, breadth first.

    In a training graph with backward blocks, the forward pass determines the order. Backward blocks without a forward
    block in their group follow the flow of their gradients.
    """
    pairs: set[tuple[int, int]] = set()
    blocks = problem.blocks
    forward = {u for u, members in enumerate(problem.units) if not all(blocks[i].backward for i in members)}
    for edge in problem.edges:
        i, j = problem.index[edge.source], problem.index[edge.target]
        u, v = int(problem.unit_of[i]), int(problem.unit_of[j])
        if blocks[i].backward and blocks[j].backward:
            pairs.add((v, u))
        elif not (blocks[i].backward or blocks[j].backward) or v not in forward:
            pairs.add((u, v))
    before: list[list[int]] = [[] for _ in problem.units]
    after: list[list[int]] = [[] for _ in problem.units]
    for u, v in sorted(pairs):
        if u != v:
            before[v].append(u)
            after[u].append(v)
    n = len(problem.units)
    sinks = [u for u in range(n) if not after[u]]
    rest = list(range(n))
    missing = [len(inputs) for inputs in before]
    ready = deque(u for u, count in enumerate(missing) if not count)
    order: list[int] = []
    while ready:
        unit = ready.popleft()
        order.append(unit)
        for other in after[unit]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    done = set(order)
    orders = [
        rest,
        _depth_first(before, rest, reverse=False),
        _depth_first(before, sinks + rest, reverse=False),
        _depth_first(before, sinks + rest, reverse=True),
        _depth_first(after, rest, reverse=True)[::-1],
        _depth_first(after, rest, reverse=False)[::-1],
        _lazy_sources(order + [u for u in range(len(before)) if u not in done], before, after),
    ]
    return [np.array(order, dtype=np.int64) for order in dict.fromkeys(tuple(order) for order in orders)]


def _depth_first(before: list[list[int]], roots: list[int], *, reverse: bool) -> list[int]:
    """Return each root after all its predecessors; units in a cycle come where they are found."""
    seen: set[int] = set()
    order: list[int] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(before[root][::-1] if reverse else before[root]))]
        while stack:
            unit, needs = stack[-1]
            for need in needs:
                if need not in seen:
                    seen.add(need)
                    stack.append((need, iter(before[need][::-1] if reverse else before[need])))
                    break
            else:
                order.append(unit)
                stack.pop()
    return order


def _lazy_sources(order: list[int], before: list[list[int]], after: list[list[int]]) -> list[int]:
    """Return the same order, with each unit without predecessors right before its first consumer."""
    lazy: list[int] = []
    done: set[int] = set()
    for unit in order:
        if not before[unit] and after[unit]:
            continue
        for source in before[unit]:
            if not before[source] and source not in done:
                done.add(source)
                lazy.append(source)
        lazy.append(unit)
    return lazy


# -- any assignment that fits, regardless of the order of the blocks: a search with backtracking, if no split fits -----


MOST_VISITS = 50_000  # of partial packings


def pack(problem: Problem) -> Ints | None:
    """Return an assignment that fits; None if there is none, or none was found in `MOST_VISITS` steps."""
    room = float(problem.capacity[problem.device_class].sum())
    return None if float(problem.resident.min(axis=0).sum()) > room else _Packing(problem).run()


class _Packing:
    """Assigns units to devices one by one, largest first, and reverts the last if the next does not fit."""

    def __init__(self, problem: Problem) -> None:
        self.resident: list[list[float]] = problem.resident.tolist()
        self.transient: list[list[float]] = problem.transient.tolist()
        self.possible: list[list[bool]] = np.isfinite(problem.seconds).tolist()
        self.capacity: list[float] = problem.capacity.tolist()
        self.tied_nbytes: list[float] = problem.ties.nbytes.tolist()
        self.order: list[int] = np.argsort(-problem.resident.max(axis=0), kind="stable").tolist()
        self.classes: list[int] = problem.device_class.tolist()
        self.used = [0.0] * len(self.classes)
        self.most = [0.0] * len(self.classes)  # the largest transient need
        self.count = [0] * len(self.classes)
        self.holds = [[0] * len(problem.ties.nbytes) for _ in self.classes]
        self.tied: list[list[int]] = [[] for _ in problem.units]
        for thing, unit in problem.ties.units.tolist():
            self.tied[unit].append(thing)
        self.stack: list[tuple[int, float, float]] = []  # device, bytes, and the transient need before

    def run(self) -> Ints | None:
        first = 0
        for _ in range(MOST_VISITS):
            if len(self.stack) == len(self.order):
                assignment = np.empty(len(self.order), dtype=np.int64)
                assignment[self.order] = [d for d, _, _ in self.stack]
                return assignment
            unit = self.order[len(self.stack)]
            d = next((d for d in range(first, len(self.classes)) if self._fits(unit, d)), None)
            if d is not None:
                more = self._bytes(unit, d)
                self.stack.append((d, more, self.most[d]))
                self.used[d] += more
                self.most[d] = max(self.most[d], self.transient[self.classes[d]][unit])
                self.count[d] += 1
                for t in self.tied[unit]:
                    self.holds[d][t] += 1
                first = 0
            elif self.stack:
                first = self._pop() + 1
            else:
                return None
        return None

    def _bytes(self, unit: int, d: int) -> float:
        tied = sum(self.tied_nbytes[t] for t in self.tied[unit] if not self.holds[d][t])
        return self.resident[self.classes[d]][unit] + tied

    def _fits(self, unit: int, d: int) -> bool:
        """Return whether a device can take a unit; among empty devices of one class only the first."""
        c = self.classes[d]
        if not self.count[d] and any(self.classes[e] == c and not self.count[e] for e in range(d)):
            return False
        need = self.used[d] + self._bytes(unit, d) + max(self.most[d], self.transient[c][unit])
        return need <= self.capacity[c] and self.possible[c][unit]

    def _pop(self) -> int:
        d, more, before = self.stack.pop()
        self.used[d] -= more
        self.most[d] = before
        self.count[d] -= 1
        for t in self.tied[self.order[len(self.stack)]]:
            self.holds[d][t] -= 1
        return d
