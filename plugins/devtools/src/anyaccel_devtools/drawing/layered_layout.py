"""Layered layout of a directed acyclic graph (Sugiyama): boxes do not overlap, edges pass between them.

Sizes and positions are pairs (along, across), along the arrows and perpendicular to them: (x, y) for drawings from left
to right, (y, x) for drawings downwards.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Size = tuple[float, float]
Key = Hashable
Edge = tuple[Key, Key]

_LANE = 10.0  # space for an edge that passes a layer
_SWEEPS = 12
_WEIGHTS = (8.0, 2.0, 1.0)  # weight of a link between 0, 1 or 2 boxes: long edges are straightened most
_NO_NEIGHBOUR_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Stop:
    """Where an edge passes a layer: straight from `start` to `end` (along), at `across`."""

    start: float
    end: float
    across: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of boxes, stops of each edge between its ends, and the total size.

    `bands` gives start and end (along) of each box's layer: an edge is straight from its box to the end of the layer.
    """

    centres: Mapping[Key, Size]
    bands: Mapping[Key, tuple[float, float]]
    stops: Mapping[Edge, tuple[Stop, ...]]
    size: Size


def arrange(sizes: Mapping[Key, Size], edges: Sequence[Edge], *, gap: Size = (44.0, 18.0)) -> Layout:
    """Lay out a graph.

    Args:
        sizes: Size of each box.
        edges: Pairs of boxes, acyclic, each pair once.
        gap: Distance between layers, and between boxes of a layer.
    """
    level = _levels(sizes, edges)
    paths = {edge: _path(edge, level) for edge in edges}
    links = [pair for path in paths.values() for pair in pairwise(path)]
    extents = {**{passing: (0.0, _LANE) for path in paths.values() for passing in path[1:-1]}, **sizes}
    layers: list[list[Key]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for key in sizes:
        layers[level[key]].append(key)
    for way in paths.values():
        for i, passing in enumerate(way[1:-1], level[way[0]] + 1):
            layers[i].append(passing)
    before, after = _neighbours(links)
    # Sort each layer by the means of its neighbours, down and up, and keep the order with the fewest crossings.
    fewest = _crossings(layers, after)
    current = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        steps = range(1, len(current)) if down else range(len(current) - 2, -1, -1)
        for i in steps:
            place = {name: float(rank) for rank, name in enumerate(current[i - 1 if down else i + 1])}
            ranks = {name: float(rank) for rank, name in enumerate(current[i])}
            current[i].sort(
                key=lambda name: _mean([place[key] for key in (before if down else after).get(name, ())], ranks[name])
            )
        count = _crossings(current, after)
        if count < fewest:
            layers, fewest = [list(layer) for layer in current], count
        if not fewest:
            break
    across = _across(layers, links, extents, sizes, gap[1])
    # Start and end of each layer, along; the gap before a layer grows with the number of edges that enter it
    bands: list[tuple[float, float]] = []
    for layer in layers:
        lines = sum(len(before.get(name, ())) for name in layer)
        start = bands[-1][1] + gap[0] + min(4.0 * max(lines - 4, 0), 80.0) if bands else 0.0
        bands.append((start, start + max(extents[name][0] for name in layer)))
    band_of = {name: bands[i] for i, layer in enumerate(layers) for name in layer}
    return Layout(
        {name: ((band_of[name][0] + band_of[name][1]) / 2, across[name]) for name in sizes},
        {name: band_of[name] for name in sizes},
        {edge: tuple(Stop(*band_of[key], across[key]) for key in path[1:-1]) for edge, path in paths.items()},
        (bands[-1][1], max((across[name] + extents[name][1] / 2 for name in across), default=0.0)),
    )


def _levels(names: Iterable[Key], edges: Sequence[Edge]) -> dict[Key, int]:
    """Return the layer of each box: one after its last predecessor; sources go directly before their first
    successor.
    """
    before: dict[Key, list[Key]] = {name: [] for name in names}
    after: dict[Key, list[Key]] = {name: [] for name in before}
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    waiting, level = {name: len(ups) for name, ups in before.items()}, dict.fromkeys(before, 0)
    ready = [name for name, count in waiting.items() if not count]
    for name in ready:
        for target in after[name]:
            level[target] = max(level[target], level[name] + 1)
            waiting[target] -= 1
            ready += [target] * (not waiting[target])
    sources = [name for name in before if not before[name] and after[name]]
    return {**level, **{name: min(level[target] for target in after[name]) - 1 for name in sources}}


def _path(edge: Edge, level: Mapping[Key, int]) -> list[Key]:
    """Return an edge as its source, a placeholder in every layer that it passes, and its target."""
    source, target = edge
    return [source, *((edge, i) for i in range(level[source] + 1, level[target])), target]


def _neighbours(links: Iterable[Edge]) -> tuple[dict[Key, list[Key]], dict[Key, list[Key]]]:
    before: dict[Key, list[Key]] = {}
    after: dict[Key, list[Key]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


# -- order within layers -----------------------------------------------------------------------------------------------


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layers: Sequence[Sequence[Key]], after: Mapping[Key, list[Key]]) -> int:
    """Return the number of crossings: pairs of edges whose order differs at their two ends."""
    total = 0
    for upper, lower in pairwise(layers):
        rank = {name: i for i, name in enumerate(lower)}
        seen: list[int] = []
        for name in upper:
            ends = sorted(rank[target] for target in after.get(name, ()))
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


# -- coordinates -------------------------------------------------------------------------------------------------------


def _across(
    layers: Sequence[Sequence[Key]],
    links: Sequence[Edge],
    extents: Mapping[Key, Size],
    boxes: Mapping[Key, Size],
    gap: float,
) -> dict[Key, float]:
    """Return centres across: close to the neighbours, in order, without overlap; the smallest edge is at 0."""
    before, after = _neighbours(links)
    place: dict[Key, float] = {}
    for layer in layers:
        place.update(_packed(layer, dict.fromkeys(layer, (0.0, 1.0)), extents, boxes, gap))
    for sweep in range(_SWEEPS):  # the last sweep goes forth: a box with one predecessor ends up straight behind it
        down = sweep % 2 == 1
        for layer in layers if down else layers[::-1]:
            targets = {name: _target(name, before if down else after, place, boxes) for name in layer}
            place.update(_packed(layer, targets, extents, boxes, gap))
    low = min((place[name] - extents[name][1] / 2 for name in place), default=0.0)
    return {name: middle - low for name, middle in place.items()}


def _target(
    name: Key, near: Mapping[Key, list[Key]], place: Mapping[Key, float], boxes: Container[Key]
) -> tuple[float, float]:
    """Return the mean position of the neighbours on one side, and its weight."""
    neighbours = near.get(name, ())
    weight = sum(_WEIGHTS[(name in boxes) + (neighbour in boxes)] for neighbour in neighbours)
    return _mean([place[neighbour] for neighbour in neighbours], place[name]), weight or _NO_NEIGHBOUR_WEIGHT


def _packed(
    layer: Sequence[Key],
    targets: Mapping[Key, tuple[float, float]],
    extents: Mapping[Key, Size],
    boxes: Container[Key],
    gap: float,
) -> dict[Key, float]:
    """Return centres closest to the targets by weighted least squares; boxes that would overlap move as one block."""
    offsets, end = [], 0.0
    for name in layer:
        offsets.append(end + extents[name][1] / 2)
        end += extents[name][1] + (gap if name in boxes else gap / 2)
    blocks: list[tuple[float, float, int]] = []  # start, weight and number of boxes of each block
    for name, offset in zip(layer, offsets, strict=True):
        block = (targets[name][0] - offset, targets[name][1], 1)
        while blocks and blocks[-1][0] >= block[0]:
            start, weight, count = blocks.pop()
            total = weight + block[1]
            block = ((start * weight + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    starts = [start for start, _, count in blocks for _ in range(count)]
    return {name: start + offset for name, start, offset in zip(layer, starts, offsets, strict=True)}
