"""Source loader: batches as a source gives them, or items as samplers draw them, on devices while they are needed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.backend import AsyncCopy
from anyaccel.data import BatchSource, MapSource
from anyaccel.data.arrow_columns import Pad
from anyaccel.data.streaming.random_states import States, imported_backends, same_states
from anyaccel.data.streaming.source_errors import BatchPosition, error_context
from anyaccel.errors import SourceError
from anyaccel.graph import Column
from anyaccel.phases.loading.epoch_plan import EpochPlan, EpochSteps, StepBlock, StepRange, accumulating_step
from anyaccel.phases.loading.host_columns import Batch, TargetRange, copy_batch, one_shape, row_shape
from anyaccel.phases.loading.loader import (
    BatchLoader,
    Chunk,
    Sample,
    SourcePosition,
    is_close,
    load_orders,
    sample_rows,
    stream_of,
    with_orders,
)
from anyaccel.phases.loading.prefetch import on_demand, prefetch
from anyaccel.phases.loading.streaming import BUFFERS, CopiedBuffers, StreamingLoader, arrived
from anyaccel.user_level import user_level

BLOCK_SECONDS = 0.05
"""A block is handed over after so long, however little it holds: the device must not wait for a slow source."""


@dataclass(slots=True)
class HostBuffers(CopiedBuffers):
    """Host memory for one block, with what losses take as targets.

    `flat` is memory by value name, for columns whose shape is not that of the block before.
    """

    columns: list[tuple[Column, np.ndarray, TargetRange | None]] = field(default_factory=list)
    capacity: int = 0
    flat: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(slots=True)
class _Block:
    """Batches that are copied together: how many rows each has, and how many all columns have."""

    sizes: list[int]
    n_rows: int
    copies: dict[str, AsyncCopy]
    sample: Sample


class SourceLoader(BatchLoader):
    """A loader of a source, whose position a checkpoint keeps."""

    residency = "streamed"
    _progress: SourceProgress

    def keep_positions(self) -> None:
        self._progress.keeps_samples = True

    def position(self, epoch: int, step: int) -> SourcePosition:
        return self._progress.position(epoch, step)

    def go_on(self, position: SourcePosition) -> None:
        self._progress.resumed = position


class BatchSourceLoader(SourceLoader):
    """Load the batches of a source, several in one block.

    A block holds whole steps: as many as arrive within `BLOCK_SECONDS` and fit into its bytes, at least one. The first
    block holds one step, so that the devices compute while the speed of the source is measured. Columns have as many
    rows as the largest block so far, so that few shapes are ever compiled. If rows differ in length, every step is a
    block with its own shape, and its batches are padded to the longest of them.

    Args:
        columns: Columns of the plan, all of the source.
        source: Source of the batches.
        ranges: Targets that the losses accept, by value name.
        accumulate: Batches for one step.
        block_bytes: Maximum bytes of a block, unless one step has more.
        seed: Seed of the numbers that the source draws from global generators.
        share: Function that returns this process's part of numbered batches.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        source: BatchSource,
        ranges: Mapping[str, TargetRange],
        accumulate: int,
        block_bytes: int,
        seed: int = 0,
        share: Callable[[Iterable[tuple[int, Batch]]], Iterator[tuple[int, Batch]]] = iter,
    ) -> None:
        self._share = share
        self.n_steps = None if source.steps is None else -(-source.steps // accumulate)
        self.repeatable = source.repeats
        self.reads_ahead = source.read_ahead != 0
        self.one_shape = one_shape(columns)
        self._columns = tuple(columns)
        self._source, self._ranges, self._accumulate = source, ranges, accumulate
        self._row_bytes = max(sum(column.spec.nbytes for column in columns), 1)
        self._block_bytes = block_bytes
        self._seed, self._randomness = seed, SourceRandomness(seed)
        self._progress = SourceProgress(source)
        self._backends = {column.name: column.backend for column in columns}
        self._capacity = 0
        self._buffers: list[HostBuffers] = []
        self._orders: dict[str, Any] = {}
        self._ordered_rows = -1
        self._first = True

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[Chunk]:
        """Yield blocks of batches, read ahead if the source permits it, without the steps before `start_step`."""
        again, in_turn = self._progress.begin(epoch), bool(self._source.passes_thread_rng)
        key = rng.key(self._seed, "source", self._source.label, epoch)
        randomness = self._randomness = self._randomness.next(key, in_turn=in_turn)
        first = self._progress.first_read(start_step)
        ahead = self.reads_ahead and not in_turn
        yield from self._progress.follow(self._chunks(epoch, first, again, ahead), first, start_step, randomness)

    def _chunks(self, epoch: int, start_step: int, again: bool, ahead: bool) -> Generator[tuple[Chunk, Sample]]:
        """Yield chunks with samples of their rows."""
        buffers, self._buffers = self._buffers or [HostBuffers() for _ in range(BUFFERS)], []  # of this thread alone
        make = partial(self._blocks, epoch, start_step, buffers, again)
        with closing(prefetch(make) if ahead else on_demand(make)) as blocks:
            for block in blocks:
                steps, n_rows, sample = tuple(self._steps(block.sizes)), block.n_rows, block.sample
                if n_rows != self._ordered_rows:  # rows are in the order of the steps
                    streams = map(stream_of, self._columns)
                    self._orders = load_orders(self._columns, dict.fromkeys(streams, np.arange(n_rows, dtype=np.int64)))
                    self._ordered_rows = n_rows
                columns = with_orders(self._columns, arrived(block.copies), self._orders)
                del block
                yield Chunk(columns, steps, {}), sample
                del columns

    def shrink(self) -> bool:
        """Use blocks of one step."""
        shrinks, self._block_bytes = self._block_bytes > 0, 0
        self._capacity, self._buffers, self._orders, self._ordered_rows = 0, [], {}, -1
        return shrinks

    def close(self) -> None:
        self._buffers, self._orders, self._ordered_rows = [], {}, -1
        self._source.close()

    def _steps(self, sizes: Sequence[int]) -> Iterator[StepRange]:
        """Yield steps of these numbers of batches; consecutive equal ones are one range."""
        sets = tuple(dict.fromkeys(column.feature_set for column in self._columns))
        last, stop = None, 0
        for first in range(0, len(sizes), self._accumulate):
            step = accumulating_step(sets, stop, sizes[first : first + self._accumulate])
            if last is not None and last.size == step.size:
                last = last.first(last.n_steps + 1)
            else:
                if last is not None:
                    yield last
                last = step
            stop += step.batch_size
        if last is not None:
            yield last

    def _blocks(self, epoch: int, start_step: int, buffers: list[HostBuffers], again: bool) -> Generator[_Block]:
        block_bytes, randomness = self._block_bytes, self._randomness
        try:
            with closing(self._open(epoch, again)) as batches:
                left = self._share(islice(enumerate(batches), start_step * self._accumulate, None))
                for buffer in cycle(buffers):
                    buffer.wait()
                    with randomness.drawing():
                        sizes = (self._fill if self.one_shape else self._fill_step)(buffer, left, epoch)
                    if not sizes:
                        break
                    yield self._copied(buffer, sizes)
                    self._first = False
        finally:
            for buffer in buffers:
                buffer.wait()
            if block_bytes == self._block_bytes:  # they are used again
                self._buffers = buffers

    def _open(self, epoch: int, again: bool) -> Generator[Batch]:
        try:
            return self._source.batches(epoch)
        except SourceError as error:
            if not again:
                raise
            raise SourceError(
                f"epoch {epoch} had to start again because memory ran out, and {error.problem}",
                available=error.available,
                hint=error.hint,
            ) from error

    def _fill(self, buffers: HostBuffers, batches: Iterable[tuple[int, Batch]], epoch: int) -> list[int]:
        """Copy batches until the buffers are full or time is over; the number of rows of each."""
        sizes: list[int] = []
        start, began = 0, time.perf_counter()
        for position, batch in batches:
            size = len(next(iter(batch.values())))
            if start + size > buffers.capacity or buffers.capacity < self._capacity:
                self._grow(buffers, start, size)
            with error_context(BatchPosition(self._source.label, epoch, position)):
                for column, array, target_range in buffers.columns:
                    copy_batch(column, batch, array[start : start + size], target_range)
            sizes.append(size)
            start += size
            if len(sizes) % self._accumulate:  # in the middle of a step
                continue
            n_rows = start + sum(sizes[-self._accumulate :])  # with another step like the last
            if self._first or not self.reads_ahead or n_rows * self._row_bytes > self._block_bytes:
                break
            if time.perf_counter() - began >= BLOCK_SECONDS / (1 if n_rows <= buffers.capacity else 2):
                break  # a step that makes buffers grow has to come fast
        return sizes

    def _fill_step(self, buffers: HostBuffers, batches: Iterable[tuple[int, Batch]], epoch: int) -> list[int]:
        """Copy the batches of one step; the number of rows of each."""
        sizes: list[int] = []
        parts: dict[str, list[np.ndarray]] = {column.name: [] for column in self._columns}
        for position, batch in islice(batches, self._accumulate):
            sizes.append(len(next(iter(batch.values()))))
            with error_context(BatchPosition(self._source.label, epoch, position)):
                for column in self._columns:  # a copy: the source may overwrite its own arrays
                    part = np.empty((sizes[-1], *row_shape(column, batch)), column.spec.dtype)
                    copy_batch(column, batch, part, self._ranges.get(column.name))
                    parts[column.name].append(part)
        buffers.capacity = sum(sizes)
        buffers.columns = [
            (column, self._joined(buffers, column, parts[column.name]), self._ranges.get(column.name))
            for column in self._columns
            if sizes
        ]
        return sizes

    def _joined(self, buffers: HostBuffers, column: Column, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the batches of a step in a buffer, the shorter ones padded."""
        rows = sum(map(len, parts))
        rest = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
        size = rows * math.prod(rest)
        flat = buffers.flat.get(column.name)
        if flat is None or flat.size < size:
            backend = self._backends[column.name]
            flat = buffers.flat[column.name] = backend.staging_buffer((size,), column.spec.dtype, column.device)
        out, start = flat[:size].reshape(rows, *rest), 0
        for part in parts:
            target = out[start : start + len(part)]
            if part.shape[1:] != rest:
                target[:, part.shape[1] :] = self._source.pads.get(column.columns[0], Pad()).value
                target = target[:, : part.shape[1]]
            target[...] = part
            start += len(part)
        return out

    def _grow(self, buffers: HostBuffers, filled: int, size: int) -> None:
        """Enlarge buffers and keep their rows; they double when they grow."""
        if filled + size > self._capacity:
            self._capacity = max(filled + size, min(2 * self._capacity, self._block_bytes // self._row_bytes))
        old, buffers.columns, buffers.capacity = buffers.columns, [], self._capacity
        for position, column in enumerate(self._columns):
            shape = (self._capacity, *column.spec.shape)
            array = self._backends[column.name].staging_buffer(shape, column.spec.dtype, column.device)
            if filled:
                array[:filled] = old[position][1][:filled]
            buffers.columns.append((column, array, self._ranges.get(column.name)))

    def _copied(self, buffers: HostBuffers, sizes: list[int]) -> _Block:
        copies: dict[str, AsyncCopy] = {}
        for column, array, _ in buffers.columns:
            copies[column.name] = self._backends[column.name].copy_async(array, column.device)
            buffers.copies.append(copies[column.name])
        rows, sample = sum(sizes), dict[str, np.ndarray]()
        if self._progress.keeps_samples:
            sample = sample_rows((column.name, array[:rows]) for column, array, _ in buffers.columns)
        return _Block(sizes, buffers.capacity, copies, sample)


class MapSourceLoader(SourceLoader, StreamingLoader):
    """Load items of a data set, read in the order of samplers, block by block.

    Args:
        columns: Columns of the plan, all of the source.
        source: Source of the items.
        ranges: Targets that the losses accept, by value name.
        plan, block_steps: See `StreamingLoader`.
        seed: Seed of the numbers that the data set draws from global generators.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        source: MapSource,
        ranges: Mapping[str, TargetRange],
        plan: EpochPlan,
        block_steps: int,
        seed: int = 0,
    ) -> None:
        shapes = {column.name: np.empty((0, *column.spec.shape), column.spec.dtype) for column in columns}
        super().__init__(columns, shapes, plan, block_steps if source.collate is None else 1)
        self._alone = self._alone or source.collate is not None
        self._source, self._ranges, self._seed = source, ranges, seed
        self._randomness = SourceRandomness(seed)
        self._progress = SourceProgress(source)
        self._samples: dict[int, Sample] = {}

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[Chunk]:
        """Yield blocks of items; a data set that draws random numbers is read from the epoch's start, so it draws the
        same.
        """
        self._progress.begin(epoch)
        in_turn = bool(self._source.passes_thread_rng)
        self._ahead = self._ahead and not in_turn
        key = rng.key(self._seed, "source", self._source.label, epoch)
        randomness = self._randomness = self._randomness.next(key, in_turn=in_turn)
        self._samples.clear()
        first = 0 if self._progress.draws else self._progress.first_read(start_step)
        chunks = self._with_samples(super().chunks(epoch, first))
        yield from self._progress.follow(chunks, first, start_step, randomness)

    def _with_samples(self, chunks: Generator[Chunk]) -> Generator[tuple[Chunk, Sample]]:
        with closing(chunks):
            for chunk in chunks:
                yield chunk, self._samples.pop(id(chunk.host_orders), {})
                del chunk

    def fill(self, block: StepBlock, buffers: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Read the rows of a block, once for each stream that is drawn."""
        filled, streamed = dict(buffers), {column.names[0]: column for column in self._streamed}
        for stream in dict.fromkeys(map(stream_of, self._columns)):
            order = block.orders[stream]
            whole, first = block.whole.get(stream, (order, 0)) if self._alone else (order, 0)
            with self._randomness.drawing():
                # A process's part of a batch that is built whole if its rows differ in length or are collated.
                every = self._source.gather(whole)
            batch = {name: column[first : first + len(order)] for name, column in every.items()}
            self._progress.draws = self._progress.draws or self._randomness.has_drawn
            for column in self._columns:
                if stream_of(column) == stream:
                    if not self.one_shape:
                        shape = (self._block_rows, *row_shape(column, batch))
                        filled[column.name] = streamed[column.name].part(buffers, shape)
                    with error_context(f"source {self._source.label!r}"):
                        copy_batch(column, batch, filled[column.name][: len(order)], self._ranges.get(column.name))
        if self._progress.keeps_samples:
            lengths = {column.name: len(block.orders[stream_of(column)]) for column in self._columns}
            sampled = ((name, filled[name][:length]) for name, length in lengths.items())
            self._samples[id(block.orders)] = sample_rows(sampled)
        return filled


# -- Source progress: the random states of a source epoch by epoch, and the rows of its steps, to go on in another run


class SourceProgress:
    """The position of a source, and how to restore it.

    Args:
        source: The source.

    Attributes:
        draws: Whether reading draws random numbers, so that skipped steps are read, too.
        keeps_samples: Whether samples of rows are taken, which costs the reading thread microseconds for each block.
        resumed: Position of an earlier run where the next epoch continues; None if it begins.
    """

    def __init__(self, source: BatchSource | MapSource) -> None:
        self._source, self.draws, self.keeps_samples = source, False, False
        self.resumed: SourcePosition | None = None
        self._epoch: int | None = None
        self._held: States | None = None
        self._began: States = {}
        self._expected: Sample = {}
        self._has_warned = False
        self._first_step = 0
        self._steps: tuple[StepRange, ...] = ()
        self._sample: Sample = {}

    def begin(self, epoch: int) -> bool:
        """Restore the random states of the beginning of an epoch that is read again, here or in another process.

        Returns:
            Whether it was read here before.

        Raises:
            SourceError: the source does not hold the same generators.
        """
        source, resumed = self._source, self.resumed
        if source.passes_thread_rng is None:
            source.example  # noqa: B018 - the first rows tell it
        again, self._epoch, self.resumed = self._epoch == epoch, epoch, None
        if resumed is not None and epoch and isinstance(source, BatchSource) and source.once:
            raise SourceError(
                f"source {source.label!r} is an iterator: a run cannot resume at epoch {epoch}, because the iterator "
                "would return the batches of the first epoch",
                hint="pass a function that creates the iterator, such as the generator function itself, without "
                "calling it",
            )
        if resumed is not None:
            self.draws, self._expected = self.draws or resumed.draws, resumed.sample
            if resumed.states:  # older checkpoints have none
                self._set(resumed.held, resumed.states)
        elif again:
            self.draws = self.draws or not same_states(self._began, source.random_states())
            self._set(self._held, self._began)
        self._held = source.held_states(epoch) if isinstance(source, BatchSource) else None
        self._began = source.random_states()
        return again

    def first_read(self, start_step: int) -> int:
        """Return the first step that is read: one more where it is compared."""
        return start_step - 1 if start_step and self._expected else start_step

    def follow(
        self, chunks: Generator[tuple[Chunk, Sample]], first_step: int, start_step: int, randomness: SourceRandomness
    ) -> Generator[Chunk]:
        """Yield the chunks (the first begins with `first_step`) without the steps before `start_step`.

        Raises:
            SourceError: the rows of the last skipped step differ from those of the run that is resumed.
        """
        with closing(chunks):
            for chunk, sample in chunks:
                self._first_step, self._steps, self._sample = first_step, chunk.steps, sample
                n_steps = sum(steps.n_steps for steps in chunk.steps)
                if self._expected and first_step < start_step <= first_step + n_steps:
                    self._compare(start_step - 1)
                skipped, first_step = max(0, start_step - first_step), first_step + n_steps
                if skipped < n_steps:
                    left = EpochSteps(chunk.steps, chunk.host_orders).skip(skipped).steps if skipped else chunk.steps
                    yield replace(chunk, steps=left) if skipped else chunk
                del chunk
                if randomness.passed and not self._source.passes_thread_rng:
                    self._source.passes_thread_rng = True
                    warn_of_seed(f"source {self._source.label!r}")

    def position(self, epoch: int, step: int) -> SourcePosition:
        """Return the position; see `BatchLoader.position`."""
        source = self._source
        now = source.random_states()
        if epoch and not self._has_warned and isinstance(source, BatchSource) and source.once:
            self._has_warned = True
            warnings.warn(
                f"source {source.label!r} is an iterator, so a run cannot resume from a checkpoint after "
                "its first epoch. Hint: pass a function that creates the iterator",
                RuntimeWarning,
                stacklevel=user_level(),
            )
        if not step:
            return SourcePosition(
                self.draws, now, source.held_states(epoch) if isinstance(source, BatchSource) else None
            )
        draws = self.draws or not same_states(self._began, now)
        return SourcePosition(draws, self._began, self._held, self._sample_of(step - 1))

    def _set(self, held: States | None, began: States) -> None:
        if isinstance(self._source, BatchSource):
            if self._source.once:
                return
            self._source.hold_again(held)
        self._source.load_random_states(began)

    def _sample_of(self, step: int) -> Sample:
        """Return the sample of a step of the chunk that is taken; empty of others."""
        position = step - self._first_step
        for steps in self._steps if position >= 0 else ():
            if position < steps.n_steps:
                one = steps.skip(position)
                rows = slice(one.start, one.start + one.batch_size)
                return {name: values[rows] for name, values in self._sample.items()}
            position -= steps.n_steps
        return {}

    def _compare(self, step: int) -> None:
        expected, self._expected = self._expected, {}
        again = self._sample_of(step)
        differing = [name for name in expected if name not in again or not is_close(expected[name], again[name])]
        if differing:
            raise SourceError(
                f"source {self._source.label!r} returns other rows than before the checkpoint: at step {step} of epoch "
                f"{self._epoch}, read again, {', '.join(map(repr, differing))} differ. Global generators and "
                "generators "
                "held by the source, its sampler or its data set are restored; state that worker processes keep "
                "between epochs is not, nor anything that depends on the time or the system",
                hint="derive random values from the number of the epoch, in a function with a parameter "
                "`epoch` that returns the batches: np.random.default_rng(epoch); or leave persistent_workers out",
            )


# -- Random numbers of what reads a source: a stream of its own, whatever the training draws meanwhile -----------------


class SourceRandomness:
    """The numbers that a source draws in one epoch from global generators of imported frameworks.

    Args:
        key: 64 bits that determine them; None uses the state of the global generators at the beginning.
        first_draws: How often the source drew at the beginning of the previous epoch, if it drew nothing after it;
            otherwise None. Watching a source takes time, so only the beginning is watched if it draws no more there.
        in_turn: Whether the training thread reads the source, between two steps: the global generators themselves are
            then used, so that code that seeds them works as expected.
    """

    def __init__(self, key: int | None, *, first_draws: int | None = None, in_turn: bool = False) -> None:
        self._key, self._usual_draws, self._in_turn = key, first_draws, in_turn
        self._streams: dict[str, AbstractContextManager[Any]] = {}
        self._n_reads, self._first_draws = 0, 0

    def drawing(self) -> AbstractContextManager[Any]:
        """Return a context for code that reads the source, in its thread; a later one continues from the end of the
        previous one.
        """
        self._n_reads += 1
        if self._n_reads == 2:
            self._first_draws = self._n_draws
        stack = ExitStack()
        if self._usual_draws is not None and self._n_reads > 1 and self._n_draws <= self._usual_draws:
            return stack
        for backend in imported_backends():
            if backend.framework not in self._streams:
                in_turn = self._in_turn and self._key is not None
                make = backend.global_rng if in_turn else backend.thread_rng
                self._streams[backend.framework] = make(self._key)  # type: ignore[arg-type]
        for stream in self._streams.values():
            stack.enter_context(stream)
        return stack

    def next(self, key: int | None, *, in_turn: bool = False) -> SourceRandomness:
        """Return the randomness of another epoch."""
        # The second read may find that the first one had the whole epoch, so it takes a third to know of others.
        is_quiet = self._n_reads > 2 and self._n_draws == self._first_draws
        return SourceRandomness(
            key, first_draws=self._first_draws if is_quiet and not in_turn else None, in_turn=in_turn
        )

    @property
    def has_drawn(self) -> bool:
        """Whether the source drew from a generator of a framework."""
        return self._n_draws > 0

    @property
    def passed(self) -> bool:
        """Whether a framework's global generator was seeded while a thread read ahead."""
        return any(getattr(stream, "passed", False) for stream in self._streams.values())

    @property
    def _n_draws(self) -> int:
        return sum(getattr(stream, "draws", 0) for stream in self._streams.values())


def warn_of_seed(what: str) -> None:
    """Warn that a framework's generator was seeded while a thread read ahead of the training, which draws from it."""
    warnings.warn(
        f"{what}: a framework's global generator was seeded while rows were read ahead, after the first "
        "row. Rows of this epoch that depend on that seed may differ. From the next epoch on, rows are read between "
        "steps. Hint: draw each row from a generator object that is seeded with the row's number",
        RuntimeWarning,
        stacklevel=user_level(),
    )
