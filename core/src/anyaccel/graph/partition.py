"""Cutting a graph into convex segments: no path leaves one and comes back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from graphlib import TopologicalSorter


def cut(order: Sequence[str], owner: Mapping[str, Hashable], parents: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group nodes of one owner into as few convex segments as going through `order` once gives.

    Args:
        order: labels, topological.
        owner: who computes each node.
        parents: labels that each node depends on.

    Returns:
        the segments in an order in which each comes after those it depends on; labels inside keep `order`.
    """
    segments: list[list[str]] = []
    needs: list[set[int]] = []
    home: dict[str, int] = {}
    for label in order:
        before = {home[parent] for parent in parents[label]}
        target = _fitting(segments, needs, owner, label, before)
        if target is None:
            target = len(segments)
            segments.append([])
            needs.append(set())
        segments[target].append(label)
        needs[target] |= before - {target}
        home[label] = target
    return [segments[i] for i in TopologicalSorter(dict(enumerate(needs))).static_order()]


def _fitting(
    segments: Sequence[Sequence[str]],
    needs: Sequence[set[int]],
    owner: Mapping[str, Hashable],
    label: str,
    before: set[int],
) -> int | None:
    """The latest segment of the same owner that `label` may join: nothing it depends on depends on that segment."""
    reach = {j: _closure(needs, j) for j in before}
    for i in reversed(range(len(segments))):
        if owner[segments[i][0]] == owner[label] and not any(i in found for j, found in reach.items() if j != i):
            return i
    return None


def _closure(needs: Sequence[set[int]], start: int) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        for other in needs[todo.pop()] - found:
            found.add(other)
            todo.append(other)
    return found
