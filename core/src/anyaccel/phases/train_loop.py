"""The training loop: epochs of steps, nothing looked up or waited for inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace

from anyaccel import rng
from anyaccel.errors import OutOfMemoryError
from anyaccel.phases.compile_policy import Compiling
from anyaccel.phases.evaluation import Figures
from anyaccel.phases.executor.links import Losses
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.executor.stepper import Stepper
from anyaccel.phases.hooks import Moments
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.loading import Portion, Stretch
from anyaccel.phases.loss_accumulator import Tally
from anyaccel.phases.progress import Progress
from anyaccel.phases.recovery import Marks
from anyaccel.phases.relief import Relief
from anyaccel.phases.run import Epoch, Run
from anyaccel.phases.step_pacing import Flight, Pace
from anyaccel.phases.traceback_cleanup import forget

Validate = Callable[[], Figures]


class Training:
    """The loop of one TrainPhase over programs that are ready.

    Args:
        phase, run, chain: what is executed, its record, and the programs.
        relief: the rows, and what is done when there is no room for them.
        moments: who listens.
        progress: hears how far it is.
        taken: is told the orders of every portion, in host memory.
    """

    def __init__(
        self,
        phase: TrainPhase,
        run: Run,
        chain: Chain,
        relief: Relief,
        moments: Moments,
        progress: Progress,
        taken: Callable[..., None] | None = None,
    ) -> None:
        self._phase = phase
        self._run = run
        self._chain = chain
        self._relief = relief
        self._moments = moments
        self._progress = progress
        self._taken = taken
        self._weights = {loss.label: loss.weight for loss in phase.losses}
        self._pace = Pace(1 if moments.step_listeners else None)
        self._compiling = self._choice()
        self._flight = Flight()
        self._marks = Marks(chain, relief.supply.repeats)
        relief.spare = self._marks.refrain
        self._batch, self._widest = 0, relief.batch

    def _choice(self) -> Compiling:
        phase, each = self._phase, self._relief.supply.steps
        steps = None if each is None else each * phase.n_epochs
        early, able = self._moments.may_stop, self._chain.compiles
        return Compiling(phase.compile, steps, self._pace.most, early, able, self._run.log_event, self._progress.doing)

    def run(self, validate: Validate | None) -> None:
        """All epochs, or as many as there are until somebody stops the run."""
        try:
            self._run.looping = True
            self._progress.start(self._phase.label, self._phase.n_epochs, self._relief.supply.steps)
            for epoch in range(self._phase.n_epochs):
                self._epoch(epoch, validate)
                if self._run.stopped:
                    break
            if self._run.history:
                self._compiling.end()
            self._marks.end()
            self._run.finalize()
        finally:
            self._marks.end()
            self._relief.supply.foresee(None)
            self._progress.stop()

    def _epoch(self, epoch: int, validate: Validate | None) -> None:
        run, label = self._run, self._phase.label
        run.epoch, run.step = epoch, 0
        number = run.graph.progress.get(label, 0)
        self._moments.call("epoch_start", run=run)
        if run.stopped:
            return
        began = time.perf_counter()
        self._chain.seed(rng.key(run.graph.seed, "steps", label, number))
        losses, steps = self._steps(number)
        seconds = time.perf_counter() - began
        run.graph.progress[label] = number + 1
        due = validate is not None and (
            (epoch + 1) % self._phase.validate_every == 0 or epoch + 1 == self._phase.n_epochs
        )
        total = sum(self._weights[name] * value for name, value in losses.items()) if losses else float("nan")
        run.history.append(Epoch(number, total, losses, steps, seconds))
        if validate is not None and due:  # the epoch is complete, and kept, whatever comes of this
            self._progress.doing("validating")
            run.history[-1] = replace(run.history[-1], validation=validate().named)
            self._progress.doing("")
        self._progress.epoch(run.history[-1].figures)
        self._moments.call("epoch_end", run=run)

    def _steps(self, number: int) -> tuple[dict[str, float], int]:
        """One epoch; where memory runs out it is taken up again where the last snapshot was taken."""
        tally, run = Tally(), self._run
        self._marks.begin()
        last = run.epoch + 1 == self._phase.n_epochs
        while True:
            failure = self._tried(number, tally, last=last)
            if failure is None:
                break
            forget(failure)  # what it holds would be in the way
            done = self._marks.go_back(tally)
            if done is None:
                raise self._relief.refusal(failure, self._batch) from None
            self._relief.give(failure, self._batch)
            self._flight.forget()
            self._compiling.again(run.step - done)
            self._progress.advance(done - run.step)
            run.step = done
        self._marks.end()  # a validation may need the room
        means = tally.means()
        self._learn(self._flight.over())
        return {label: means[label] for label in self._weights if label in means}, run.step

    def _tried(self, number: int, tally: Tally, *, last: bool) -> OutOfMemoryError | None:
        self._batch = 0
        try:
            with closing(self._relief.supply.portions(number, self._run.step, self._chain.order)) as portions:
                for portion in portions:
                    if not last:  # once this epoch has its own
                        self._relief.supply.foresee(number + 1)
                        last = True
                    self._portion(tally, portion)
                    if self._run.stopped:
                        break
                    del portion
        except OutOfMemoryError as error:
            return error
        return None

    def _portion(self, tally: Tally, portion: Portion) -> None:
        if self._taken is not None:
            self._taken(portion.taken)
        step = self._chain.stepper(portion.feed, portion.orders)
        turn = None
        for work in portion.works:
            if self._run.stopped:
                break
            if isinstance(work, Stretch):
                self._stretch(tally, step, work)
                continue
            turn = self._chain.turner(portion.feed, portion.orders) if turn is None else turn
            self._batch = smallest(self._relief.piece, max(stop - start for start, stop in work.values())) or 0
            self._took(tally, turn(work, self._relief.piece), 1)

    def _stretch(self, tally: Tally, step: Stepper, work: Stretch) -> None:
        """As many steps in one call as the pace allows."""
        done, piece = 0, smallest(self._relief.piece, work.piece)
        self._batch = min(piece or work.size, work.size)
        self._widest = max(self._widest, work.size)
        while done < work.count and not self._run.stopped:
            if work.size == self._widest:  # no last partial batch
                self._compiling.before(step, work.size, piece)
            count = min(self._pace.next(), work.count - done, self._compiling.limit)
            began = time.perf_counter()
            losses = step(work.start + done * work.size, count, work.size, piece)
            self._took(tally, losses, count)
            self._learn(self._flight.launched(losses, count, began))
            done += count

    def _learn(self, calls: Iterable[tuple[int, float]]) -> None:
        for count, seconds in calls:
            self._pace.took(count, seconds)
            self._compiling.took(count, seconds)

    def _took(self, tally: Tally, losses: list[Losses], count: int) -> None:
        tally.add(losses)
        self._progress.advance(count)
        if self._moments.step_listeners:
            self._run.last_losses = losses
            for listener in self._moments.step_listeners:
                listener(run=self._run)
        self._run.step += count
        self._marks.pass_by(self._run.step, tally)


def smallest(*sizes: int | None) -> int | None:
    """The least of some limits, of which None is none."""
    return min((size for size in sizes if size is not None), default=None)
