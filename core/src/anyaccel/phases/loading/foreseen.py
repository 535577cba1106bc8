"""Foreseen passes: the order of the next epoch is drawn by a thread while this one runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from anyaccel.phases.loading.epoch_plan import Pass

WORTH_ROWS = 8192
"""Of fewer rows an order is drawn faster than a thread begins."""


class Foreseen:
    """What epochs take.

    Args:
        draw: what the epoch of a number takes.
        rows: that are drawn for an epoch; 0 where every epoch takes the same.
    """

    def __init__(self, draw: Callable[[int], Pass], rows: int) -> None:
        self._draw = draw
        self._worth = rows >= WORTH_ROWS
        self._next: _Drawn | None = None

    def __call__(self, number: int) -> Pass:
        """What the epoch of a number takes: as it was begun, else drawn now."""
        begun, self._next = self._next, None
        if begun is not None:
            begun.join()
        return begun.found() if begun is not None and begun.number == number else self._draw(number)

    def begin(self, number: int | None) -> None:
        """Begin to draw an epoch, if that is worth a thread; None waits for what was begun and forgets it."""
        begun, self._next = self._next, None
        if begun is not None:
            begun.join()
        if number is not None and self._worth:
            self._next = _Drawn(self._draw, number)
            self._next.start()


class _Drawn(threading.Thread):
    def __init__(self, draw: Callable[[int], Pass], number: int) -> None:
        super().__init__(name="anyaccel-order", daemon=True)
        self.number = number
        self._draw = draw
        self._found: Pass | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._found = self._draw(self.number)
        except BaseException as error:  # whoever waits for the pass must hear of it
            self._error = error

    def found(self) -> Pass:
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found
