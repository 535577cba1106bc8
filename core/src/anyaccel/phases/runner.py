"""Runner: phases that plan and run themselves on a graph, and one execution of a phase with its hooks."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import numpy as np

from anyaccel import interrupts
from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.arguments import shown
from anyaccel.backend import Backend
from anyaccel.data import BatchSource
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.extensions import extend
from anyaccel.graph import ModelGraph, ModelNode, Plan
from anyaccel.graph.graph import LiveValues
from anyaccel.graph.plan_entries import layouts
from anyaccel.graph.shape_inference import share
from anyaccel.launched import is_main_process
from anyaccel.phases import nan_check
from anyaccel.phases.bound_phase import bound, final_devices, place, warn_of_fallbacks
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.checkpointing.checkpointer import Checkpointer
from anyaccel.phases.evaluation import Evaluation, trained_as
from anyaccel.phases.executor.cross_segment import PipelineStage
from anyaccel.phases.executor.custom_step import CustomStep
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.learners import Learners, learning
from anyaccel.phases.loading.host_columns import note_lengths
from anyaccel.phases.loading.input_data import PhaseSources
from anyaccel.phases.loading.residency import LoaderFactory, bytes_added_by_training, make_loaders
from anyaccel.phases.memory_error import release_frames
from anyaccel.phases.oom_recovery import OutOfMemoryRecovery, OutOfMemoryReport
from anyaccel.phases.planning import plan_for, plan_of
from anyaccel.phases.plateau import listening_schedules
from anyaccel.phases.prepare import PreparedPart, evaluated_losses, leave_contexts, prepare, resolve_phase, streams_of
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.process_groups import process_groups, trains_alone
from anyaccel.phases.progress import Progress, progress_for
from anyaccel.phases.progress.selection import checked_progress
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings, checked_callbacks
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel.results import PhaseResults
from anyaccel.results.records import EvaluationValues
from anyaccel.segment import Operation, ParameterGroup, Segment
from anyaccel.user_level import user_level


class Phase(PhaseSettings):
    """Base class of phases. Subclasses define how they compute and what their results are.

    A custom kind of phase has a `kind` and overrides `draw`, `compute` and `results_of`, and any other method of this
    class and PhaseSettings (which documents the arguments) whose default does not apply to it.
    """

    def plan(self, graph: ModelGraph, inventory: Any = None) -> Plan:
        """Plan the phase on a graph without running it; see `Experiment.plan`.

        Args:
            graph: The graph that it would run on.
            inventory: Another machine, as an Inventory or as text such as `"8x H100-80GB"`; None for this machine.

        Raises:
            AnyaccelError: the phase cannot run.
        """
        if not isinstance(graph, ModelGraph):
            raise PhaseError(f"phase {self.label!r}: graph={shown(graph)} is not a ModelGraph", hint="pass the graph")
        return plan_for(self, graph, inventory)

    def run_on(
        self,
        graph: ModelGraph,
        *others: Any,
        callbacks: Iterable[Any] = (),
        progress: Any = "auto",
        resume: str = "never",
    ) -> list[Any]:
        callbacks = checked_callbacks(f"experiment {graph.label!r}", callbacks)
        checked_progress(progress)
        history: list[PhaseResults] = []

        def run(phase: Phase, *, resume: str) -> PhaseResults:
            return phase.run_once(graph, graph.label, callbacks, progress, resume, history)

        return run_in_order((self, *others), graph, callbacks, resume, run)

    def run_once(
        self,
        graph: ModelGraph,
        experiment: str,
        callbacks: Iterable[Callback],
        progress: Any,
        resume: str,
        history: list[Any],
    ) -> PhaseResults:
        """Run the phase on a graph.

        Args:
            graph: The graph.
            experiment: Label of the experiment.
            callbacks: Callbacks that are called before those of the phase.
            progress, resume: See `Experiment` and `Experiment.run_phase`.
            history: List that receives the results, even if the phase fails or is interrupted.

        Raises:
            AnyaccelError: the phase cannot run.
        """
        run = Run(bound(self, graph), graph, experiment)
        values, started, began = None, datetime.now(UTC), time.perf_counter()
        with interrupts.deferred():
            try:
                values = execute(run, callbacks, progress_for(progress), checked_resume(resume))
            finally:
                record = {
                    "label": run.phase.label,
                    "plan": run.plan,
                    "error": run.error,
                    "events": tuple(run.events),
                    "number": len(history),
                    "started": started,
                    "seconds": time.perf_counter() - began,
                }
                results: PhaseResults = run.phase.results_of(run, values, record)
                history.append(results)
            return results

    def execute(self, execution: PhaseExecution) -> EvaluationValues | None:
        """Execute the phase: one round, from a plan to the end of the computation.

        Args:
            execution: The execution; its `round` may be called several times.

        Returns:
            The values of an evaluation; None for other phases.
        """
        return execution.round()

    def compute(self, programs: PhasePrograms) -> EvaluationValues | None:
        """Compute the phase.

        Args:
            programs: The programs and everything else it needs: models are placed, and rows are loaded.

        Returns:
            The values of an evaluation; None for other phases.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define what it computes")

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> PhaseResults:
        """Return the results of a run of this phase.

        Args:
            run: The run, which ended with or without an error.
            values: The output of `execute`; None after an error.
            record: The fields that all PhaseResults have.
        """
        return PhaseResults(**record)


