"""A chain of programs: the segments of a graph at work, values and cotangents carried between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import MultiStepProgram
from anyaccel.device import Device
from anyaccel.phases.executor.cross_segment import Orders, Wires
from anyaccel.phases.executor.links import Link, Losses
from anyaccel.phases.executor.stepper import Stepper
from anyaccel.phases.loading.device_columns import Feed
from anyaccel.phases.loading.epoch_batches import Lane, Turn
from anyaccel.segment import NodeState

if TYPE_CHECKING:
    from anyaccel.phases.estimator_partial_fit import Learners


class Chain:
    """The links of one phase, in the order of computation."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._makers = {name: link for link in links for name in link.segment.outputs}
        self._wires = Wires(self._links)
        only = links[0].program if len(links) == 1 else None
        self._stepping = only if isinstance(only, MultiStepProgram) else None
        self._learners: Learners | None = None

    @property
    def links(self) -> tuple[Link, ...]:
        """The segments at work."""
        return self._links

    @property
    def stepping(self) -> bool:
        """Whether whole steps are one call."""
        return self._stepping is not None

    @property
    def compiles(self) -> bool:
        """Whether any of the programs has something to compile its steps with."""
        kinds = [type(link.program) for link in self._links]
        return any(
            issubclass(kind, MultiStepProgram) and kind.estimate_compile is not MultiStepProgram.estimate_compile
            for kind in kinds
        )

    # -- the whole -------------------------------------------------------------------------------------------------

    def seed(self, key: int) -> None:
        """Restart the random streams of all programs."""
        for link in self._links:
            link.program.seed(key)

    def teach(self, learners: Learners) -> None:
        """Let estimators learn from every training step; from now on steps are taken one by one."""
        self._learners, self._stepping = learners, None
        self._wires.watcher = partial(learners.step, to_host=self.to_host)

    def snapshot(self) -> tuple[Any, list[Any]]:
        """Everything a step changes.

        Raises:
            EstimatorError: an estimator that learns cannot be copied.
        """
        taught = None if self._learners is None else self._learners.snapshot()
        return taught, [link.program.snapshot() for link in self._links]

    def restore(self, snapshot: tuple[Any, Sequence[Any]]) -> None:
        """Go back to a snapshot."""
        taught, parts = snapshot
        if self._learners is not None:
            self._learners.restore(taught)
        for link, part in zip(self._links, parts, strict=True):
            link.program.restore(part)

    def publish(self, states: MutableMapping[str, NodeState]) -> None:
        """Let the user's models, and `states`, hold the values of now."""
        for link in self._links:
            link.program.sync_models()
            states.update(link.program.optimizer_states())

    def release(self, states: MutableMapping[str, NodeState]) -> None:
        """End all programs: the user's models hold the result, and `states` receives the optimizer state by node.

        Every program is released, whatever one raises, and once more where an interrupt came in between: models must
        not be left with values of two steps. The first failure is raised at the end.
        """
        self._learners = self._wires.watcher = None  # a circle: it would keep the programs until it is collected
        failures: list[BaseException] = []
        for link in self._links:
            for _ in range(2):
                try:
                    states.update(link.program.close())
                    break
                except Exception as failure:
                    failures.append(failure)
                    break
                except BaseException as interrupt:
                    failures.append(interrupt)
        if failures:
            raise failures[0]

    # -- steps -----------------------------------------------------------------------------------------------------

    def order(self, feed: Feed, orders: Mapping[Lane, np.ndarray]) -> Orders:
        """An epoch's orders on every device that has columns of their lanes: the only transfer of the epoch."""
        found: dict[tuple[Lane, int, Device], Any] = {}
        sent: dict[tuple[int, int, Device], Any] = {}  # one sampler gives every feature set the same
        for link in self._links:
            for name, (_, device) in link.segment.inputs.items():
                order = orders.get(feed.lane(name)) if name in feed.columns else None
                if order is None:
                    continue
                key = (id(order), id(link.backend), device)
                if key not in sent:
                    ordered = order.astype(link.backend.index_dtype, copy=False)
                    sent[key] = link.backend.from_host(ordered, device)
                found[feed.lane(name), id(link.backend), device] = sent[key]
        return found

    def turner(self, feed: Feed, orders: Orders) -> Callable[[Turn, int | None], list[Losses]]:
        """A function that trains one step on rows of some feature sets, at most so many at once."""
        return partial(self._wires.turn, self._wires.fed(feed, orders))

    def trier(self, feed: Feed, orders: Orders) -> Callable[[Turn], None]:
        """A function that trains one step on rows of some feature sets and shows nobody; go back to a snapshot."""
        return partial(self._wires.attempt, self._wires.fed(feed, orders))

    def stepper(self, feed: Feed, orders: Orders) -> Stepper:
        """What trains steps over some rows, with everything looked up beforehand."""
        plain = partial(self._wires.train, self._wires.fed(feed, orders))
        if self._stepping is None:
            return Stepper(plain)
        link, program = self._links[0], self._stepping
        names = tuple(link.segment.inputs)
        columns = tuple(feed.columns[name] for name in names)
        mine = tuple(orders[feed.lane(name), id(link.backend), link.segment.inputs[name][1]] for name in names)
        labels = tuple(term.label for term in link.segment.losses)
        return Stepper(plain, link, program, columns, mine, labels)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluator(self, feed: Feed, orders: Orders) -> Callable[[Turn], tuple[dict[str, Any], list[Losses]]]:
        """A function of rows that gives outputs by value name and losses, in evaluation mode, left on the devices.

        Outputs that need rows which are not given are None.
        """
        return partial(self._wires.evaluate, self._wires.fed(feed, orders))

    def to_host(self, name: str, value: Any) -> np.ndarray:
        """One output in host memory."""
        return self._makers[name].backend.to_host(value)
