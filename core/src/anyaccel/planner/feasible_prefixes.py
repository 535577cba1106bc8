"""Which prefixes of an order each set of devices in use can end at, by time and memory alone: bounds of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyaccel.planner.problem import Floats, Ints, Problem

_BISECTIONS = 24
_SLACK = 1 + 1e-9  # sums of times are rounded


class Transition(NamedTuple):
    """From one set of devices in use to that with one device more."""

    source: int
    target: int
    device_class: int


class Table(NamedTuple):
    """Which sets of devices in use there are and how they grow; `in_order`, each may pass on without its device."""

    states: int
    transitions: list[Transition]
    in_order: bool


class OrderedUnits:
    """The units of a problem in an order, as sums from its beginning, by class of devices.

    Attributes:
        elapsed: seconds of each prefix.
        held: bytes of each prefix.
        barrier: the first unit from each on that a class cannot compute.
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
        """The end of the longest range from `start` that a device of a class can hold, and compute in a time."""
        if start == len(self):
            return start
        most, room = self.elapsed[c, start] + window * _SLACK, self.held[c, start] + self.capacity[c]
        by_time = int(self.elapsed[c].searchsorted(most, side="right")) - 1
        by_memory = int(self.held[c].searchsorted(room, side="right")) - 1
        return min(by_time, by_memory, int(self.barrier[c, start]))

    def start(self, c: int, stop: int, window: float) -> int:
        """The beginning of the longest range up to `stop`, as of `stop`."""
        least, room = self.elapsed[c, stop] - window * _SLACK, self.held[c, stop] - self.capacity[c]
        by_time = int(self.elapsed[c].searchsorted(least, side="left"))
        by_memory = int(self.held[c].searchsorted(room, side="left"))
        return min(stop, max(by_time, by_memory, int(self._after[c, stop])))


def prefix_bounds(units: OrderedUnits, table: Table, window: float) -> tuple[list[int], list[int]] | None:
    """For each state the least prefix from which the rest is possible, and the longest that is; None if nothing is.

    What is sent, tied or transient is left out, so that no state outside of the bounds is part of a solution.
    """
    low = [len(units)] * table.states
    for source, target, c in sorted(table.transitions, key=lambda each: -each.source):
        low[source] = min(
            low[source], units.start(c, low[target], window), low[target] if table.in_order else low[source]
        )
    if low[0] > 0:
        return None
    high = [0] * table.states
    for source, target, c in sorted(table.transitions, key=lambda each: each.source):
        passed = high[source] if table.in_order else 0
        high[target] = max(high[target], units.stop(c, high[source], window), passed)
    return low, high


def least_window(units: OrderedUnits, table: Table, bound: float) -> float:
    """About the least time of the slowest device for which `prefix_bounds` has an answer; infinite if there is none."""
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
    """How many transitions from prefixes are within bounds."""
    return sum(max(0, high[each.source] - low[each.source] + 1) for each in table.transitions)
