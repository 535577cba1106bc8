"""Whole steps of a program: those that are compiled, then the others one by one over rows gathered ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from typing import Any

import torch
from torch import Tensor, split

from anyaccel_torch.eager_steps import EagerSteps, gathered_blocks
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.step_compiler import BLOCK_BYTES, StepCompiler

AHEAD_STEPS = 64
"""Steps whose rows are gathered together; their memory is bounded by bytes, too."""


class RowsAhead:
    """The batches of a program's calls over columns that do not change between calls.

    Rows gathered for later steps are used by a call that continues where the last one ended, over the same columns and
    orders, and dropped otherwise.

    Args:
        max_bytes: Maximum bytes of the rows that are gathered together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Drop the gathered rows."""
        self._of: tuple[Tensor, ...] = ()
        self._next, self._batch, self._ahead = 0, 0, 0
        self._batches: Iterator[tuple[Tensor, ...]] = iter(())

    def take(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Return a batch of each column for each step: rows `order[start + i * batch :][:batch]`."""
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


class WholeSteps:
    """Forward, backward and update of many steps in one call.

    Args:
        label: Label of the segment.
        eager: Steps without compilation.
        compiler: Compiler with the compiled steps.
        losses: Losses of the segment.
        empty_slots: Slots after the inputs in a list of values.
        device: Device of a table without steps.
    """

    def __init__(
        self,
        label: str,
        eager: EagerSteps,
        compiler: StepCompiler,
        losses: Sequence[BoundLoss],
        empty_slots: list[Any],
        device: torch.device | None,
    ) -> None:
        self._label, self._eager, self._compiler, self._device = label, eager, compiler, device
        self._empty_slots = empty_slots
        self._n_losses = len(losses)
        self._width = len(losses) + sum(loss.total_weight is not None for loss in losses)
        self._rows = RowsAhead(BLOCK_BYTES)

    def run(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int,
    ) -> Tensor:
        """Return the table of `n_steps` steps; see `TorchProgram.train_steps`."""
        with translate_errors(f"a training step of {batch_size} rows in segment {self._label!r}"):
            done, tables = self._compiler.run(columns, orders, start, n_steps, batch_size, n_microbatches)
            if done == n_steps and tables:
                return torch.cat(tables) if len(tables) > 1 else tables[0]
            started, on_processor = time.perf_counter(), time.process_time()
            first = start + done * batch_size
            losses = self._run_eager(columns, orders, first, n_steps - done, batch_size, n_microbatches)
            seconds, on_processor = time.perf_counter() - started, time.process_time() - on_processor
            self._compiler.record_eager_time(seconds, on_processor, max(1, n_steps - done), batch_size)
            table = self.loss_table(losses)
            return torch.cat([*tables, table]) if tables else table

    def run_and_notify(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        tell: Callable[[Callable[[], Tensor]], bool],
        n_microbatches: int,
    ) -> Tensor:
        """Run steps uncompiled; `tell` receives a function for the table of each step, and returns whether it was the
        last.
        """

        def after_step(losses: list[Tensor]) -> bool:
            return tell(partial(self.loss_table, losses))

        with translate_errors(f"a training step of {batch_size} rows in segment {self._label!r}"):
            losses = self._run_eager(columns, orders, start, n_steps, batch_size, n_microbatches, after_step)
            table = self.loss_table(losses)
        if len(table) < n_steps:
            self.clear()
        return table

    def clear(self) -> None:
        """Forget rows that were gathered ahead."""
        self._rows.clear()

    def _run_eager(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int,
        after_step: Callable[[list[Tensor]], bool] | None = None,
    ) -> list[Tensor]:
        rows = self._rows.take(columns, orders, start, n_steps, batch_size)
        batches = ([*batch, *self._empty_slots] for batch in rows)
        try:
            return self._eager.run(batches, n_microbatches, after_step)
        except BaseException:
            self._rows.clear()
            raise

    def loss_table(self, losses: list[Tensor]) -> Tensor:
        """Return losses and weights of all steps, flat -> [n_steps, n_losses + n_weights] on the device of the first
        loss.
        """
        if not losses:
            return torch.empty(0, self._width, device=self._device)
        if len(losses) == 1:
            return losses[0].reshape(1, 1)
        columns = [torch.stack(losses[i :: self._width]) for i in range(self._width)]
        device, dtype = columns[0].device, reduce(torch.promote_types, (column.dtype for column in columns))
        return torch.stack([column.to(device, dtype) for column in columns], dim=1)
