"""Supplies: where the rows of a phase are while it runs, and the portions in which its programs get them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyaccel.phases.loading.device_columns import Feed
from anyaccel.phases.loading.epoch_batches import Lane
from anyaccel.phases.loading.epoch_plan import Pass, Work
from anyaccel.phases.loading.foreseen import Foreseen

Order = Callable[[Feed, Mapping[Lane, np.ndarray]], Any]
"""Puts orders on the devices that need them: `Chain.order`."""
Passes = Callable[[int], Pass]
"""What the epoch of a number takes."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows that are on their devices, and the steps that take them.

    Attributes:
        feed: the columns.
        orders: for each lane, on its devices.
        works: the steps, by rows of these orders.
        taken: the orders in host memory, as rows of the data.
    """

    feed: Feed
    orders: Any
    works: tuple[Work, ...]
    taken: Mapping[Lane, np.ndarray]


class Supply(ABC):
    """The rows of one phase, or of its validation."""

    residency: ClassVar[str]
    """`"resident"` or `"streamed"`."""
    steps: int | None
    """Steps of an epoch, None where they are not known beforehand."""
    repeats: ClassVar[bool] = True
    """Whether the steps of an epoch can be had again from any step on, and are the same."""

    @abstractmethod
    def portions(self, number: int, done: int, order: Order) -> Generator[Portion]:
        """The portions of an epoch, one after the other; close the generator when you leave it early.

        Args:
            number: of the epoch.
            done: steps of it that are done already, and left out.
            order: puts orders on devices.
        """

    def foresee(self, number: int | None) -> None:
        """Begin to draw the order of an epoch that will be asked for; None lets go of what was begun."""

    def shrink(self) -> bool:
        """Hold less on the devices at once; False if that cannot be."""
        return False

    def part(self, most: int) -> None:
        """Of steps that may be taken in parts (those of evaluations) hold at most so many rows at once."""

    def close(self) -> None:
        """Let go of what is held on devices."""


class Resident(Supply):
    """All rows on their devices, for good; an epoch costs one transfer, that of its order.

    Args:
        feed: the columns.
        passes: what an epoch of a number takes.
        steps: of an epoch.
    """

    residency = "resident"

    def __init__(self, feed: Feed, passes: Passes, steps: int) -> None:
        self.steps: int | None = steps
        self._feed: Feed | None = feed
        self._passes = passes
        self._known: tuple[Mapping[Lane, np.ndarray], Any] | None = None

    def portions(self, number: int, done: int, order: Order) -> Generator[Portion]:
        """One: everything. An order that is the same as before is there already."""
        assert self._feed is not None
        taken = self._passes(number)
        if self._known is None or self._known[0] is not taken.orders:
            self._known = taken.orders, order(self._feed, taken.orders)
        yield Portion(self._feed, self._known[1], taken.without(done).works, taken.orders)

    def foresee(self, number: int | None) -> None:
        """As of `Supply`."""
        foresee(self._passes, number)

    def close(self) -> None:
        """As of `Supply`."""
        self._feed = self._known = None


def foresee(passes: Passes, number: int | None) -> None:
    """Begin the pass of an epoch, where passes can be begun."""
    if isinstance(passes, Foreseen):
        passes.begin(number)
