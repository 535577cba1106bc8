"""Source progress: the random states of a source epoch by epoch, and the rows of its steps, to go on in another run."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from anyaccel.data import BatchSource, MapSource
from anyaccel.data.streaming.random_states import States, same_states
from anyaccel.errors import SourceError
from anyaccel.phases.loading.epoch_plan import EpochSteps, StepRange
from anyaccel.phases.loading.loader import Chunk
from anyaccel.phases.loading.source_position import Sample, SourcePosition, is_close
from anyaccel.phases.loading.source_randomness import SourceRandomness, warn_of_seed
from anyaccel.user_level import user_level


class SourceProgress:
    """Where a source is, and how it comes there again.

    Args:
        source: that is read.

    Attributes:
        draws: whether reading draws random numbers, so that steps which are left out are read, too.
        keeps_samples: whether samples of rows are taken, which costs the thread that reads microseconds for each block.
        resumed: where an earlier run was, from which the next epoch goes on; None if it begins.
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
        """Set the random states with which an epoch begins that is read again, here or in another process.

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
                f"source {source.label!r} is an iterator: no run can go on with epoch {epoch}, of which it would read "
                "the batches of the first",
                hint="give a function that makes the iterator, such as the generator function itself, not called",
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
        """The first step that is read: one more where it is compared."""
        return start_step - 1 if start_step and self._expected else start_step

    def follow(
        self, chunks: Generator[tuple[Chunk, Sample]], first_step: int, start_step: int, randomness: SourceRandomness
    ) -> Generator[Chunk]:
        """The chunks, of which the first begins with `first_step`, without the steps before `start_step`.

        Raises:
            SourceError: the rows of the last of these are other ones than in the run that is gone on with.
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
        """As of `BatchLoader`."""
        source = self._source
        now = source.random_states()
        if epoch and not self._has_warned and isinstance(source, BatchSource) and source.once:
            self._has_warned = True
            warnings.warn(
                f"source {source.label!r} is an iterator, and no run can go on from a checkpoint after its first "
                "epoch. Hint: give a function that makes the iterator",
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
        """The sample of a step of the chunk that is taken; empty of others."""
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
                f"source {self._source.label!r} gives other rows than before the checkpoint: of step {step} of epoch "
                f"{self._epoch}, read again, {', '.join(map(repr, differing))} differ. Generators that it, its sampler "
                "and its data set hold go on, and so do global ones; not what worker processes keep from one epoch to "
                "the next, nor what follows from the time or the system",
                hint="let what is random follow from the number of the epoch, in a function with a parameter `epoch` "
                "that gives the batches: np.random.default_rng(epoch); or leave persistent_workers out",
            )