RESUME = ("auto", "never")


def checked_resume(resume: Any) -> str:
    """Return the argument `resume`.

    Raises:
        PhaseError: unknown.
    """
    if resume in RESUME and isinstance(resume, str):
        return resume
    is_folder = isinstance(resume, os.PathLike) or (isinstance(resume, str) and "/" in resume)
    hint = f"write checkpoint={str(resume)!r}, resume='auto'" if is_folder else "write resume='auto'"
    if resume is None or resume is False:
        hint = "leave resume out, which starts the phase anew"
    raise PhaseError(f"unknown resume={shown(resume)}", available=", ".join(map(repr, RESUME)), hint=hint)


def run_in_order(
    phases: Sequence[Phase], graph: ModelGraph, callbacks: Iterable[Callback], resume: str, run: Callable[..., Any]
) -> list[Any]:
    """Run phases in order. They are planned before the first one runs, up to a phase that may change the graph.

    Args:
        phases: At least one phase.
        graph: The graph.
        callbacks: Callbacks for all phases.
        resume: The argument for phases that have a checkpoint.
        run: Function that runs one phase, with `resume`.

    Raises:
        AnyaccelError: one of them cannot run.
    """
    resumed = [
        phase for phase in phases if phase.checkpoint is not None
    ] or phases  # without any, the first is an error
    if len(phases) > 1:
        checked_resume(resume)
        for phase in phases:
            of_users = (
                callback
                for callback in (*callbacks, *phase.callbacks)
                if not type(callback).__module__.startswith("anyaccel.")
            )
            if next(of_users, None) is not None:  # it may change the graph
                break
            plan_of(phase, graph)
            if graph.shapes.unfitted or phase.next_to_fit(graph, ()):  # what fitted estimators give is known then
                break
    return [run(phase, resume=resume if phase in resumed else "never") for phase in phases]


