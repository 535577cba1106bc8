"""Steps over several segments: forward through all, back through those that learn, clip together, apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyaccel.device import Device
from anyaccel.phases.border import Carrier, carrier
from anyaccel.phases.clipping import Clipping
from anyaccel.phases.drawing import Lane, Span, Spans, Turn
from anyaccel.phases.links import Link, Losses
from anyaccel.phases.loading import Feed

Rows = tuple[str, Callable[[int, int], Any]]
"""A column: its feature set, and its rows start to stop, in the order of the epoch."""
Fed = tuple[Mapping[str, Rows], ...]
"""For each link, its columns by name of value."""
Orders = Mapping[tuple[Lane, int, Device], Any]
"""An epoch's orders on the devices, by lane, `id` of a backend and device."""


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
        self.watcher: Callable[[Mapping[str, Any], Spans], None] | None = None
        """Is shown the values of every training step when it is done."""

    def fed(self, feed: Feed, orders: Orders) -> Fed:
        """The columns of a feed as the links take them, in their orders; those that have none as they are."""
        return tuple(
            {name: self._rows(link, name, feed, orders) for name in link.segment.inputs if name in feed.columns}
            for link in self._links
        )

    def _rows(self, link: Link, name: str, feed: Feed, orders: Orders) -> Rows:
        lane = feed.lane(name)
        order = orders.get((lane, id(link.backend), link.segment.inputs[name][1]))
        return lane[0], partial(link.backend.rows, feed.columns[name], order=order)

    def train(self, fed: Fed, start: int, count: int, batch: int) -> list[Losses]:
        """`count` training steps, one by one; each takes the same rows of every order."""
        losses: list[Losses] = []
        for first in range(start, start + count * batch, batch):
            span = (first, first + batch)
            losses += self._step(fed, partial(_everywhere, span))
        return losses

    def turn(self, fed: Fed, turn: Turn) -> list[Losses]:
        """One training step on rows of some feature sets."""
        return self._step(fed, turn.get)

    def _step(self, fed: Fed, spans: Spans) -> list[Losses]:
        values: dict[str, Any] = {}
        pullbacks: list[tuple[Link, Any]] = []
        losses: list[Losses] = []
        for link, arrivals, rows in zip(self._links, self._arrivals, fed, strict=True):
            inputs = _inputs(arrivals, rows, values, spans)
            if all(value is None for value in inputs):  # this step has nothing for it
                values.update(dict.fromkeys(link.segment.outputs))
                continue
            if link.trains:
                outputs, pairs, pullback = link.program.forward_pullback(inputs)
                if link.live:
                    pullbacks.append((link, pullback))
            else:
                outputs, pairs = link.program.forward(inputs)
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, 0, tuple(pairs), pairs=pairs))
        self._pull_back(pullbacks)
        scales = self._clipping.scales()
        for link, _ in pullbacks:
            link.program.apply(scales[id(link)])
        if self.watcher is not None:
            self.watcher(values, spans)
        return losses

    def _pull_back(self, pullbacks: Sequence[tuple[Link, Any]]) -> None:
        cotangents: dict[str, Any] = {}
        for link, pullback in reversed(pullbacks):
            given = pullback(tuple(cotangents.get(name) for name in link.segment.outputs))
            for way, cotangent in zip(self._returns[id(link)], given, strict=True):
                if cotangent is not None:
                    back = way.carry(cotangent)
                    cotangents[way.name] = back if way.name not in cotangents else cotangents[way.name] + back

    def evaluate(self, fed: Fed, turn: Turn) -> tuple[dict[str, Any], list[Losses]]:
        """Outputs by value name (None where rows that they need are missing) and losses, in evaluation mode."""
        values: dict[str, Any] = {}
        losses: list[Losses] = []
        for link, arrivals, rows in zip(self._links, self._arrivals, fed, strict=True):
            inputs = _inputs(arrivals, rows, values, turn.get)
            if all(value is None for value in inputs):
                values.update(dict.fromkeys(link.segment.outputs))
                continue
            outputs, pairs = link.program.forward(inputs)
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, 0, tuple(pairs), pairs=pairs))
        return values, losses


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
    arrivals: Sequence[Arrival], rows: Mapping[str, Rows], values: Mapping[str, Any], spans: Spans
) -> tuple[Any, ...]:
    """What a link is given: None for rows that this step has not, and for values that would need them."""
    found: list[Any] = []
    for one in arrivals:
        if one.carry is None:
            name, cut = rows[one.name]
            span = spans(name)
            found.append(None if span is None else cut(*span))
        else:
            value = values[one.name]
            found.append(None if value is None else one.carry(value))
    return tuple(found)


def _everywhere(span: Span, _: str) -> Span:
    return span
