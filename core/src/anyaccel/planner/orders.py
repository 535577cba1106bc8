"""Topological orders of the units of a problem, in which it is split into contiguous parts."""

from __future__ import annotations

from collections import deque

import numpy as np

from anyaccel.planner.problem import Ints, Problem


def unit_orders(problem: Problem) -> list[Ints]:
    """Different orders: as given, each source right before its first consumer, depth first, breadth first.

    Of a training graph with backward blocks, the forward pass decides; backward blocks without a forward block of their
    group stand where their gradients flow.
    """
    before, after = _neighbours(problem)
    n = len(problem.units)
    sinks = [u for u in range(n) if not after[u]]
    rest = list(range(n))
    orders = [
        rest,
        _depth_first(before, rest, reverse=False),
        _depth_first(before, sinks + rest, reverse=False),
        _depth_first(before, sinks + rest, reverse=True),
        _depth_first(after, rest, reverse=True)[::-1],
        _depth_first(after, rest, reverse=False)[::-1],
        _lazy_sources(_breadth_first(before, after), before, after),
    ]
    return [np.array(order, dtype=np.int64) for order in dict.fromkeys(tuple(order) for order in orders)]


def _neighbours(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """The units before and after each: along edges of the forward pass, against those of the backward pass."""
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
    return before, after


def _depth_first(before: list[list[int]], roots: list[int], *, reverse: bool) -> list[int]:
    """Each root after all that it needs; what is in a circle comes where it is met."""
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


def _breadth_first(before: list[list[int]], after: list[list[int]]) -> list[int]:
    """Units as soon as all before them are done; those in a circle last."""
    missing = [len(each) for each in before]
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
    return order + [u for u in range(len(before)) if u not in done]


def _lazy_sources(order: list[int], before: list[list[int]], after: list[list[int]]) -> list[int]:
    """The same order, with each unit that needs nothing right before the first that needs it."""
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
