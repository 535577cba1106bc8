"""Steps over several segments: forward through all, back through those that learn, clip together, apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyaccel.device import Device
from anyaccel.phases.executor.border import Carrier, carrier
from anyaccel.phases.executor.clipping import Clipping
from anyaccel.phases.executor.links import Link, Losses
from anyaccel.phases.loading.device_columns import Feed
from anyaccel.phases.loading.epoch_batches import Lane, Span, Spans, Turn

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
        return lane[0], partial(link.backend.gather_rows, feed.columns[name], order=order)

    def train(self, fed: Fed, start: int, count: int, batch: int, piece: int | None = None) -> list[Losses]:
        """`count` training steps, one by one; each takes the same rows of every order, at most `piece` at once."""
        losses: list[Losses] = []
        for first in range(start, start + count * batch, batch):
            last, most = first + batch, piece or batch
            spans = [(begin, min(begin + most, last)) for begin in range(first, last, most)]
            losses += self._step(fed, [(partial(_everywhere, span), span[1] - span[0]) for span in spans])
        return losses

    def turn(self, fed: Fed, turn: Turn, piece: int | None = None) -> list[Losses]:
        """One training step on rows of some feature sets; at most `piece` at once where it takes equally many of each.

        Where it does not, parts would weigh each set's losses by other numbers of rows: it is computed as a whole.
        """
        sizes = {stop - start for start, stop in turn.values()}
        batch = max(sizes)
        if piece is None or piece >= batch or len(sizes) > 1:
            return self._step(fed, [(turn.get, 1)])
        cuts = [(low, min(low + piece, batch)) for low in range(0, batch, piece)]
        return self._step(fed, [(partial(_within, turn, cut), cut[1] - cut[0]) for cut in cuts])

    def attempt(self, fed: Fed, turn: Turn) -> None:
        """One training step with some rows, seen by nobody; whoever asks for it goes back to a snapshot."""
        watcher, self.watcher = self.watcher, None
        try:
            self._step(fed, [(turn.get, 1)])
        finally:
            self.watcher = watcher
            for link in self._links:
                link.program.zero_grad()

    def _step(self, fed: Fed, parts: Sequence[tuple[Spans, int]]) -> list[Losses]:
        """One update with the gradients of all parts, each of which is some rows, and weighs as many as there are.

        Gradients of the losses' means are added up; before a part of another size comes, those so far are brought to
        its measure, and at the end all to that of the whole.
        """
        losses: list[Losses] = []
        reached: dict[int, Link] = {}
        measure = parts[0][1]
        for spans, size in parts:
            if size != measure:
                self._rescale(reached.values(), measure / size)
                measure = size
            for link in self._part(fed, spans, losses):
                reached[id(link)] = link
        if len(parts) > 1:
            self._rescale(reached.values(), measure / sum(size for _, size in parts))
        scales = self._clipping.scales()
        for link in reached.values():
            link.program.optimizer_step(scales[id(link)])
        return losses

    def _rescale(self, links: Iterable[Link], factor: float) -> None:
        for link in links:
            link.program.map_gradients(partial(_times, factor))

    def _part(self, fed: Fed, spans: Spans, losses: list[Losses]) -> list[Link]:
        """Forward and back through all segments; the gradients stay with the programs, which are told."""
        values: dict[str, Any] = {}
        pullbacks: list[tuple[Link, Any]] = []
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
        if self.watcher is not None:
            self.watcher(values, spans)
        return [link for link, _ in pullbacks]

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


def _within(turn: Turn, cut: Span, name: str) -> Span | None:
    span = turn.get(name)
    return None if span is None else (span[0] + cut[0], span[0] + cut[1])


def _times(factor: float, gradient: Any) -> Any:
    return gradient * factor
