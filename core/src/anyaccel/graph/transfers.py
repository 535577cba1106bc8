"""What crosses from one device or framework to another in every step, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

from anyaccel.backend import Backend, ComputingBackend
from anyaccel.device import Device
from anyaccel.graph.plan import Assignment, Crossing
from anyaccel.graph.shape_inference import Shapes, is_floating
from anyaccel.segment import LossTerm, Operation, Segment


@dataclass(frozen=True, slots=True)
class Crossings:
    """Finds the crossings of a phase.

    `assigned` says where each node is, `backends` by whom it is computed, and `live` names the values through which
    gradients flow.
    """

    assigned: Mapping[str, Assignment]
    backends: Mapping[str, ComputingBackend]
    shapes: Shapes
    live: Set[str]

    def of(self, segments: Iterable[Segment]) -> Iterator[Crossing]:
        """All crossings, segments in order; each value once for every place that it goes to, each gradient as often."""
        homes: dict[str, str] = {}
        for segment in segments:
            homes.update({name: one.label for one in segment.operations for name in one.outputs})
            found: dict[tuple[str, Device], Crossing] = {}
            for target, taker in _takers(segment):
                for name in dict.fromkeys(taker.inputs):
                    self._cross(name, homes.get(name, target), target, taker, found)
            yield from found.values()
            yield from self._gradients(segment, found)

    def _cross(
        self,
        name: str,
        source: str,
        target: str,
        taker: Operation | LossTerm,
        found: dict[tuple[str, Device], Crossing],
    ) -> None:
        one, other = self.assigned[source], self.assigned[target]
        if one.device == other.device and one.framework == other.framework:
            return
        way = route(self.backends[source], one.device, self.backends[target], other.device)
        if way == "share" and isinstance(taker, Operation) and self._writes(target, taker):
            way = "copy"
        before = found.get((name, other.device))
        if before is None:
            nbytes = self.shapes.specs[name].nbytes
            found[name, other.device] = Crossing(name, source, target, one.device, other.device, way, nbytes)
        elif way == "copy":
            found[name, other.device] = replace(before, route=way)

    def _writes(self, target: str, taker: Operation) -> bool:
        specs = self.shapes.wanted(target)
        return taker.model is not None and self.backends[target].mutates_inputs(taker.model, specs)

    def _gradients(self, segment: Segment, found: Mapping[tuple[str, Device], Crossing]) -> Iterator[Crossing]:
        """The way back, for values whose takers let gradients through."""
        back = {
            (name, taker.device)
            for _, taker in _takers(segment)
            if isinstance(taker, LossTerm) or not self.live.isdisjoint(taker.outputs)
            for name in taker.inputs
        }
        for key, one in found.items():
            floating = is_floating(self.shapes.specs[one.value].dtype)
            if floating and one.value in self.live and key in back:
                maker, taker = self.backends[one.source], self.backends[one.target]
                yield Crossing(
                    one.value,
                    one.target,
                    one.source,
                    one.destination,
                    one.origin,
                    route(taker, one.destination, maker, one.origin),
                    one.nbytes,
                    gradient=True,
                )


def _takers(segment: Segment) -> Iterator[tuple[str, Operation | LossTerm]]:
    for operation in segment.operations:
        yield operation.label, operation
    for term in segment.losses:
        yield term.on, term


Route = Literal["move", "share", "copy", "host"]
"""`move` is within one framework, `share` hands over memory that both can use, `copy` is the same with a copy on the
device for a node that may write to it, and `host` goes through host memory."""


def route(source: Backend, origin: Device, target: Backend, destination: Device) -> Route:
    """The cheapest way for a value that nobody writes to."""
    if source.framework == target.framework:
        return "move"
    space = source.device_info(origin).memory_space
    return "share" if space and space == target.device_info(destination).memory_space else "host"
