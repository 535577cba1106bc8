"""The training loop: epochs of steps, nothing looked up or waited for inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anyaccel import rng
from anyaccel.phases.chain import Chain
from anyaccel.phases.drawing import Drawing
from anyaccel.phases.evaluating import Figures
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.links import Losses
from anyaccel.phases.loading import Feed
from anyaccel.phases.moments import Moments
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Epoch, Run
from anyaccel.phases.tally import Tally

# A call of many steps must not keep progress and Ctrl-C waiting for long: half a second is the limit, this the aim.
_AIM_SECONDS = 0.2

Validate = Callable[[], Figures]


class Pace:
    """How many steps one call should take: few at first, then as many as the aimed time holds."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._count = 1

    def next(self) -> int:
        """Steps for the next call."""
        return self._fixed or self._count

    def took(self, count: int, seconds: float) -> None:
        """Learn from a call. Grows by doubling only: the first calls are slow and say little."""
        fitting = int(count * _AIM_SECONDS / max(seconds, 1e-9))
        self._count = max(1, min(self._count * 2, fitting))


class Training:
    """The loop of one TrainPhase over programs that are ready."""

    def __init__(
        self,
        phase: TrainPhase,
        run: Run,
        chain: Chain,
        feed: Feed,
        drawing: Drawing,
        moments: Moments,
        progress: Progress,
    ) -> None:
        self._phase = phase
        self._run = run
        self._chain = chain
        self._feed = feed
        self._drawing = drawing
        self._moments = moments
        self._progress = progress
        self._weights = {loss.label: loss.weight for loss in phase.losses}
        self._fixed_order: Any = None
        self._pace = Pace(1 if moments.step_listeners else None)

    def run(self, validate: Validate | None) -> None:
        """All epochs, or as many as there are until somebody stops the run."""
        try:
            self._progress.start(self._phase.label, self._phase.n_epochs, self._drawing.steps)
            for epoch in range(self._phase.n_epochs):
                self._epoch(epoch, validate)
                if self._run.stopped:
                    break
            self._run.finish()
        finally:
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
        losses, steps = self._steps(self._orders(number))
        seconds = time.perf_counter() - began
        run.graph.progress[label] = number + 1
        due = validate is not None and (
            (epoch + 1) % self._phase.validate_every == 0 or epoch + 1 == self._phase.n_epochs
        )
        total = sum(self._weights[name] * value for name, value in losses.items()) if losses else float("nan")
        run.history.append(Epoch(number, total, losses, steps, seconds))
        if validate is not None and due:  # the epoch is complete, and kept, whatever comes of this
            run.history[-1] = replace(run.history[-1], validation=validate().named)
        self._progress.epoch(run.history[-1].figures)
        self._moments.call("epoch_end", run=run)

    def _orders(self, number: int) -> Any:
        if not self._drawing.fixed:
            return self._chain.order(self._feed, self._drawing.orders(number))
        if self._fixed_order is None:
            self._fixed_order = self._chain.order(self._feed, self._drawing.orders(0))
        return self._fixed_order

    def _steps(self, orders: Any) -> tuple[dict[str, float], int]:
        tally = Tally()
        uniform = self._drawing.uniform
        done = self._turns(tally, orders) if uniform is None else self._batches(tally, orders, *uniform)
        means = tally.means()
        return {label: means[label] for label in self._weights if label in means}, done

    def _batches(self, tally: Tally, orders: Any, full: int, size: int, last: int) -> int:
        """As many steps in one call as the pace allows."""
        step = self._chain.stepper(self._feed, orders)
        done = 0
        while done < full and not self._run.stopped:
            count = min(self._pace.next(), full - done)
            began = time.perf_counter()
            self._took(tally, step(done * size, count, size), count)
            self._pace.took(count, time.perf_counter() - began)
            done += count
        if last and not self._run.stopped:
            self._took(tally, step(full * size, 1, last), 1)
            done += 1
        return done

    def _turns(self, tally: Tally, orders: Any) -> int:
        """One by one, as each takes other feature sets or other numbers of rows of them."""
        step = self._chain.turner(self._feed, orders)
        done = 0
        for turn in self._drawing.turns:
            if self._run.stopped:
                break
            self._took(tally, step(turn), 1)
            done += 1
        return done

    def _took(self, tally: Tally, losses: list[Losses], count: int) -> None:
        tally.add(losses)
        self._progress.advance(count)
        if self._moments.step_listeners:
            self._run.last_losses = losses
            for listener in self._moments.step_listeners:
                listener(run=self._run)
        self._run.step += count