def execute(
    run: Run, callbacks: Iterable[Callback] = (), progress: Progress | None = None, resume: str = "never"
) -> EvaluationValues | None:
    """Execute the phase of a run on its graph. `run` holds the completed part, even after an error.

    Args:
        run: The run, with its phase and graph.
        callbacks: Callbacks that are called before those of the phase.
        progress: Progress that receives reports.
        resume: Whether a TrainPhase with a Checkpoint resumes from the newest one: `"auto"` or `"never"`.

    Returns:
        The values of an EvalPhase; None for a TrainPhase, whose epochs are in `run.history`.

    Raises:
        AnyaccelError: anything that keeps the phase from running; PhaseError if another phase is running on the graph.
    """
    phase, graph = run.phase, run.graph
    with interrupts.deferred():
        run.is_main_process = trains_alone(phase) or is_main_process()
        shown = (progress if progress is not None and run.is_main_process else Progress()).begin(phase.label)
        run.heard = shown.event
        try:
            everybody = [*callbacks, *phase.callbacks]
            if phase.trains:  # schedules that listen to a training come first
                everybody = [*listening_schedules(graph, everybody), *everybody]
            execution = PhaseExecution(run, HookCaller(registry().hooks, everybody), shown, resume)
            try:
                claim(run)
                return execution.start()
            except BaseException as error:
                run.error = error
                if run.plan is not None and run.looping and isinstance(error, Exception):
                    note_lengths(error, run.plan.columns)
                raise
            finally:
                try:
                    with interrupts.deferred():
                        execution.end()
                except KeyboardInterrupt as interrupt:  # it may have come before anything was given back
                    execution.end(interrupt)
                    raise
        finally:
            shown.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrograms:
    """Everything that a phase computes with.

    Attributes:
        run: The record, with the phase and the graph.
        hooks: Plugins and callbacks.
        progress: Progress that receives reports.
        checkpointers: Writers of checkpoints, which know the position of an earlier run; none or one.
        group: Processes that compute it together.
        parts: Data of the phase, and of its validation if it has one.
        loaded: The rows of each part on devices, with the measures if they do not fit.
        evaluations: Evaluations of the phase itself or of its validation.
        pipeline: The programs.
        learners: Nodes that learn from every step without gradients.
        nan_in_data: Whether there was a warning of NaN in the data.
    """

    run: Run
    hooks: HookCaller
    progress: Progress
    checkpointers: Sequence[Checkpointer]
    group: ProcessGroup
    parts: Sequence[PreparedPart]
    loaded: Sequence[OutOfMemoryRecovery]
    evaluations: Sequence[Evaluation]
    pipeline: Pipeline
    learners: Learners
    nan_in_data: bool


