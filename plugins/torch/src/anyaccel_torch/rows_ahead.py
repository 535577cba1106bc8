"""Rows ahead: batches of consecutive calls, gathered for many steps at once also where each call does a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from torch import Tensor, split

from anyaccel_torch.eager_steps import gathered_blocks

AHEAD_STEPS = 64
"""Steps whose rows are gathered together; their memory is bounded by bytes, too."""


class RowsAhead:
    """The batches of a program's calls over columns that stay as they are between calls.

    What was gathered for later steps is used by a call that goes on where the last one ended, over the same columns and
    orders, and dropped otherwise.

    Args:
        max_bytes: of the rows that are gathered at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Drop what was gathered."""
        self._of: tuple[Tensor, ...] = ()
        self._next, self._batch, self._ahead = 0, 0, 0
        self._batches: Iterator[tuple[Tensor, ...]] = iter(())

    def take(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """A batch of each column for each step: rows `order[start + i * batch :][:batch]`."""
        if n_steps >= AHEAD_STEPS:
            self.clear()
            return self._gathered(columns, orders, start, n_steps, batch)
        goes_on = start == self._next and batch == self._batch and n_steps <= self._ahead
        if not goes_on or not _same(self._of, (*columns, *orders)):
            self._of, self._batch = (*columns, *orders), batch
            left = min((len(order) for order in orders), default=0) - start
            self._ahead = max(n_steps, min(AHEAD_STEPS, left // batch))
            self._batches = self._gathered(columns, orders, start, self._ahead, batch)
        self._next, self._ahead = start + n_steps * batch, self._ahead - n_steps
        batches = islice(self._batches, n_steps)
        if not self._ahead:  # what reads them drops the rows
            self.clear()
        return batches

    def _gathered(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int
    ) -> Iterator[tuple[Tensor, ...]]:
        for block in gathered_blocks(columns, orders, start, start + n_steps * batch, batch, self._max_bytes):
            yield from zip(*[split(column, batch) for column in block], strict=True)


def _same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether these are the same objects."""
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
