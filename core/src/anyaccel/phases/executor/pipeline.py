"""Pipeline: the programs of a phase, one per segment in the order of computation, and steps over a chunk of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from anyaccel.adapter.losses import weight_inputs
from anyaccel.adapter.notifying_program import AfterStep, NotifyingProgram
from anyaccel.backend import MultiStepProgram
from anyaccel.data.arrow_columns import widened
from anyaccel.errors import StateError
from anyaccel.phases.executor.cross_segment import CrossSegmentStep, Losses, PipelineStage, SpanOf
from anyaccel.phases.executor.custom_step import CustomStep
from anyaccel.phases.loading.epoch_plan import StepRows, StepSize
from anyaccel.phases.loading.loader import DeviceColumns
from anyaccel.results.events import LogEvent, discard_event
from anyaccel.segment import NodeState

TrainSteps = Callable[[int, int, StepSize], list[Losses]]
TrainStep = Callable[[StepRows, StepSize], list[Losses]]
Evaluate = Callable[[StepRows], tuple[dict[str, Any], list[Losses]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRunner:
    """Train and evaluate with the rows of one chunk; everything is looked up beforehand.

    Its functions are not closures: the frames of an error would hold closures, and with them the columns, for the
    lifetime of the error.

    Attributes:
        train_step: Function that trains one step with some rows of each feature set in it, at most a number of rows at
            once.
        try_step: The same for a test of memory; the caller restores a snapshot afterwards.
        evaluate: Function that returns outputs by value name (None if their rows are missing) and losses, on the
            devices.
        one_by_one: Function that trains several equal steps without a program that takes them in one call.
        stage: The only stage, if its program takes several steps in one call; otherwise None.
        program: Program of this stage.
        columns: Its columns, in the order of its inputs.
        orders: Orders of these columns.
        n_rows: Length of the orders, as the program is compiled for; 0 without one, as in evaluations.
        labels: Labels of its losses.
        weighted: Labels of the losses that weight rows or positions.
        elements: By label, the number of elements of a row in the mean of a loss.
    """

    train_step: TrainStep
    try_step: Callable[[StepRows, StepSize], None]
    evaluate: Evaluate
    one_by_one: TrainSteps
    stage: PipelineStage | None = None
    program: MultiStepProgram | None = None
    columns: Sequence[Any] = ()
    orders: Sequence[Any] = ()
    n_rows: int = 0
    labels: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    elements: Mapping[str, int] = field(default_factory=dict)

    def train_steps(self, start: int, n_steps: int, size: StepSize) -> list[Losses]:
        """Train steps of one size, from row `start` of all orders on."""
        arguments = size.arguments(self.program)
        if arguments is None or self.program is None or self.stage is None:
            return self.one_by_one(start, n_steps, size)
        means = self.program.train_steps(self.columns, self.orders, start, n_steps, *arguments)
        return [self.losses_of(means, n_steps, size.rows)]

    def train_and_notify(self, start: int, n_steps: int, size: StepSize, after_step: AfterStep) -> Any:
        """Run `train_steps` with a program that `notifies_steps`; return the mean losses of the completed steps."""
        assert isinstance(self.program, NotifyingProgram)
        batch_size, *more = size.arguments(self.program) or (size.rows,)
        return self.program.train_and_notify(self.columns, self.orders, start, n_steps, batch_size, after_step, *more)

    def notifies_steps(self, size: StepSize) -> bool:
        """Return whether the program for steps of this size reports each of them."""
        return isinstance(self.program, NotifyingProgram) and size.arguments(self.program) is not None

    def losses_of(self, means: Any, n_steps: int, batch_size: int) -> Losses:
        """Return the losses of some steps that the program has done, from the means that it gave."""
        assert self.stage is not None
        return Losses(
            self.stage.backend,
            batch_size,
            self.labels,
            means,
            n_steps,
            weighted=self.weighted,
            elements=self.elements,
        )

    @property
    def layout(self) -> list[list[int]]:
        """The shapes of columns and orders that programs are compiled for."""
        return [list(map(int, array.shape)) for array in (*self.columns, *self.orders)]

    def compile(self, size: StepSize) -> None:
        """Compile steps of one size.

        Raises:
            CompileError: they cannot be compiled.
        """
        arguments = size.arguments(self.program)
        if self.program is not None and arguments is not None:
            self.program.compile(self.columns, self.orders, *arguments)


class Restorable(Protocol):
    """State outside programs that training steps change."""

    def snapshot(self) -> Any:
        """Return a copy of it."""

    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""


class StepLearner(Restorable, Protocol):
    """Learns from every training step of the programs, on the host."""

    def step(self, values: Mapping[str, Any], span_of: SpanOf, to_host: Callable[[str, Any], np.ndarray]) -> None:
        """Learn from a step: from values of nodes by name, its rows, and a function that copies a value to the host."""


class Pipeline:
    """The programs of one phase.

    Args:
        stages: Stages in the order of computation.
        learners: Nodes that learn from every training step; with some, steps run one by one.
        log_event: Function that is called if values cannot be copied between frameworks as planned.
        custom_step: The training step, if it is a custom one.
        make_step: Function that creates the object that runs steps one by one.

    Attributes:
        stages: The segments and their programs.
        loss_scalings: Loss scales of all programs; empty if losses are not scaled.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        learners: Sequence[StepLearner] = (),
        log_event: LogEvent = discard_event,
        custom_step: CustomStep | None = None,
        make_step: Callable[[Sequence[PipelineStage], LogEvent], CrossSegmentStep] = CrossSegmentStep,
    ) -> None:
        self._custom_step = custom_step
        self.stages = tuple(stages)
        self._cross_segment = make_step(self.stages, log_event)
        self.loss_scalings = self._cross_segment.loss_scalings
        if learners:
            self._cross_segment.watchers = [partial(learner.step, to_host=self.to_host) for learner in learners]
        self._beside: Sequence[Restorable] = learners if custom_step is None else [custom_step]  # never both
        whole = len(stages) == 1 and not self._beside and self._cross_segment.multi_step
        only = stages[0].program if whole else None
        self._multi_step = only if isinstance(only, MultiStepProgram) else None

    @property
    def can_compile(self) -> bool:
        """Whether any of the programs has something to compile its steps with."""
        for stage in self.stages if self._custom_step is None else ():
            estimate = getattr(type(stage.program), "estimate_compile", MultiStepProgram.estimate_compile)
            if estimate is not MultiStepProgram.estimate_compile:
                return True
        return False

    @property
    def multi_step(self) -> bool:
        """Whether one program takes several steps in one call."""
        return self._multi_step is not None

    @property
    def notifies_steps(self) -> bool:
        """Whether one program runs whole steps and reports each step of a call."""
        return isinstance(self._multi_step, NotifyingProgram)

    @property
    def on_host(self) -> bool:
        """Whether everything is computed on a CPU."""
        for stage in self.stages:
            for operation in stage.segment.operations:
                if operation.device.kind != "cpu":
                    return False
        return True

    def runner(self, columns: DeviceColumns) -> ChunkRunner:
        """Return the object that trains and evaluates with the rows of a chunk."""
        steps: CrossSegmentStep | CustomStep = self._cross_segment
        rows: Any = self._cross_segment.bind(columns)
        evaluate = partial(self._cross_segment.evaluate, rows)
        if self._custom_step is not None:
            steps, rows = self._custom_step, self._custom_step.bind(columns)
        runner = ChunkRunner(
            train_step=partial(steps.train_step, rows),
            try_step=partial(steps.try_step, rows),
            evaluate=evaluate,
            one_by_one=partial(steps.train_steps, rows),
        )
        if self._multi_step is None:
            return runner
        segment, taken, orders = self.stages[0].segment, list[Any](), list[Any]()
        for name in segment.inputs:
            taken.append(columns[name].rows)
            orders.append(columns[name].order)
        weighted, elements = list[str](), dict[str, int]()
        for term in segment.losses:
            elements[term.label] = term.elements
            target = columns.get(term.inputs[1]) if len(term.inputs) > 1 else None
            if target is not None and term.elements != 1:  # targets may have another length than planned
                planned = math.prod(segment.inputs[term.inputs[1]][0].shape)
                elements[term.label] = term.elements * int(math.prod(target.rows.shape[1:])) // planned
            if weight_inputs(term):
                weighted.append(term.label)
        return replace(
            runner,
            stage=self.stages[0],
            program=self._multi_step,
            columns=tuple(taken),
            orders=tuple(orders),
            n_rows=0 if not orders or orders[0] is None else int(orders[0].shape[0]),
            labels=tuple(elements),
            weighted=tuple(weighted),
            elements=elements,
        )

    def to_host(self, name: str, value: Any) -> np.ndarray:
        """Return one output in host memory; in float32 for a floating dtype that NumPy itself lacks."""
        return widened(self._cross_segment.makers[name].backend.to_host(value))

    def seed(self, key: int) -> None:
        """Restart the random streams of all programs."""
        for stage in self.stages:
            stage.program.seed(key)

    def random_state(self) -> list[Mapping[str, np.ndarray]] | None:
        """Return the position of each program's random streams; None if a program cannot report it."""
        states = [stage.program.random_state() for stage in self.stages]
        present = [state for state in states if state is not None]
        return present if len(present) == len(states) else None

    def load_random_state(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Continue where `random_state` was taken.

        Raises:
            StateError: other programs, or a program does not take its state.
        """
        if len(states) != len(self.stages):
            raise StateError(
                f"the random states are those of {len(states)} programs, but {len(self.stages)} are needed"
            )
        for stage, state in zip(self.stages, states, strict=True):
            stage.program.load_random_state(state)

    def synchronize(self) -> None:
        """Wait for all steps so far.

        Raises:
            OutOfMemoryError: one of them did not fit, which its device told only now.
        """
        for stage in self.stages:
            stage.program.synchronize()

    @property
    def is_updating(self) -> bool:
        """Whether an error came between the first and the last update of one step."""
        return self._cross_segment.is_updating or (self._custom_step is not None and self._custom_step.is_updating)

    def count_steps(self) -> int:
        """Steps since the programs were built, as the optimizers count them: the most of any node."""
        if self._custom_step is not None:
            return self._custom_step.n_done
        counts = [0]
        for stage in self.stages:
            before = stage.segment.states
            for label, state in stage.program.live_optimizer_states().items():
                counts.append(state.step - (before[label].step if label in before else 0))
        return max(counts) + sum(scaling.n_skipped for scaling in self.loss_scalings)

    def run_uncompiled(self) -> None:
        """Run the steps of all programs uncompiled; see `MultiStepProgram.run_uncompiled`."""
        for stage in self.stages:
            if isinstance(stage.program, MultiStepProgram):
                stage.program.run_uncompiled()

    def renew_compiled(self) -> list[str]:
        """Return the changed Python values of all programs; see `Program.renew_compiled`."""
        return [name for stage in self.stages for name in stage.program.renew_compiled()]

    def snapshot(self) -> tuple[Any, list[Any]]:
        """Return a copy of everything that a step changes: outside of the programs, and in each of them.

        Raises:
            OutOfMemoryError: no room for a copy.
            EstimatorError: an estimator that learns cannot be copied.
        """
        learned, states = list[Any](), list[Any]()
        for one in self._beside:
            learned.append(one.snapshot())
        for stage in self.stages:
            states.append(stage.program.snapshot())
        return learned, states

    def restore(self, snapshot: tuple[Any, Sequence[Any]]) -> None:
        """Go back to a snapshot."""
        learned, states = snapshot
        self._cross_segment.is_updating = False
        for one, state in zip(self._beside, learned, strict=True):
            one.restore(state)
        for stage, state in zip(self.stages, states, strict=True):
            stage.program.restore(state)

    def sync_models(self, states: MutableMapping[str, NodeState]) -> None:
        """Copy the current values to the user's models, and the optimizer state of each node to `states`."""
        self.sync_values()
        for stage in self.stages:
            states.update(stage.program.optimizer_states())

    def read_states(self) -> dict[str, NodeState]:
        """Copy the current values to the user's models; return the optimizer states to be read before the next step."""
        self.sync_values()
        states: dict[str, NodeState] = {}
        for stage in self.stages:
            states |= stage.program.live_optimizer_states()
        return states

    def sync_values(self) -> None:
        """Copy the current values to the user's models; if they are sharded, all processes do so together."""
        self._cross_segment.begin_reading()
        for stage in self.stages:
            stage.program.sync_models()

    def close(self, states: MutableMapping[str, NodeState]) -> None:
        """End all programs: the user's models receive the result, `states` the optimizer state of each node.

        Every program is closed, even if another one raises, and again if an interrupt came in between: models must not
        be left with values of two steps. The first failure is raised at the end.
        """
        self._beside = self._cross_segment.watchers = ()  # a cycle that would keep the programs until collected
        failures: list[BaseException] = []
        for stage in self.stages:
            for _ in range(2):
                try:
                    states.update(stage.program.close())
                    break
                except Exception as failure:
                    failures.append(failure)
                    break
                except BaseException as interrupt:
                    failures.append(interrupt)
        if failures:
            raise failures[0]
