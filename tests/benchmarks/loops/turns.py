"""A turn: two epochs, of which the second counts: since the last turn others have used the processor's caches."""

from __future__ import annotations

import time
from collections.abc import Callable

Turn = Callable[[], float]


def second_of_two(epoch: Callable[[], object]) -> Turn:
    """A turn of a loop; it returns seconds."""

    def turn() -> float:
        epoch()
        began = time.perf_counter()
        epoch()
        return time.perf_counter() - began

    return turn
