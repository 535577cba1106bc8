"""StepCursor: the numbers that change from step to step, known before the steps are, and kept on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Tables = Mapping[str, Mapping[str, np.ndarray]]
"""By owner, the scalars of its optimizer over some steps, float64 [steps] each."""

ROWS = 8192
"""Rows of the table of scalars that is kept on a device."""
_COUNTS = 64  # of steps in a call: the scalars of so many are kept on a device


class StepCursor:
    """What a call of some steps is told in numbers.

    Attributes:
        start: the first row in the order.
        draw: the number of the first draw of random numbers.
        batch: rows of a step; the next one starts so many later.
        parts: draws of a step.
        left: steps from `start` to the end of the order; at least those of the call.
        taken: the steps that each owner has taken.
        shelf: what is kept on the device from call to call.
    """

    def __init__(
        self,
        start: int,
        draw: int,
        batch: int,
        parts: int,
        left: int,
        taken: Mapping[str, int],
        table: Callable[[int, int], Tables],
        shelf: DeviceScalars,
    ) -> None:
        self.start, self.draw = start, draw
        self.batch, self.parts = batch, parts
        self.left, self.taken = left, dict(taken)
        self.shelf = shelf
        self._table = table
        self._done = 0

    def table(self, count: int) -> Tables:
        """The scalars of the next steps."""
        return self._table(self._done, count)

    def scalars(self) -> dict[str, Any]:
        """The numbers of the next step, as plain numbers."""
        tables = self.table(1)
        found = {owner: {key: float(one[0]) for key, one in there.items()} for owner, there in tables.items()}
        return {"start": self.start, "draw": self.draw, "coefficients": found}

    def advance(self, count: int) -> None:
        """So many steps are done."""
        self.start += count * self.batch
        self.draw += count * self.parts
        self.left -= count
        self.taken = {owner: steps + count for owner, steps in self.taken.items()}
        self._done += count


class DeviceScalars:
    """The numbers of a program on its device, so that calls that follow each other need not send any.

    What the device has is sent anew where a call does not go on from the last one: at the beginning of an epoch, and
    when a table of scalars is used up.

    Attributes:
        sent: how many arrays were sent.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._numbers: Any = None
        self._wanted: tuple[int, ...] | None = None
        self._scalars: Any = None
        self._base: dict[str, int] | None = None
        self._filled = 0
        self._counts: dict[int, Any] = {}
        self._key: tuple[Any, Any] = (None, None)

    def prepare(self, cursor: StepCursor, count: int, put: Callable[[np.ndarray], Any]) -> tuple[Any, Any, Any]:
        """What a function of `count` steps is given.

        Args:
            cursor: where the steps stand.
            count: how many they are, at most `ROWS`.
            put: an array, int64 or float64, on the device, in the framework's own precision.

        Returns:
            numbers, [5] of the framework's integers: start, draw, row of the table, batch, and parts; the table, a tree
            like `StepCursor.table` with arrays [ROWS]; and the count, a scalar.
        """
        offset = self._offset(cursor)
        follows = self._wanted == (cursor.start, cursor.draw, offset, cursor.batch, cursor.parts)
        needed = count if follows else min(ROWS, max(cursor.left, count))
        if offset is None or offset + needed > self._filled:
            offset = 0
            self._fill(cursor, max(count, min(ROWS, cursor.left)), put)
        wanted = (cursor.start, cursor.draw, offset, cursor.batch, cursor.parts)
        if self._wanted != wanted:
            self._numbers, self._wanted = self._put(np.array(wanted, np.int64), put), wanted
        return self._numbers, self._scalars, self._count(count, put)

    def advance(self, cursor: StepCursor, count: int, numbers: Any) -> None:
        """Keep what a function gave for the numbers of the steps after it, and let the cursor go on."""
        assert self._wanted is not None
        start, draw, offset, batch, parts = self._wanted
        self._numbers = numbers
        self._wanted = (start + count * batch, draw + count * parts, offset + count, batch, parts)
        cursor.advance(count)

    def invalidate(self) -> None:
        """A call has failed: nothing is known of what is on the device."""
        self._wanted = self._base = None

    def key(self, key: Any, put: Callable[[Any], Any]) -> Any:
        """A random key on the device; sent once."""
        if self._key[0] is not key:
            self._key = (key, self._put(key, put))
        return self._key[1]

    def _offset(self, cursor: StepCursor) -> int | None:
        """The row of the table that the next step takes; None if it has none."""
        if self._base is None or self._base.keys() != cursor.taken.keys():
            return None
        apart = {cursor.taken[owner] - first for owner, first in self._base.items()} or {0}
        return apart.pop() if len(apart) == 1 and min(apart) >= 0 else None

    def _fill(self, cursor: StepCursor, count: int, put: Callable[[np.ndarray], Any]) -> None:
        def padded(column: np.ndarray) -> Any:
            whole = np.zeros(ROWS)
            whole[:count] = column
            return self._put(whole, put)

        tables = cursor.table(count)
        self._scalars = {owner: {key: padded(one) for key, one in there.items()} for owner, there in tables.items()}
        self._base, self._filled, self._wanted = dict(cursor.taken), count, None

    def _count(self, count: int, put: Callable[[np.ndarray], Any]) -> Any:
        if count not in self._counts:
            if len(self._counts) >= _COUNTS:
                self._counts.clear()
            self._counts[count] = self._put(np.array(count, np.int64), put)
        return self._counts[count]

    def _put(self, array: Any, put: Callable[[Any], Any]) -> Any:
        self.sent += 1
        return put(array)
