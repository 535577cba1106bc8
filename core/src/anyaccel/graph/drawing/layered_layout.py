"""Layout of a directed acyclic graph in layers: boxes do not overlap, and lines pass between them.

Sizes and places are pairs (along, across): along the arrows, and at a right angle to them. Whoever draws from left to
right takes them as (x, y), whoever draws downwards as (y, x).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Size = tuple[float, float]
Key = Hashable
Edge = tuple[Key, Key]

_LANE = 10.0  # what a line that passes a layer takes up there
_SWEEPS = 12
_PULLS = (8.0, 2.0, 1.0)  # how hard a link of no box, of one and of two draws straight: long lines most
_IDLE = 0.1  # of what has no neighbour on that side, and stays where it is if it can


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a line passes a layer: straight from `start` to `end` (along), at `across`."""

    start: float
    end: float
    across: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of boxes, the stops of each edge between its ends, and the size of the whole.

    `bands` gives for each box where its layer begins and ends (along): a line goes straight from a box to the end of
    its layer.
    """

    centres: Mapping[Key, Size]
    bands: Mapping[Key, tuple[float, float]]
    stops: Mapping[Edge, tuple[Stop, ...]]
    size: Size


def arrange(sizes: Mapping[Key, Size], edges: Sequence[Edge], *, gap: Size = (44.0, 18.0)) -> Layout:
    """Lay a graph out.

    Args:
        sizes: of each box.
        edges: pairs of boxes, without a cycle, each pair once.
        gap: between layers, and between boxes of a layer.
    """
    level = _levels(sizes, edges)
    paths = {edge: _path(edge, level) for edge in edges}
    links = [pair for path in paths.values() for pair in pairwise(path)]
    extents = {**{one: (0.0, _LANE) for path in paths.values() for one in path[1:-1]}, **sizes}
    layers = _ordered(_layers(sizes, paths.values(), level), links)
    across = _across(layers, links, extents, sizes, gap[1])
    bands = _bands(layers, extents, gap[0], links)
    at = {one: bands[i] for i, layer in enumerate(layers) for one in layer}
    return Layout(
        {one: ((at[one][0] + at[one][1]) / 2, across[one]) for one in sizes},
        {one: at[one] for one in sizes},
        {edge: tuple(Stop(*at[one], across[one]) for one in path[1:-1]) for edge, path in paths.items()},
        (bands[-1][1], max((across[one] + extents[one][1] / 2 for one in across), default=0.0)),
    )


def _levels(names: Iterable[Key], edges: Sequence[Edge]) -> dict[Key, int]:
    """The layer of each box: one behind the last of those before it; what has none before it stands near its first."""
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
    heads = [name for name in before if not before[name] and after[name]]
    return {**level, **{name: min(level[target] for target in after[name]) - 1 for name in heads}}


def _path(edge: Edge, level: Mapping[Key, int]) -> list[Key]:
    """An edge as the boxes at its ends and a place in every layer that it passes."""
    source, target = edge
    return [source, *((edge, i) for i in range(level[source] + 1, level[target])), target]


def _layers(names: Iterable[Key], paths: Iterable[list[Key]], level: Mapping[Key, int]) -> list[list[Key]]:
    layers: list[list[Key]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for name in names:
        layers[level[name]].append(name)
    for path in paths:
        for i, passing in enumerate(path[1:-1], level[path[0]] + 1):
            layers[i].append(passing)
    return layers


def _neighbours(links: Iterable[Edge]) -> tuple[dict[Key, list[Key]], dict[Key, list[Key]]]:
    before: dict[Key, list[Key]] = {}
    after: dict[Key, list[Key]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


# -- the order within layers -------------------------------------------------------------------------------------------


def _ordered(layers: list[list[Key]], links: Sequence[Edge]) -> list[list[Key]]:
    """The layers in an order of few crossings: each by the mean of its neighbours, up and down in turn."""
    before, after = _neighbours(links)
    best, fewest = layers, _crossings(layers, after)
    current = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        _sweep(current, before if down else after, down)
        count = _crossings(current, after)
        if count < fewest:
            best, fewest = [list(layer) for layer in current], count
        if not fewest:
            break
    return best


def _sweep(layers: list[list[Key]], neighbours: Mapping[Key, list[Key]], down: bool) -> None:
    steps = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
    for i in steps:
        place = {name: float(rank) for rank, name in enumerate(layers[i - 1 if down else i + 1])}
        own = {name: float(rank) for rank, name in enumerate(layers[i])}
        layers[i].sort(key=lambda name: _mean([place[one] for one in neighbours.get(name, ())], own[name]))


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(layers: Sequence[Sequence[Key]], after: Mapping[Key, list[Key]]) -> int:
    """How many pairs of lines cross: pairs that are in one order at one end, and in the other at the other end."""
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
    """The middle of everything across: near its neighbours, in its order, without an overlap. Begins at 0."""
    before, after = _neighbours(links)
    place: dict[Key, float] = {}
    for layer in layers:
        place.update(_packed(layer, dict.fromkeys(layer, (0.0, 1.0)), extents, boxes, gap))
    for sweep in range(_SWEEPS):  # the last one goes down: what has one neighbour above stands straight below it
        down = sweep % 2 == 1
        for layer in layers if down else layers[::-1]:
            wanted = {name: _wanted(name, before if down else after, place, boxes) for name in layer}
            place.update(_packed(layer, wanted, extents, boxes, gap))
    low = min((place[name] - extents[name][1] / 2 for name in place), default=0.0)
    return {name: middle - low for name, middle in place.items()}


def _wanted(
    name: Key, near: Mapping[Key, list[Key]], place: Mapping[Key, float], boxes: Container[Key]
) -> tuple[float, float]:
    """In the middle of the neighbours on one side, and how much it is wanted there."""
    there = near.get(name, ())
    weight = sum(_PULLS[(name in boxes) + (one in boxes)] for one in there)
    return _mean([place[one] for one in there], place[name]), weight or _IDLE


def _packed(
    layer: Sequence[Key],
    wanted: Mapping[Key, tuple[float, float]],
    extents: Mapping[Key, Size],
    boxes: Container[Key],
    gap: float,
) -> dict[Key, float]:
    """Middles as near as can be to the wanted ones, by least squares: neighbours that collide move as one block."""
    offsets, end = [], 0.0
    for name in layer:
        offsets.append(end + extents[name][1] / 2)
        end += extents[name][1] + (gap if name in boxes else gap / 2)
    blocks: list[tuple[float, float, int]] = []  # where a block begins, its weight, how many are in it
    for name, offset in zip(layer, offsets, strict=True):
        block = (wanted[name][0] - offset, wanted[name][1], 1)
        while blocks and blocks[-1][0] >= block[0]:
            start, weight, count = blocks.pop()
            total = weight + block[1]
            block = ((start * weight + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    starts = [start for start, _, count in blocks for _ in range(count)]
    return {name: start + offset for name, start, offset in zip(layer, starts, offsets, strict=True)}


def _bands(
    layers: Sequence[Sequence[Key]], extents: Mapping[Key, Size], gap: float, links: Sequence[Edge]
) -> list[tuple[float, float]]:
    """Where each layer begins and ends; the space before one grows with the lines that lead to it."""
    before, _ = _neighbours(links)
    bands: list[tuple[float, float]] = []
    for layer in layers:
        lines = sum(len(before.get(name, ())) for name in layer)
        start = bands[-1][1] + gap + min(4.0 * max(lines - 4, 0), 80.0) if bands else 0.0
        bands.append((start, start + max(extents[name][0] for name in layer)))
    return bands
