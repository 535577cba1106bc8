"""Transfers: which values cross from one device or framework to another in every step, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.graph.plan_entries import Assignment, Crossing
from anyaccel.graph.shape_inference import Shapes, is_floating
from anyaccel.registry import Registry, registry
from anyaccel.segment import LossTerm, Operation, Segment

Route = Literal["move", "share", "copy", "host"]
"""`move` is within one framework, `share` gives the other framework the same memory, `copy` does so and copies on the
device, for a node that may write to it, and `host` goes through host memory."""


def route(
    source: Backend, origin: Device, target: Backend, destination: Device, known: Registry | None = None
) -> Route:
    """The cheapest route for a value that nobody writes to; `known` has the devices, by default the process's."""
    if source.framework == target.framework:
        return "move"
    ask = (known or registry()).ask  # a wrong answer names no memory space
    space, other = ask(source, "device_info", origin).memory_space, ask(target, "device_info", destination).memory_space
    return "share" if space and space == other else "host"


@dataclass(frozen=True, slots=True)
class Crossings:
    """Finds the crossings of a phase.

    Attributes:
        live: names of the values through which gradients flow.
        registry: has the devices; None for that of the process.
    """

    assigned: Mapping[str, Assignment]
    shapes: Shapes
    live: Set[str]
    registry: Registry | None = None

    def of(self, segments: Iterable[Segment]) -> Iterator[Crossing]:
        """All crossings, segments in order: each value once for each device that it goes to, and its gradient.

        Raises:
            GraphError: the gradient of a complex value would cross.
        """
        homes: dict[str, str] = {}
        for segment in segments:
            homes.update({name: operation.label for operation in segment.operations for name in operation.outputs})
            crossings: dict[tuple[str, Device], Crossing] = {}
            for target, taker in _takers(segment):
                for name in dict.fromkeys(taker.inputs):
                    self._add(crossings, name, homes.get(name, target), target, taker)
            yield from crossings.values()
            yield from self._gradients(segment, crossings)

    def _add(
        self,
        crossings: dict[tuple[str, Device], Crossing],
        name: str,
        source: str,
        target: str,
        taker: Operation | LossTerm,
    ) -> None:
        origin, destination = self.assigned[source], self.assigned[target]
        if origin.device == destination.device and origin.framework == destination.framework:
            return
        way = route(origin.backend, origin.device, destination.backend, destination.device, self.registry)
        if way == "share" and isinstance(taker, Operation) and self._writes(target, taker):
            way = "copy"
        before = crossings.get((name, destination.device))
        if before is None:
            crossings[name, destination.device] = Crossing(
                value=name,
                source=source,
                target=target,
                origin=origin.device,
                destination=destination.device,
                route=way,
                nbytes=self.shapes.specs[name].nbytes,
            )
        elif way == "copy":
            crossings[name, destination.device] = replace(before, route=way)

    def _writes(self, target: str, taker: Operation) -> bool:
        backend = self.assigned[target].backend
        arguments = (taker.arguments,) if taker.arguments else ()
        return taker.model is not None and backend.mutates_inputs(taker.model, self.shapes.wanted(target), *arguments)

    def _gradients(self, segment: Segment, crossings: Mapping[tuple[str, Device], Crossing]) -> Iterator[Crossing]:
        """The way back of values whose takers pass gradients on."""
        back = {
            (name, taker.device)
            for _, taker in _takers(segment)
            if isinstance(taker, LossTerm) or not self.live.isdisjoint(taker.outputs)
            for name in taker.inputs
        }
        for key, crossing in crossings.items():
            if crossing.value not in self.live or key not in back:
                continue
            dtype = self.shapes.specs[crossing.value].dtype
            if dtype.startswith("complex"):
                raise self._complex(crossing, dtype)
            if is_floating(dtype):
                maker, taker = self.assigned[crossing.source], self.assigned[crossing.target]
                yield replace(
                    crossing,
                    source=crossing.target,
                    target=crossing.source,
                    origin=crossing.destination,
                    destination=crossing.origin,
                    route=route(taker.backend, taker.device, maker.backend, maker.device, self.registry),
                    gradient=True,
                )

    def _complex(self, crossing: Crossing, dtype: str) -> GraphError:
        source, target = self.assigned[crossing.source], self.assigned[crossing.target]
        return GraphError(
            f"the gradient of {crossing.value!r} ({dtype}) cannot go back from {target.framework} on {target.device} "
            f"to {source.framework} on {source.device}: frameworks define gradients of complex numbers differently",
            hint=f"let {crossing.source!r} give real and imaginary parts as real numbers, or freeze it",
        )


def _takers(segment: Segment) -> Iterator[tuple[str, Operation | LossTerm]]:
    for operation in segment.operations:
        yield operation.label, operation
    for term in segment.losses:
        yield term.on, term
