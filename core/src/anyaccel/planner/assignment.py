"""An assignment for a problem: the best contiguous split over several orders, else a packing; improved by moves."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anyaccel.planner.contiguous import Split, best_split
from anyaccel.planner.orders import unit_orders
from anyaccel.planner.packing import pack
from anyaccel.planner.problem import Ints, Problem

MOST_TRIALS = 400  # of single moves
MOST_CUTS = 64  # of the part of one device, to give some of it to an idle one


class Found(NamedTuple):
    """An assignment and how it was found: `exact` if no contiguous split of the first order is better."""

    assignment: Ints
    method: str
    exact: bool


def find_assignment(problem: Problem, objective: str) -> Found | None:
    """The best assignment that was found with all weights on the devices; None if none fits."""
    best: Split | None = None
    exact = False
    chain = _is_chain(problem)
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
    if method == "packing" or not chain:
        assignment = improve(problem, assignment, objective)
    if objective == "throughput":
        assignment = use_idle(problem, assignment)
    return Found(assignment, method, exact and chain)


def _is_chain(problem: Problem) -> bool:
    """Whether each unit gives its output to the next alone."""
    things, units = problem.tensors.units[:, 0], problem.tensors.units[:, 1]
    return bool(np.all(np.bincount(things) == 2) and np.all(np.diff(units)[::2] == 1)) if len(things) else True


def bottleneck(problem: Problem, assignment: Ints, objective: str) -> float:
    """The value of the objective."""
    loads = problem.compute(assignment) + problem.transfer(assignment)
    return float(loads.sum() if objective == "latency" else loads.max())


def improve(problem: Problem, assignment: Ints, objective: str) -> Ints:
    """Move single units away from the device with the largest load while that makes the objective better."""
    value = bottleneck(problem, assignment, objective)
    trials = 0
    moved = True
    while moved and trials < MOST_TRIALS:
        moved = False
        loads = problem.compute(assignment) + problem.transfer(assignment)
        for unit in np.flatnonzero(assignment == int(np.argmax(loads))).tolist():
            for d in np.argsort(loads, kind="stable").tolist():
                trials += 1
                if trials > MOST_TRIALS or d == assignment[unit]:
                    continue
                other = assignment.copy()
                other[unit] = d
                found = bottleneck(problem, other, objective)
                if found < value * (1 - 1e-12) and problem.fits(other):
                    assignment, value, moved = other, found, True
                    break
            if moved:
                break
    return assignment


def use_idle(problem: Problem, assignment: Ints) -> Ints:
    """Give idle devices a part of what another has, where that leaves the bottleneck as low as it is."""
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
