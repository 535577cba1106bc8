"""Steps over several segments: forward through all, back through those that learn, clip together, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyaccel.device import Device
from anyaccel.phases.border import Carrier, carrier
from anyaccel.phases.clipping import Clipping
from anyaccel.phases.links import Link, Losses
from anyaccel.phases.loading import Feed

Rows = Callable[[int, int], Any]
"""Rows start to stop of a column, in the order of the epoch."""
Fed = tuple[Mapping[str, Rows], ...]
"""For each link, its columns by name of value."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a value gets into a segment: from a column, or over a border from an earlier segment."""

    name: str
    carry: Carrier | None


@dataclass(frozen=True, slots=True)
class Return:
    """Over which border the cotangent of a value goes back."""

    name: str
    carry: Carrier


class Wires:
    """What lies between the links: every way over a border is chosen once, here."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        makers = {name: link for link in links for name in link.segment.outputs}
        self._arrivals = [tuple(_arrivals(link, makers)) for link in links]
        self._returns = {id(link): tuple(_returns(link, makers)) for link in links if link.live}
        self._clipping = Clipping([link for link in links if link.live])

    def fed(self, feed: Feed, orders: Mapping[tuple[int, Device], Any] | None) -> Fed:
        """The columns of a feed as the links take them, in an order or as they are."""
        return tuple(
            {name: self._rows(link, name, feed, orders) for name in _columns(link, feed)} for link in self._links
        )

    def _rows(self, link: Link, name: str, feed: Feed, orders: Mapping[tuple[int, Device], Any] | None) -> Rows:
        order = None if orders is None else orders[id(link.backend), link.segment.inputs[name][1]]
        return partial(link.backend.rows, feed.columns[name], order=order)

    def train(self, fed: Fed, start: int, count: int, batch: int) -> list[Losses]:
        """`count` training steps, one by one."""
        losses: list[Losses] = []
        for first in range(start, start + count * batch, batch):
            losses += self._step(fed, first, first + batch)
        return losses

    def _step(self, fed: Fed, start: int, stop: int) -> list[Losses]:
        values: dict[str, Any] = {}
        pullbacks: list[tuple[Link, Any]] = []
        losses: list[Losses] = []
        for link, arrivals, rows in zip(self._links, self._arrivals, fed, strict=True):
            inputs = _inputs(arrivals, rows, values, start, stop)
            if link.trains:
                outputs, pairs, pullback = link.program.forward_pullback(inputs)
                if link.live:
                    pullbacks.append((link, pullback))
            else:
                outputs, pairs = link.program.forward(inputs)
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, stop - start, tuple(pairs), pairs=pairs))
        self._pull_back(pullbacks)
        scales = self._clipping.scales()
        for link, _ in pullbacks:
            link.program.apply(scales[id(link)])
        return losses

    def _pull_back(self, pullbacks: Sequence[tuple[Link, Any]]) -> None:
        cotangents: dict[str, Any] = {}
        for link, pullback in reversed(pullbacks):
            given = pullback(tuple(cotangents.get(name) for name in link.segment.outputs))
            for way, cotangent in zip(self._returns[id(link)], given, strict=True):
                if cotangent is not None:
                    back = way.carry(cotangent)
                    cotangents[way.name] = back if way.name not in cotangents else cotangents[way.name] + back

    def evaluate(self, fed: Fed, start: int, stop: int) -> tuple[dict[str, Any], list[Losses]]:
        """Outputs by value name and losses of some rows, in evaluation mode."""
        values: dict[str, Any] = {}
        losses: list[Losses] = []
        for link, arrivals, rows in zip(self._links, self._arrivals, fed, strict=True):
            outputs, pairs = link.program.forward(_inputs(arrivals, rows, values, start, stop))
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, stop - start, tuple(pairs), pairs=pairs))
        return values, losses


def _columns(link: Link, feed: Feed) -> list[str]:
    return [name for name in link.segment.inputs if name in feed.columns]


def _arrivals(link: Link, makers: Mapping[str, Link]) -> list[Arrival]:
    return [
        Arrival(name, None if name not in makers else _over(makers[name], name, link, device))
        for name, (_, device) in link.segment.inputs.items()
    ]


def _over(maker: Link, name: str, taker: Link, device: Device) -> Carrier:
    return carrier(maker.backend, maker.device_of(name), taker.backend, device)


def _returns(link: Link, makers: Mapping[str, Link]) -> list[Return]:
    found = []
    for name in link.segment.needs_pullback:
        maker, (_, device) = makers[name], link.segment.inputs[name]
        found.append(Return(name, carrier(link.backend, device, maker.backend, maker.device_of(name))))
    return found


def _inputs(
    arrivals: Sequence[Arrival], rows: Mapping[str, Rows], values: Mapping[str, Any], start: int, stop: int
) -> tuple[Any, ...]:
    return tuple(rows[one.name](start, stop) if one.carry is None else one.carry(values[one.name]) for one in arrivals)