class PhaseExecution:
    """One execution of a phase: resolve, place, load, build, compute, release.

    Args:
        run: The record, with the phase and the graph.
        hooks: Plugins and callbacks.
        progress: Progress that receives reports.
        resume: See `execute`.
    """

    def __init__(self, run: Run, hooks: HookCaller, progress: Progress, resume: str) -> None:
        self.run, self._hooks, self._progress, self._resume = run, hooks, progress, resume
        self._checkpointers: list[Checkpointer] = []
        self._opened = PhaseSources()
        self._final_devices: dict[str, Device] = {}
        self._first_buffers: Mapping[str, np.ndarray] = {}  # of replicas that have others
        self._programs = ExitStack()  # closes loaders, and gives the state back to the models
        self._settings = ExitStack()  # of frameworks, which are as before when the phase ends
        self._contexts = ExitStack()  # in place of the caller's
        self._left: Mapping[Backend, OuterContexts] = {}

    def start(self) -> EvaluationValues | None:
        """Leave the caller's contexts, find the position of an earlier run, and let the phase compute."""
        run, callbacks = self.run, self._hooks.callbacks
        phase, graph = run.phase, run.graph
        phase.check_monitors(callbacks)  # those of the experiment and of optimizers are known now
        self._left = self._contexts.enter_context(leave_contexts(graph))
        for left in self._left.values():
            for what in left.set_aside:
                run.log_event("context", what, verbose=True)
        self._hooks.call("phase_start", phase=phase, run=run)
        if phase.checkpoint is not None:
            writes = run.is_main_process
            self._checkpointers = [Checkpointer(phase.checkpoint, run, callbacks, self._resume, writes=writes)]
        elif self._resume == "auto":
            problem = f"phase {phase.label!r} has no checkpoint to resume from"
            raise PhaseError(problem, hint="write checkpoint='runs/a' in fit or TrainPhase")
        values: EvaluationValues | None = phase.execute(self)
        return values

    def round(self) -> EvaluationValues | None:
        """Run one round, from a plan to the end of its computation. A FitPhase has several if estimators need each
        other.
        """
        run, hooks = self.run, self._hooks
        phase, graph, done = run.phase, run.graph, run.done
        graph.live_values = LiveValues()
        self._programs.close()
        with interrupts.allowed():  # shapes are inferred, files are read
            groups = process_groups(phase, graph)
            resolution, labels = resolve_phase(phase, graph, groups, self._left, done)
            run.plan = resolution.plan
            group = groups.group(phase, resolution, labels)
            on_host = (*labels, *phase.next_to_fit(graph, done))
            parts = prepare(phase, resolution, graph, on_host, self._opened, groups, group)
        self._settings.close()
        for computes, value in resolution.matmul_precisions:
            self._settings.enter_context(computes.matmul_precision(value))
        first = parts[0]
        run.rows, run.batch_size = first.evaluated.rows, first.factory.batch_size
        learners = Learners()
        if labels:
            learners = learning().learners(labels, graph, first.rows, streams_of(phase, graph))
        nan_notes = nan_check.notes(phase, run.plan, resolution.segments, first.rows, first.factory.arrays)
        shares = groups.notes(phase, resolution, first.factory.batch_size)
        plan = run.plan = replace(run.plan, notes=(*run.plan.notes, *shares, *nan_notes))
        after: dict[str, Device] = {}
        if phase.final_device is not None:
            after = final_devices(phase, phase.final_device, plan)
        share(plan)
        hooks.call("before_placement", phase=phase, plan=plan, run=run)
        warn_of_fallbacks(plan)
        nan_in_data = nan_check.warn(phase, nan_notes, resolution)
        _warn_of_ended_schedules(phase, resolution.segments, first.factory.n_steps)
        self._final_devices.update(after)
        place(graph, {assignment.node: assignment.device for assignment in plan.assignments}, layouts(plan.assignments))
        hooks.call("after_placement", phase=phase, plan=plan, run=run)
        arrays: dict[str, Any] = {}
        factories, names, n_bytes = list[LoaderFactory](), list[str](), 0
        for part in parts:
            for note in part.factory.notes():
                run.log_event("source", note)
            # No loop: its variable would keep an array through the training, which runs within this call.
            arrays |= {f"{part.part.label}: {key}": array for key, array in part.factory.arrays.items()}
            factories.append(part.factory)
            names.append(f"the data of {part.part.label}")
            n_bytes += sum(part.factory.nbytes().values())
        for checkpointer in self._checkpointers:
            checkpointer.join(group)
        group.check_begin(phase, graph, arrays)
        arrays.clear()
        with interrupts.allowed():
            self._progress.loading(f"the data of {phase.label}", n_bytes)
            added = bytes_added_by_training(plan, resolution.segments, graph.optimizer_states)
            loaders = make_loaders(phase.residency, factories, names, added, run.log_event, self._progress.loaded)
        stages: list[PipelineStage] = []
        try:
            for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
                models = {label: getattr(node, "model", None) for label, node in graph.nodes.items()}  # as placed
                operations, has_gradient = list[Operation](), False
                for operation in segment.operations:
                    operations.append(replace(operation, model=models[operation.label]))
                    has_gradient = has_gradient or not resolution.live.isdisjoint(operation.outputs)
                segment = replace(
                    segment,
                    operations=tuple(operations),
                    states={label: graph.optimizer_states[label] for label in segment.states},
                    frozen={label: models[label] for label in segment.frozen},
                    compile=phase.compile,
                )
                stages.append(PipelineStage(segment, backend, group.build(segment, backend), has_gradient))
        except BaseException:
            Pipeline(stages).close({})
            raise
        custom_step = None
        if phase.step is not None:
            custom_step = CustomStep(stages[0], phase.step, resolution.step_columns, phase.label)
        pipeline = Pipeline(stages, [learners] if labels else [], run.log_event, custom_step, group.step)
        self._programs.callback(pipeline.close, graph.optimizer_states)
        run.attach(pipeline)
        graph.live_values = LiveValues(
            True, partial(pipeline.sync_models, graph.optimizer_states), pipeline.read_states
        )
        loaded, evaluations = list[OutOfMemoryRecovery](), list[Evaluation]()
        for part, name, loader in zip(parts, names, loaders, strict=True):
            report = OutOfMemoryReport(
                part=part.part,
                may_stream=phase.residency != "resident",
                learners=learners.labels,
                factory=part.factory,
                pipeline=pipeline,
                may_try=not part.part.trains or group.size == 1,
            )
            rows = OutOfMemoryRecovery(name=name, loader=loader, report=report, log_event=run.log_event)
            self._programs.callback(rows.close)
            loaded.append(rows)
            if part.part.trains:
                continue
            losses = evaluated_losses(phase, part.part, graph)
            trained = losses if part.part is phase else phase.all_losses
            evaluation = Evaluation(
                pipeline=pipeline,
                loaded=rows,
                rows=part.evaluated,
                losses=[(loss, trained_as(loss, trained)) for loss in losses],
                metrics=part.metrics,
                keep=phase.kept_nodes(graph, done) if part.part is phase else (),
                value_names=resolution.shapes.outputs,
                learners=learners,
                log_event=run.log_event,
                group=group if part.is_shared else SingleProcess(),
            )
            evaluations.append(evaluation)
        del loaders, loader  # one that is replaced must not be kept
        hooks.call("after_loading", phase=phase, plan=plan, run=run)
        programs = PhasePrograms(
            run=run,
            hooks=hooks,
            progress=self._progress,
            checkpointers=self._checkpointers,
            group=group,
            parts=parts,
            loaded=loaded,
            evaluations=evaluations,
            pipeline=pipeline,
            learners=learners,
            nan_in_data=nan_in_data,
        )
        values: EvaluationValues | None = phase.compute(programs)
        if phase.trains:
            self._first_buffers = group.check_end(graph)
        return values

    def end(self, interrupt: BaseException | None = None) -> None:
        """Return the state to the models, and call `phase_end`, even if something else fails. A second call is
        ignored.
        """
        run = self.run
        if _GRAPHS.get(id(run.graph)) is not run:  # it was released, or never claimed
            return
        if run.error is None:
            run.error = interrupt
        try:
            with self._contexts, self._settings:
                graph = run.graph
                with ExitStack() as sources:
                    if run.error is not None:
                        # A phase that has not come to its loaders may have opened sources. They are not left to be
                        # freed: the error, which is kept, keeps the functions of its frames, and what these have from
                        # outside.
                        for source in (*_given_sources(run.phase), *self._opened.batches):
                            sources.callback(source.close)
                    graph.live_values = LiveValues()
                    self._programs.close()
                last = run.final_state
                if run.error is None and (last is not None or self._first_buffers):
                    progress = dict(graph.progress)
                    graph.load_state({**(graph.state() if last is None else last), **self._first_buffers})
                    graph.progress = progress
                place(graph, self._final_devices)
        except BaseException as failure:
            if run.error is None:
                run.error = failure
                raise
            run.error.add_note(f"release also failed: {type(failure).__name__}: {failure}")
        finally:
            run.attach(None)
            while self._checkpointers:
                self._checkpointers.pop().close()
            release(run)
            if run.error is not None:
                release_frames(run.error)
            self._hooks.phase_end(run.error, phase=run.phase, plan=run.plan, run=run)


