"""A chain of programs: the segments of a graph at work, values and cotangents carried between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend, Program, Stepping
from anyaccel.device import Device
from anyaccel.phases.loading import Feed
from anyaccel.segment import NodeState, ParameterGroup, Segment

Pairs = dict[str, tuple[Any, Any]]
"""Losses as (sum, weight), by label."""


@dataclass(frozen=True, slots=True)
class Link:
    """A segment at work. `live` says whether gradients flow through it."""

    segment: Segment
    backend: ComputingBackend
    program: Program
    live: bool

    def device_of(self, name: str) -> Device:
        """The device on which one of its outputs comes."""
        return next(operation.device for operation in self.segment.operations if name in operation.outputs)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses still on their devices: means [count, labels] of steps of one size, or pairs of one step."""

    backend: ComputingBackend
    batch: int
    labels: tuple[str, ...]
    means: Any = None
    pairs: Pairs | None = None


class Chain:
    """The links of one phase, in the order of computation."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._makers = {name: link for link in links for name in link.segment.outputs}
        self._clipped = [group for group in _groups(links) if group.optimizer.clip_norm is not None]
        only = links[0].program if len(links) == 1 else None
        self._stepping = only if isinstance(only, Stepping) else None

    # -- the whole -------------------------------------------------------------------------------------------------

    def seed(self, key: int) -> None:
        """Restart the random streams of all programs."""
        for link in self._links:
            link.program.seed(key)

    def snapshot(self) -> list[Any]:
        """Everything a step changes."""
        return [link.program.snapshot() for link in self._links]

    def restore(self, snapshot: Sequence[Any]) -> None:
        """Go back to a snapshot."""
        for link, part in zip(self._links, snapshot, strict=True):
            link.program.restore(part)

    def publish(self, states: MutableMapping[str, NodeState]) -> None:
        """Let the user's models, and `states`, hold the values of now."""
        for link in self._links:
            link.program.publish()
            states.update(link.program.states())

    def release(self, states: MutableMapping[str, NodeState]) -> None:
        """End all programs: the user's models hold the result, and `states` receives the optimizer state by node.

        Every program is released, whatever one raises, and once more where an interrupt came in between: models must
        not be left with values of two steps. The first failure is raised at the end.
        """
        failures: list[BaseException] = []
        for link in self._links:
            for _ in range(2):
                try:
                    states.update(link.program.release())
                    break
                except Exception as failure:
                    failures.append(failure)
                    break
                except BaseException as interrupt:
                    failures.append(interrupt)
        if failures:
            raise failures[0]

    # -- steps -----------------------------------------------------------------------------------------------------

    def order(self, feed: Feed, order: np.ndarray) -> dict[tuple[int, Device], Any]:
        """An epoch's order on every device that has columns: the only transfer of the epoch."""
        found: dict[tuple[int, Device], Any] = {}
        for link in self._links:
            for name, (_, device) in link.segment.inputs.items():
                if name in feed.columns and (id(link.backend), device) not in found:
                    found[id(link.backend), device] = link.backend.from_host(order, device)
        return found

    def stepper(self, feed: Feed, orders: Mapping[tuple[int, Device], Any]) -> Callable[[int, int, int], list[Losses]]:
        """A function of (start, count, batch) that trains `count` steps, with everything looked up beforehand.

        No closure: the frames of an error would hold it, and with it the columns, for as long as the error is kept.
        """
        if self._stepping is None:
            return partial(self._one_by_one, feed, orders)
        link, program = self._links[0], self._stepping
        names = tuple(link.segment.inputs)
        columns = tuple(feed.columns[name] for name in names)
        mine = tuple(orders[id(link.backend), link.segment.inputs[name][1]] for name in names)
        labels = tuple(term.label for term in link.segment.losses)
        return partial(_at_once, link.backend, program, columns, mine, labels)

    def _one_by_one(
        self, feed: Feed, orders: Mapping[tuple[int, Device], Any], start: int, count: int, batch: int
    ) -> list[Losses]:
        losses: list[Losses] = []
        for first in range(start, start + count * batch, batch):
            losses += self._train(feed, orders, first, first + batch)
        return losses

    def _train(self, feed: Feed, orders: Mapping[tuple[int, Device], Any], start: int, stop: int) -> list[Losses]:
        """One training step over several segments: forward, back in reverse order, clip together, apply."""
        values: dict[str, Any] = {}
        pullbacks: list[tuple[Link, Any]] = []
        losses: list[Losses] = []
        for link in self._links:
            inputs = self._inputs(link, feed, values, start, stop, orders)
            if link.live:
                outputs, pairs, pullback = link.program.forward_pullback(inputs)
                pullbacks.append((link, pullback))
            else:
                outputs, pairs = link.program.forward(inputs)
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, stop - start, tuple(pairs), pairs=pairs))
        self._pull_back(pullbacks)
        scales = self._clip_scales()
        for link, _ in pullbacks:
            link.program.apply(scales)
        return losses

    def _pull_back(self, pullbacks: Sequence[tuple[Link, Any]]) -> None:
        cotangents: dict[str, Any] = {}
        for link, pullback in reversed(pullbacks):
            given = pullback(tuple(cotangents.get(name) for name in link.segment.outputs))
            for name, cotangent in zip(link.segment.needs_pullback, given, strict=True):
                if cotangent is not None:
                    back = _carry(cotangent, link, self._makers[name], self._makers[name].device_of(name))
                    cotangents[name] = back if name not in cotangents else cotangents[name] + back

    def _clip_scales(self) -> dict[str, Any] | None:
        """Scales by group, from the norm over all segments; waits for the devices, as several frameworks must agree."""
        if not self._clipped:
            return None
        stats = [(link, link.program.grad_stats()) for link in self._links if link.live]
        scales = {}
        for group in self._clipped:
            squares = [link.backend.scalars([mine[group.name][0]])[0] for link, mine in stats if group.name in mine]
            norm = float(np.sqrt(sum(squares)))
            scales[group.name] = min(1.0, (group.optimizer.clip_norm or 0.0) / (norm + 1e-6))
        return scales

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, feed: Feed, start: int, stop: int) -> tuple[dict[str, Any], list[Losses]]:
        """Outputs by value name and losses of some rows, in evaluation mode; all left on the devices."""
        values: dict[str, Any] = {}
        losses: list[Losses] = []
        for link in self._links:
            outputs, pairs = link.program.forward(self._inputs(link, feed, values, start, stop, None))
            values.update(zip(link.segment.outputs, outputs, strict=True))
            losses.append(Losses(link.backend, stop - start, tuple(pairs), pairs=pairs))
        return values, losses

    def to_host(self, name: str, value: Any) -> np.ndarray:
        """One output in host memory."""
        return self._makers[name].backend.to_host(value)

    def _inputs(
        self,
        link: Link,
        feed: Feed,
        values: Mapping[str, Any],
        start: int,
        stop: int,
        orders: Mapping[tuple[int, Device], Any] | None,
    ) -> tuple[Any, ...]:
        found = []
        for name, (_, device) in link.segment.inputs.items():
            if name in feed.columns:
                order = orders[id(link.backend), device] if orders is not None else None
                found.append(link.backend.rows(feed.columns[name], start, stop, order))
            else:
                found.append(_carry(values[name], self._makers[name], link, device))
        return tuple(found)


def _carry(value: Any, source: Link, target: Link, device: Device) -> Any:
    """A value of one segment for another: moved within a backend, else through host memory, with a copy of its own."""
    if source.backend is target.backend:
        return target.backend.move(value, device)
    return target.backend.from_host(source.backend.to_host(value), device)


def _at_once(
    backend: ComputingBackend,
    program: Stepping,
    columns: Sequence[Any],
    orders: Sequence[Any],
    labels: tuple[str, ...],
    start: int,
    count: int,
    batch: int,
) -> list[Losses]:
    return [Losses(backend, batch, labels, program.steps(columns, orders, start, count, batch))]


def _groups(links: Sequence[Link]) -> list[ParameterGroup]:
    return list({group.name: group for link in links for group in link.segment.groups}.values())
