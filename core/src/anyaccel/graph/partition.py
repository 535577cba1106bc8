"""Partition: cuts a graph into convex segments, which no path leaves and enters again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from graphlib import TopologicalSorter


def cut(order: Sequence[str], owner: Mapping[str, Hashable], parents: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group nodes of one owner into convex segments, greedily in `order`.

    Args:
        order: labels in topological order.
        owner: what computes each node.
        parents: labels that each node depends on.

    Returns:
        the segments in topological order; the labels of each keep `order`.
    """
    segments: list[list[str]] = []
    needs: list[set[int]] = []
    segment_of: dict[str, int] = {}
    for label in order:
        before = {segment_of[parent] for parent in parents[label]}
        target = _joinable(segments, needs, owner, label, before)
        if target is None:
            target = len(segments)
            segments.append([])
            needs.append(set())
        segments[target].append(label)
        needs[target] |= before - {target}
        segment_of[label] = target
    return [segments[i] for i in TopologicalSorter(dict(enumerate(needs))).static_order()]


def _joinable(
    segments: Sequence[Sequence[str]],
    needs: Sequence[set[int]],
    owner: Mapping[str, Hashable],
    label: str,
    before: set[int],
) -> int | None:
    """The latest segment of the same owner such that no other segment that `label` depends on depends on it."""
    reach = {i: _closure(needs, i) for i in before}
    for i in reversed(range(len(segments))):
        if owner[segments[i][0]] == owner[label] and not any(i in reached for j, reached in reach.items() if j != i):
            return i
    return None


def _closure(needs: Sequence[set[int]], start: int) -> set[int]:
    reached: set[int] = set()
    todo = [start]
    while todo:
        for other in needs[todo.pop()] - reached:
            reached.add(other)
            todo.append(other)
    return reached