def _warn_of_ended_schedules(phase: PhaseSettings, segments: Sequence[Segment], n_steps: int | None) -> None:
    """Warn of schedules of new optimizers that are at 0 in more than a hundredth of the steps, which change nothing."""
    if not phase.trains or n_steps is None or (phase.schedule or "").startswith("alternate"):  # each in a part of them
        return
    steps, groups = n_steps * phase.epochs, dict[str, ParameterGroup]()
    for segment in segments:
        for group in segment.groups:
            groups[group.name] = group
    for group in groups.values():
        schedule = group.optimizer.schedule
        ended = 0 if schedule.end is None else steps - schedule.end
        if ended <= steps // 100:
            continue
        states = [segment.states[node] for segment in segments for node in group.nodes if node in segment.states]
        if not any(state.step for state in states):
            hint = f"write Schedule({schedule.name!r}, steps={steps - schedule.warmup}, ...), or final=0.01"
            problem = (
                f"phase {phase.label!r}: the schedule {schedule.name!r} ends at step {schedule.end:,}, so the learning "
                f"rate is 0 in {ended:,} of {steps:,} steps. Hint: {hint}"
            )
            warnings.warn(printable(problem), UserWarning, stacklevel=user_level())


def _given_sources(phase: PhaseSettings) -> Iterator[BatchSource]:
    """Yield the sources of batches that a phase and its validation were given."""
    for part in phase.parts:
        values = part.data.values() if isinstance(part.data, Mapping) else [part.data]
        yield from (value for value in values if isinstance(value, BatchSource))


