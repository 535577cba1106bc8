"""Pace: how many steps one call takes, so that progress and Ctrl-C need not wait for long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from anyaccel.phases.executor.links import Losses

# Half a second is the limit, this the aim.
_AIM_SECONDS = 0.2
_NAP_SECONDS = 0.0005


class Pace:
    """How many steps one call should take: few at first, then as many as the aimed time holds."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._count = 1

    def next(self) -> int:
        """Steps for the next call."""
        return self._fixed or self._count

    def took(self, count: int, seconds: float) -> None:
        """Learn from a call. Grows by doubling only: the first calls are slow and say little.

        A power of two, as some frameworks compile something small for every number that they meet.

        A call of fewer steps, as at the end of an epoch, says nothing unless it was too slow.
        """
        if count < self._count and seconds <= _AIM_SECONDS:
            return
        fitting = int(count * _AIM_SECONDS / max(seconds, 1e-9))
        self._count = min(self._count * 2, 1 << max(fitting.bit_length() - 1, 0))

    @property
    def most(self) -> int:
        """The most steps that a call may ever take: 1 where every step is to be seen."""
        return self._fixed or 2**31


class Flight:
    """Calls that were asked for and are not done: at most two, as some frameworks give back what is still computed.

    Nothing waits for a device: it is asked now and then whether a call is done, while the next one lies ready there.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Sequence[Losses], int, float]] = deque()
        self._landed = 0.0

    def launched(self, losses: Sequence[Losses], count: int, began: float) -> Iterator[tuple[int, float]]:
        """A call of `count` steps was asked for; gives the steps and seconds of each call that is done by now."""
        self._calls.append((losses, count, began))
        while self._calls:
            while not all(one.is_ready() for one in self._calls[0][0]):
                if len(self._calls) < 2:
                    return
                time.sleep(_NAP_SECONDS)
            yield self._land()

    def over(self) -> Iterator[tuple[int, float]]:
        """As `launched`, of the calls that are left when all losses have been read: what comes then is not theirs."""
        while self._calls:
            yield self._land()

    def _land(self) -> tuple[int, float]:
        _, steps, start = self._calls.popleft()
        before, self._landed = self._landed, time.perf_counter()
        return steps, self._landed - max(start, before)

    def forget(self) -> None:
        """Calls that have failed."""
        self._calls.clear()
