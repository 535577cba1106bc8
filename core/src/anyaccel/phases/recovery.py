"""Recovery: what is done when a device runs out of memory, from a snapshot and step by step, or not at all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from anyaccel.errors import EstimatorError, OutOfMemoryError
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.loss_accumulator import Tally
from anyaccel.phases.traceback_cleanup import forget

_SHARE = 0.002
"""The part of a loop's time that snapshots may take. They also drive what steps use out of the caches."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where an epoch can be taken up again."""

    done: int
    losses: int
    snapshot: Any


class Marks:
    """Snapshots of one epoch: at its start, and then as often as they cost little of the time.

    Args:
        chain: the programs.
        within: whether the epoch can be taken up at any step, or only at its start.
    """

    def __init__(self, chain: Chain, within: bool) -> None:
        self._chain, self._within = chain, within
        self._mark: _Mark | None = None
        self._cost, self._taken = 0.0, 0.0
        self._refrained = False

    def begin(self) -> None:
        """An epoch begins."""
        self._take(0, 0)

    def pass_by(self, done: int, tally: Tally) -> None:
        """So many steps are done: remember them if it is time."""
        if self._within and self._mark is not None and time.perf_counter() - self._taken > self._cost / _SHARE:
            self._take(done, len(tally))

    def _take(self, done: int, losses: int) -> None:
        if self._refrained:
            return
        began = time.perf_counter()
        self._mark = None  # the old one makes room
        try:
            self._mark = _Mark(done, losses, self._chain.snapshot())
        except (OutOfMemoryError, EstimatorError) as error:  # there is no copy: what fails later fails for good
            forget(error)
        self._taken = time.perf_counter()
        self._cost = self._taken - began

    def go_back(self, tally: Tally) -> int | None:
        """Be where the last snapshot was taken; None if there is none. Gives the steps that are done then."""
        if self._mark is None:
            return None
        self._chain.restore(self._mark.snapshot)
        tally.cut(self._mark.losses)
        return self._mark.done

    def refrain(self) -> bool:
        """Take no more snapshots, which need room themselves; False if that is so already."""
        had, self._refrained, self._mark = not self._refrained, True, None
        return had

    def end(self) -> None:
        """Forget the snapshot."""
        self._mark = None