# -- -------------------------------------------------------------------------------------------------------------------
# Running: which graphs and models the phases of this process are using; a second phase on one of them is refused.


# While a phase runs its programs hold the state: the models must not be read or changed by another phase.
_LOCK = threading.Lock()
_GRAPHS: dict[int, Run] = {}
_MODELS: dict[int, tuple[Any, str, Run, int]] = {}
"""By the id of a model: the model, the label of its node, the run that uses it, and the thread of this run."""


def running_phases() -> list[str]:
    """Return labels of the phases that are running."""
    return [run.phase.label for run in list(_GRAPHS.values())]


extend("running_phases", running_phases)


def claim(run: Run) -> None:
    """Mark the graph of a run and its models as in use, until `release`.

    A phase that another one's callback runs may use the models of that one: it is in the same thread.

    Raises:
        PhaseError: a phase is running on the graph; or, in another thread, on one of its models.
    """
    thread = threading.get_ident()
    with _LOCK:
        other = _GRAPHS.get(id(run.graph))
        if other is not None and other is not run:
            raise PhaseError(
                f"phase {run.phase.label!r} cannot start: {other.phase.label!r} is running on graph "
                f"{run.graph.label!r}",
                hint="evaluate with TrainPhase(validation=...), or after that phase has ended",
            )
        models: dict[int, tuple[Any, str, Run, int]] = {}
        for label, node in run.graph.nodes.items():
            # Plain functions hold no values, and may be used by several phases.
            if not isinstance(node, ModelNode) or isinstance(node.model, (FunctionType, BuiltinFunctionType, NoneType)):
                continue
            model = node.kind.held_by(node.model)
            models[id(model)] = model, label, run, thread
            if id(model) in _MODELS and _MODELS[id(model)][3] != thread:
                _, other_label, user, _ = _MODELS[id(model)]
                raise PhaseError(
                    f"phase {run.phase.label!r} cannot start: the model of its node {label!r} (graph "
                    f"{run.graph.label!r}) is being used by phase {user.phase.label!r} (node {other_label!r}, graph "
                    f"{user.graph.label!r}) in another thread",
                    hint="wait until that phase has ended, or give each graph a copy of the model: "
                    "copy.deepcopy(model)",
                )
        _GRAPHS[id(run.graph)] = run
        for key, claimed in models.items():
            _MODELS.setdefault(key, claimed)


def release(run: Run) -> None:
    """End what `claim` began."""
    with _LOCK:
        for key, claimed in list(_MODELS.items()):
            if claimed[2] is run:
                del _MODELS[key]
        _GRAPHS.pop(id(run.graph), None)  # last: what is broken off before is done again
