"""The scalars that change from step to step: computed ahead on the host, and kept on the device between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Tables = Mapping[str, Mapping[str, np.ndarray]]
"""By owner, the scalars of its update rule for some steps, float64 [steps] each."""

ROWS = 8192
"""Steps whose scalars are kept on a device."""
_MAX_COUNTS = 64  # call lengths that are kept on a device


class StepCursor:
    """The position of the steps of one `train_steps` call.

    Attributes:
        start: First row of the next step, as a position in the order.
        draw: Number of the next random draw.
        batch_size: Rows of a step; the next step starts that much later.
        n_microbatches: Draws of a step.
        remaining: Steps from `start` to the end of the order, at least those of the call.
        steps_taken: Optimizer steps so far, by owner.
        device_scalars: Scalars that stay on the device from call to call.
    """

    def __init__(
        self,
        *,
        start: int,
        draw: int,
        batch_size: int,
        n_microbatches: int,
        remaining: int,
        steps_taken: Mapping[str, int],
        table: Callable[[int, int], Tables],
        device_scalars: DeviceScalars,
    ) -> None:
        self.start, self.draw = start, draw
        self.batch_size, self.n_microbatches = batch_size, n_microbatches
        self.remaining, self.steps_taken = remaining, dict(steps_taken)
        self.device_scalars = device_scalars
        self._table = table
        self._n_done = 0

    def table(self, n_steps: int) -> Tables:
        """Return the scalars of the next steps."""
        return self._table(self._n_done, n_steps)

    def scalars(self, behind: int = 0) -> dict[str, Any]:
        """Return the scalars of the next step as Python numbers: `start`, `draw`, and `coefficients` by owner and name.

        Optimizers are `behind` steps behind.
        """
        coefficients = {
            owner: {name: float(column[0]) for name, column in columns.items()}
            for owner, columns in self._table(self._n_done - behind, 1).items()
        }
        return {"start": self.start, "draw": self.draw, "coefficients": coefficients}

    def advance(self, n_steps: int) -> None:
        """Move past some steps."""
        self.start += n_steps * self.batch_size
        self.draw += n_steps * self.n_microbatches
        self.remaining -= n_steps
        self.steps_taken = {owner: steps + n_steps for owner, steps in self.steps_taken.items()}
        self._n_done += n_steps


class DeviceScalars:
    """The scalars of a program on its device, so that a call that continues the previous one transfers nothing.

    They are transferred again if a call does not continue the last one: at the beginning of an epoch, and when the
    table is used up.

    Attributes:
        n_transfers: Number of arrays transferred so far.
    """

    def __init__(self) -> None:
        self.n_transfers = 0
        self._position: Any = None
        self._expected: tuple[int, ...] | None = None
        self._table: Any = None
        self._table_start: dict[str, int] | None = None
        self._table_rows = 0
        self._counts: dict[int, Any] = {}
        self._key: tuple[Any, Any] = (None, None)

    def prepare(self, cursor: StepCursor, n_steps: int, to_device: Callable[[np.ndarray], Any]) -> tuple[Any, Any, Any]:
        """Return the scalar arguments of a compiled function of `n_steps` steps.

        Args:
            cursor: Position of the steps.
            n_steps: Number of steps, at most `ROWS`.
            to_device: Function that moves an int64 or float64 array to the device, in the framework's own precision.

        Returns:
            The position, integers [5]: start, draw, row of the table, batch size, number of micro-batches; the table, a
            tree like `StepCursor.table` with arrays [ROWS]; and `n_steps` as a scalar.
        """
        row = self._table_row(cursor)
        continues = self._expected == (cursor.start, cursor.draw, row, cursor.batch_size, cursor.n_microbatches)
        needed = n_steps if continues else min(ROWS, max(cursor.remaining, n_steps))
        if row is None or row + needed > self._table_rows:
            row = 0
            self._fill(cursor, max(n_steps, min(ROWS, cursor.remaining)), to_device)
        position = (cursor.start, cursor.draw, row, cursor.batch_size, cursor.n_microbatches)
        if self._expected != position:
            self._position, self._expected = self._transfer(np.array(position, np.int64), to_device), position
        return self._position, self._table, self._count(n_steps, to_device)

    def advance(self, cursor: StepCursor, n_steps: int, position: Any) -> None:
        """Store the position after some steps, as the compiled function returned it, and advance the cursor."""
        assert self._expected is not None
        start, draw, row, batch_size, n_microbatches = self._expected
        self._position = position
        self._expected = (
            start + n_steps * batch_size,
            draw + n_steps * n_microbatches,
            row + n_steps,
            batch_size,
            n_microbatches,
        )
        cursor.advance(n_steps)

    def invalidate(self) -> None:
        """Transfer everything again, after a failed call."""
        self._expected = self._table_start = None

    def key(self, key: Any, to_device: Callable[[Any], Any]) -> Any:
        """Return a random key on the device; transferred once."""
        if self._key[0] is not key:
            self._key = (key, self._transfer(key, to_device))
        return self._key[1]

    def _table_row(self, cursor: StepCursor) -> int | None:
        """Return the row of the table for the next step; None where the table does not have it."""
        if self._table_start is None or self._table_start.keys() != cursor.steps_taken.keys():
            return None
        rows = {cursor.steps_taken[owner] - first for owner, first in self._table_start.items()} or {0}
        return rows.pop() if len(rows) == 1 and min(rows) >= 0 else None

    def _fill(self, cursor: StepCursor, n_steps: int, to_device: Callable[[np.ndarray], Any]) -> None:
        def padded(column: np.ndarray) -> Any:
            whole = np.zeros(ROWS)
            whole[:n_steps] = column
            return self._transfer(whole, to_device)

        self._table = {
            owner: {name: padded(column) for name, column in columns.items()}
            for owner, columns in cursor.table(n_steps).items()
        }
        self._table_start, self._table_rows, self._expected = dict(cursor.steps_taken), n_steps, None

    def _count(self, n_steps: int, to_device: Callable[[np.ndarray], Any]) -> Any:
        if n_steps not in self._counts:
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.clear()
            self._counts[n_steps] = self._transfer(np.array(n_steps, np.int64), to_device)
        return self._counts[n_steps]

    def _transfer(self, array: Any, to_device: Callable[[Any], Any]) -> Any:
        self.n_transfers += 1
        return to_device(array)
