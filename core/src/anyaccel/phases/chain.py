"""A chain of programs: the segments of a graph at work, values and cotangents carried between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyaccel.backend import ComputingBackend, Stepping
from anyaccel.device import Device
from anyaccel.phases.links import Link, Losses
from anyaccel.phases.loading import Feed
from anyaccel.phases.steps import Wires
from anyaccel.segment import NodeState


class Chain:
    """The links of one phase, in the order of computation."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._makers = {name: link for link in links for name in link.segment.outputs}
        self._wires = Wires(self._links)
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
                    ordered = order.astype(link.backend.index_dtype, copy=False)
                    found[id(link.backend), device] = link.backend.from_host(ordered, device)
        return found

    def stepper(self, feed: Feed, orders: Mapping[tuple[int, Device], Any]) -> Callable[[int, int, int], list[Losses]]:
        """A function of (start, count, batch) that trains `count` steps, with everything looked up beforehand.

        No closure: the frames of an error would hold it, and with it the columns, for as long as the error is kept.
        """
        if self._stepping is None:
            return partial(self._wires.train, self._wires.fed(feed, orders))
        link, program = self._links[0], self._stepping
        names = tuple(link.segment.inputs)
        columns = tuple(feed.columns[name] for name in names)
        mine = tuple(orders[id(link.backend), link.segment.inputs[name][1]] for name in names)
        labels = tuple(term.label for term in link.segment.losses)
        return partial(_at_once, link.backend, program, columns, mine, labels)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, feed: Feed, start: int, stop: int) -> tuple[dict[str, Any], list[Losses]]:
        """Outputs by value name and losses of some rows, in evaluation mode; all left on the devices."""
        return self._wires.evaluate(self._wires.fed(feed, None), start, stop)

    def to_host(self, name: str, value: Any) -> np.ndarray:
        """One output in host memory."""
        return self._makers[name].backend.to_host(value)


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
