"""Compile policy: decide whether whole steps are compiled, by the cost and the number of remaining steps."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, CompileWarning
from anyaccel.phases.executor.pipeline import ChunkRunner, Pipeline
from anyaccel.phases.loading.epoch_plan import StepSize
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loop_extension import UNLIMITED, Call, LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.memory_error import release_frames
from anyaccel.phases.run import Run
from anyaccel.user_level import user_level

_TIMED_SECONDS, _TIMED_SHARE = 0.02, 0.02
"""Plain steps are timed for so long, or for this share of the compilation, before a decision."""
_LEAST_COMPILATION = 0.3
"""Seconds: no compilation that takes time at all saves something if the remaining steps take less."""
_MOST_COMPILATIONS = 10
"""As many cost no more than the first plain step, where a framework compiles each of its operations for that."""

_Shape = tuple[StepSize, int]
"""What a step is compiled for: rows of a step, rows of the columns."""


class CompilePolicy(LoopExtension):
    """The decision of one TrainPhase whether to compile.

    `off` compiles nothing, `steps` compiles before the first step. `auto` times plain steps first; it compiles as soon
    as the remaining steps take longer plain than compiled, including the compilation. If the phase may stop before its
    last epoch, it waits until uncompiled steps have taken as long as the compilation would, so it never takes more than
    twice the time of the better choice. If it compiled nothing, the end of the run reports why.

    Compiled code is dropped if a Python value it has read changes. After the second change of one value, `auto`
    expects another change after as many steps as before, and compiles if that pays off for these steps.

    An estimate costs time, and a framework may import its compiler for it: none is requested until steps were timed,
    except before the first step; nor if the remaining steps are short.

    If everything is computed on the host, the time of a step is the processor time if that is less than the elapsed
    time: otherwise the load of other processes would make a compilation seem worthwhile.

    Args:
        run: Run of a TrainPhase; it receives the decisions.
        pipeline: The programs.
        loader: Loader of the rows.
        batch_size: Largest number of rows of a step, if known.
        max_call_steps: Largest number of steps of one call.
        may_stop_early: Whether a callback sees epochs or steps: it may stop the run before its last epoch, and change
            values that compiled code has read.
        on_activity: Function called with `"compiling"`, and with `""` when that is over.
    """

    def __init__(
        self,
        run: Run,
        pipeline: Pipeline,
        loader: BatchLoader,
        batch_size: int,
        *,
        max_call_steps: int,
        may_stop_early: bool,
        on_activity: Callable[[str], None],
    ) -> None:
        self._run, self._pipeline, self._may_change = run, pipeline, may_stop_early
        self._mode, self._max_call_steps = run.phase.compile, max_call_steps
        self._steps_left = None if loader.n_steps is None else loader.n_steps * run.phase.epochs
        self._open_ended = may_stop_early or self._steps_left is None
        self._can_compile = pipeline.can_compile  # without, `auto` logs nothing
        self._one_shape, self._full_batch = loader.one_shape, batch_size
        self._log_event, self._on_activity = run.log_event, on_activity
        self._tried: set[_Shape] = set()
        self._shape: _Shape | None = None
        self._on_host, self._processor_now = pipeline.on_host, time.process_time()
        # Of uncompiled calls: seconds of the clock, of the processor, and the lower of the two if both count.
        self._plain_calls, self._plain_clock, self._plain_processor, self._plain_seconds = 0, 0.0, 0.0, 0.0
        # The same without the first call, which does not represent the others.
        self._timed_steps, self._timed_clock, self._timed_processor, self._timed_seconds = 0, 0.0, 0.0, 0.0
        self._step_seconds = 0.0
        self._wait_seconds = math.inf
        self._decided = self._mode == "off"
        self._estimate: CompileEstimate | None = None
        self._asked_at = 0.0  # seconds of timed steps when it was asked for
        self._n_changes: Counter[str] = Counter()
        self._n_steps = self._n_steps_at_change = 0
        self._cause = ""  # what changes again and again
        self._steps_between = 0  # two of its changes
        self._is_dropped = self._is_logged = False
        self._compile_seconds = 0.0
        self._compiled_step_seconds = 0.0  # of the first call, which may compile, as little as of none
        self._compiled_calls = 0  # since the last change

    def steps_begin(self, losses: LossAccumulator) -> None:
        """Drop code compiled with values that hooks have changed since; the run reports it.

        A value that changed twice will change again: from then on, each time is decided separately.
        """
        names = self._pipeline.renew_compiled() if self._may_change else []
        if not names:
            return
        self._n_changes.update(names)
        self._steps_between, self._n_steps_at_change = self._n_steps - self._n_steps_at_change, self._n_steps
        self._compiled_calls = 0
        n_more = math.inf if self._steps_left is None else self._steps_left / max(self._steps_between, 1)
        repeats = self._tried and max(self._n_changes[name] for name in names) > 1
        if self._mode == "auto" and repeats and (self._timed_steps or n_more >= _MOST_COMPILATIONS):
            self._cause, self._is_dropped = f"{_changed(names)} changed", True
            self._pipeline.run_uncompiled()
        else:
            self._log_event("compile", f"compiled steps are dropped because {_changed(names)} changed")

    def before_call(self, call: Call) -> None:
        """Compile the next steps now, if that pays off."""
        self._full_batch = max(self._full_batch, call.size.rows)
        if call.size.rows < self._full_batch:  # a last, partial batch is not worth a compilation
            return
        runner, size = call.runner, call.size
        self._shape, self._wait_seconds = (size, runner.n_rows), math.inf
        if self._is_dropped:
            self._decide_again(runner, size)
            return
        if self._decided or self._shape in self._tried:
            return
        if runner.program is None:
            self._give_up("no single program runs a whole step")
        elif not self._one_shape and not _is_free(runner.program.estimate_compile(self._max_call_steps)):
            self._give_up("each batch is padded to its own length")
        elif self._mode == "steps":
            self._compile(runner, size, "as the phase asks")
        else:
            is_due = self._estimate is None or self._timed_seconds >= 2 * self._asked_at  # it is known better by now
            if self._timed_steps and self._steps_left is not None:
                is_due = is_due and self._steps_left * self._step_seconds >= _LEAST_COMPILATION
            if is_due and (self._timed_steps or not self._plain_calls):
                self._estimate = runner.program.estimate_compile(self._max_call_steps)
                self._asked_at = self._timed_seconds
            estimate = self._estimate
            if estimate is not None:
                seconds, left = estimate.compile_seconds, math.inf if self._steps_left is None else self._steps_left
                timed_enough, saved = min(_TIMED_SECONDS, _TIMED_SHARE * seconds), 1.0 - estimate.step_ratio
                if _is_free(estimate):
                    self._compile(runner, size, "compiling takes no longer than uncompiled steps")
                elif not self._timed_steps or self._timed_seconds < timed_enough:
                    self._wait_seconds = timed_enough - self._timed_seconds
                elif saved <= 0.0 or left * self._step_seconds * saved <= seconds:
                    pass  # it does not pay off
                elif not self._open_ended:
                    why = f"{left:,} steps are left, and each saves about {self._step_seconds * saved * 1e6:.0f} us"
                    self._compile(runner, size, f"{why}; {seconds:.1f} s were expected for it")
                elif self._plain_seconds < seconds:
                    self._wait_seconds = seconds - self._plain_seconds
                else:
                    why = f"uncompiled steps have taken {self._plain_seconds:.1f} s"
                    self._compile(runner, size, f"{why}; {seconds:.1f} s were expected for it")

    def most_steps(self, call: Call) -> int:
        """Return the most steps that do not delay the next decision."""
        if self._is_dropped and not self._timed_steps:
            return 1
        if not self._timed_steps or self._wait_seconds == math.inf:
            return UNLIMITED
        return max(1, math.ceil(self._wait_seconds / max(self._step_seconds, 1e-9)))

    def call_timed(self, n_steps: int, seconds: float) -> None:
        """Record the time of a call."""
        before, self._processor_now = self._processor_now, time.process_time()
        processor = self._processor_now - before
        if self._steps_left is not None:
            self._steps_left -= n_steps
        self._n_steps += n_steps
        if self._shape in self._tried and not self._is_dropped:
            self._compiled_calls += 1
            if self._compiled_calls > 1:
                self._compiled_step_seconds = seconds / n_steps
            return
        if self._plain_calls:
            self._timed_steps += n_steps
            self._timed_clock += seconds
            self._timed_processor += processor
            on_clock = self._timed_clock
            self._timed_seconds = min(on_clock, self._timed_processor) if self._on_host else on_clock
            self._step_seconds = self._timed_seconds / self._timed_steps
        self._plain_calls += 1
        self._plain_clock += seconds
        self._plain_processor += processor
        self._plain_seconds = min(self._plain_clock, self._plain_processor) if self._on_host else self._plain_clock

    def _decide_again(self, runner: ChunkRunner, size: StepSize) -> None:
        """Compile again, if that pays for the steps until the next change."""
        if not self._timed_steps:
            return
        left = self._steps_between - (self._n_steps - self._n_steps_at_change)
        if left <= 0:  # it has changed for the last time
            left = self._max_call_steps if self._steps_left is None else self._steps_left
        saved = left * (self._step_seconds - self._compiled_step_seconds)
        costs = f"compiling for {left:,} steps takes about {_duration(self._compile_seconds)}"
        pays = saved > self._compile_seconds
        if not self._is_logged:
            self._is_logged = True
            outcome = "steps are compiled each time" if pays else "steps stay uncompiled"
            self._log_event(
                "compile",
                f"{outcome}, because {self._cause} again: {costs} and saves {_duration(max(saved, 0.0))}. Hint: change "
                "it every few epochs, or store it in a variable of the framework that is an argument of the compiled "
                "code",
            )
        if pays:
            self._is_dropped = False
            self._compile(runner, size, f"{self._cause}, and uncompiled steps would take longer")

    def went_back(self, n_steps: int) -> None:
        if self._steps_left is not None:
            self._steps_left += n_steps

    def run_ends(self) -> None:
        """Log why no steps were compiled, unless that was logged."""
        if self._decided or self._tried or not self._run.history:
            return
        why = "the backend cannot compile them, or expects little gain; compile='steps' tries it"
        if self._shape is None:
            self._give_up("all batches have different shapes")
            return
        if not self._can_compile:
            return
        if self._estimate is not None:
            costs = f"compiling would take about {_duration(self._estimate.compile_seconds)}"
            if self._estimate.step_ratio >= 1.0:
                why = "compiled steps would not be faster"
            elif not self._timed_steps:
                why = f"{costs}, and the phase ended before uncompiled steps were timed"
            else:  # the decision may have been made with less information
                saved = self._timed_seconds * (1.0 - self._estimate.step_ratio)
                late = ", but this was known too late" if saved > self._estimate.compile_seconds else ""
                steps = f"{self._timed_steps:,} step{'s' * (self._timed_steps > 1)} of {_duration(self._step_seconds)}"
                why = f"{costs} and save {_duration(saved)} in {steps}{late}"
        elif self._max_call_steps == 1:
            why = "a step_end hook runs after every step, and single steps are not compiled; set every_n_steps=50 on "
            why += "the callback, or use steps_done, which runs once for many steps"
        elif self._plain_seconds < _LEAST_COMPILATION:
            why = f"they took {_duration(self._plain_seconds)} in all, less than a compilation"
        elif not self._timed_steps:
            why = "the phase ended before uncompiled steps were timed"
        self._log_event("compile", f"steps are not compiled: {why}", verbose=True)

    def _give_up(self, why: str) -> None:
        self._decided = True
        if self._mode == "steps":
            self._log_event("compile", f"steps run one at a time, uncompiled: {why}")
        elif self._can_compile:
            self._log_event("compile", f"steps are not compiled: {why}", verbose=True)

    def _compile(self, runner: ChunkRunner, size: StepSize, why: str) -> None:
        self._tried.add((size, runner.n_rows))
        if size.arguments(runner.program) is None:
            self._log_event("compile", f"steps of {size} run one at a time, uncompiled")
            return
        self._on_activity("compiling")
        began = time.perf_counter()
        try:
            runner.compile(size)
        except (CompileError, MemoryError) as error:  # neither has changed anything
            self._decided = True
            release_frames(error)
            self._log_event("compile", f"steps run uncompiled: {error}")
            if self._mode == "steps":
                warnings.warn(f"steps run uncompiled: {error}", CompileWarning, stacklevel=user_level())
        else:
            self._compile_seconds = time.perf_counter() - began
            told = f"steps compiled in {self._compile_seconds:.1f} s: {why}"
            self._log_event("compile", told, verbose=bool(self._cause))
        finally:
            self._on_activity("")


def refuse_changes_between_steps(run: Run, pipeline: Pipeline) -> None:
    """Compiled steps of an epoch cannot have seen what `step_end` or `steps_done` has changed.

    Raises:
        CompileError: it has changed a value that they read.
    """
    names = pipeline.renew_compiled()
    if names:
        raise CompileError(
            f"{_changed(names)} changed between steps of epoch {run.epoch}, and the compiled steps have not seen it",
            hint="change it in epoch_start or epoch_end, or set compile='off'",
        )


def _changed(names: Sequence[str]) -> str:
    """Return some of the names that have changed."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} " + ("has" if len(names) == 1 else "have")


def _is_free(estimate: CompileEstimate | None) -> bool:
    """Whether compiling takes no longer than plain steps do."""
    return estimate is not None and estimate.compile_seconds <= 0.0 and estimate.step_ratio <= 1.0


def _duration(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
