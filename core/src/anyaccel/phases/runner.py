"""Runner: executes a phase: resolve, place, load, build, loop, release, with the hooks in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from anyaccel import interrupts
from anyaccel.adapter.outer_contexts import OuterContexts
from anyaccel.backend import Backend
from anyaccel.data import BatchSource
from anyaccel.device import Device
from anyaccel.graph import Resolution, memory_sharing, resolve
from anyaccel.phases import nan_check, running
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.checkpointing.checkpointer import Checkpointer, checkpointers_for
from anyaccel.phases.distributed.devices import check_replicable, replica_notes
from anyaccel.phases.distributed.joining import is_first, process_group
from anyaccel.phases.distributed.sharding import check_sharding, sharding_notes
from anyaccel.phases.estimator_fit import awaiting_fit, fit, left_to_fit, next_to_fit, with_fit_note
from anyaccel.phases.estimator_inputs import upstream_nodes
from anyaccel.phases.estimator_partial_fit import PartialFitEstimators
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.evaluation import Evaluation
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.fit_phase import FitPhase
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.loading.input_data import PhaseSources
from anyaccel.phases.loading.loader import BatchLoader
from anyaccel.phases.loading.residency import bytes_added_by_training, make_loaders
from anyaccel.phases.loop_factory import train_loop
from anyaccel.phases.model_placement import final_devices, place, warn_of_fallbacks
from anyaccel.phases.oom_recovery import OutOfMemoryRecovery, custom_losses, training_couplings
from anyaccel.phases.oom_report import OutOfMemoryReport
from anyaccel.phases.outer_contexts import check_precision, leave_contexts
from anyaccel.phases.phase import Phase
from anyaccel.phases.pipeline_building import build_pipeline
from anyaccel.phases.plan_request import evaluated_losses, kept_outputs, learners_of, parts_of, plan_request, streams_of
from anyaccel.phases.plateau import listening_schedules
from anyaccel.phases.prepare import PreparedPart, prepare
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.phases.train_phase import TrainPhase, all_losses
from anyaccel.phases.validation import trained_as
from anyaccel.registry import registry
from anyaccel.results.records import EvaluationValues


def execute(
    run: Run, callbacks: Iterable[Callback] = (), progress: Progress | None = None, resume: str = "never"
) -> EvaluationValues | None:
    """Execute the phase of a run on its graph. `run` holds what is complete, whatever happens.

    Args:
        run: says which phase on which graph.
        callbacks: called before those of the phase.
        progress: is told how far it is.
        resume: whether a TrainPhase with a Checkpoint goes on from the newest one: `"auto"` or `"never"`.

    Returns:
        the values of an EvalPhase; None for a TrainPhase, whose epochs are in `run.history`.

    Raises:
        AnyaccelError: whatever keeps the phase from running; PhaseError if another phase is running on the graph.
    """
    with interrupts.deferred():
        run.is_main_process = is_first(run.phase)
        shown = (progress if progress is not None and run.is_main_process else Progress()).begin(run.phase.label)
        run.heard = shown.event
        try:
            hooks = HookCaller(registry().hooks, _callbacks_of(run, callbacks))
            return _execute(_PhaseExecution(run, hooks, shown, resume), run)
        finally:
            shown.end()


def _callbacks_of(run: Run, callbacks: Iterable[Callback]) -> list[Callback]:
    """The callbacks of an experiment and its phase, after the schedules that listen to a training."""
    given = [*callbacks, *run.phase.callbacks]
    if not isinstance(run.phase, TrainPhase):
        return given
    optimizers = [run.graph.optimizer, *(getattr(node, "optimizer", None) for node in run.graph.nodes.values())]
    return [*listening_schedules(optimizers, given), *given]


def _execute(execution: _PhaseExecution, run: Run) -> EvaluationValues | None:
    try:
        running.claim(run)
        return execution.run()
    except BaseException as error:
        run.error = error
        if run.looping and isinstance(error, Exception):
            _note_lengths(error, run)
        raise
    finally:
        try:
            with interrupts.deferred():
                execution.end()
        except KeyboardInterrupt as interrupt:  # it may have come before anything was given back
            execution.end(interrupt)
            raise


def _note_lengths(error: Exception, run: Run) -> None:
    """A model may have been made for one length, which is known only when a batch of another comes."""
    ragged = [] if run.plan is None else [column.shown for column in run.plan.columns if column.ragged]
    if ragged:
        error.add_note(
            f"the rows of {', '.join(ragged)} differ in length, and each batch is padded to its own longest; a model "
            "that takes one length needs pad={'COLUMN': Pad(..., length=...)}"
        )


class _PhaseExecution:
    """Runs one phase: resolve, place, load, build, loop, release."""

    def __init__(self, run: Run, hooks: HookCaller, progress: Progress, resume: str) -> None:
        self._run = run
        self._phase: Phase = run.phase
        self._graph = run.graph
        self._hooks = hooks
        self._progress = progress
        self._pipeline: Pipeline | None = None
        self._policies: list[OutOfMemoryRecovery] = []
        self._opened = PhaseSources()
        self._final_devices: dict[str, Device] = {}
        self._nan_in_data = False
        self._resume = resume
        self._checkpointers: list[Checkpointer] = []
        self._first_buffers: Mapping[str, np.ndarray] = {}  # of replicas that have others
        self._settings = ExitStack()  # of frameworks, which are as before when the phase ends
        self._contexts = ExitStack()  # in place of the caller's
        self._left: Mapping[Backend, OuterContexts] = {}

    def run(self) -> EvaluationValues | None:
        phase, graph = self._phase, self._graph
        if isinstance(phase, TrainPhase):  # those of the experiment and of optimizers are known now
            phase.check_monitors(self._hooks.callbacks)
        self._left = self._contexts.enter_context(leave_contexts(graph))
        for what in (what for left in self._left.values() for what in left.set_aside):
            self._run.log_event("context", what, verbose=True)
        self._hooks.call("phase_start", phase=phase, run=self._run)
        learners = learners_of(phase, graph)
        callbacks, writes = self._hooks.callbacks, self._run.is_main_process
        self._checkpointers = checkpointers_for(self._run, callbacks, self._resume, learners, writes=writes)
        if not isinstance(phase, FitPhase):
            return self._round()
        with awaiting_fit(left_to_fit(phase, graph), graph):
            values = self._round()
            while left_to_fit(phase, graph, self._run.done):  # what these need is known only now
                self._close()
                values = self._round()
        return values

    def _round(self) -> EvaluationValues | None:
        """From a plan to its end. A FitPhase has several rounds if estimators need each other's outputs."""
        phase, graph, run = self._phase, self._graph, self._run
        with interrupts.allowed():  # shapes are inferred, files are read
            resolution = resolve(graph, plan_request(phase, graph, run.done))
            run.plan = with_fit_note(phase, resolution.plan, graph, run.done)
            check_precision(phase, resolution.plan, self._left)
            check_replicable(phase, resolution, learners_of(phase, graph))
            check_sharding(phase, resolution)
            group = process_group(phase, resolution, graph)
            parts = prepare(phase, resolution, graph, run.done, self._opened, group)
        self._use_settings(resolution)
        own = parts[0]
        run.rows, run.batch_size = own.evaluated.rows, own.factory.batch_size
        learners = PartialFitEstimators(learners_of(phase, graph), graph, own.rows, streams_of(phase, graph))
        nan_notes = nan_check.notes(phase, run.plan, resolution.segments, own.rows, own.factory.arrays)
        shares = (*replica_notes(phase, run.plan, own.factory.batch_size), *sharding_notes(phase, resolution))
        plan = run.plan = replace(run.plan, notes=(*run.plan.notes, *shares, *nan_notes))
        after = final_devices(phase, plan)
        memory_sharing.share(plan)
        self._hooks.call("before_placement", phase=phase, plan=plan, run=run)
        warn_of_fallbacks(plan)
        self._nan_in_data = nan_check.warn(phase, nan_notes)
        self._final_devices.update(after)
        plans = {each.node: each.offload for each in plan.assignments if each.offload is not None}
        place(graph, {assignment.node: assignment.device for assignment in plan.assignments}, plans)
        self._hooks.call("after_placement", phase=phase, plan=plan, run=run)
        for note in (note for part in parts for note in part.factory.notes()):
            run.log_event("source", note)
        for checkpointer in self._checkpointers:
            checkpointer.join(group)
        arrays = {f"{part.part.label}: {key}": each for part in parts for key, each in part.factory.arrays.items()}
        group.check_begin(phase, graph, arrays)
        del arrays
        with interrupts.allowed():
            loaders = self._load(parts, resolution)
        pipeline = self._pipeline = build_pipeline(resolution, graph, phase, learners, run.log_event, group)
        run.attach(pipeline)
        graph.refresh = partial(pipeline.sync_models, graph.optimizer_states)
        self._policies = [self._policy(*pair, pipeline, learners) for pair in zip(parts, loaders, strict=True)]
        del loaders  # a loader that is replaced must not be kept
        self._hooks.call("after_loading", phase=phase, plan=plan, run=run)
        return self._loop(pipeline, parts, learners, resolution.shapes.outputs, group)

    def _use_settings(self, resolution: Resolution) -> None:
        self._settings.close()
        for backend, value in resolution.matmul_precisions:
            self._settings.enter_context(backend.matmul_precision(value))

    def _load(self, parts: Sequence[PreparedPart], resolution: Resolution) -> list[BatchLoader]:
        phase = self._phase
        self._progress.loading(f"the data of {phase.label}", sum(part.nbytes for part in parts))
        training_bytes = bytes_added_by_training(resolution.plan, resolution.segments, self._graph.optimizer_states)
        factories, names = [part.factory for part in parts], [part.name for part in parts]
        return make_loaders(
            phase.residency, factories, names, training_bytes, self._run.log_event, self._progress.loaded
        )

    def _policy(
        self, part: PreparedPart, loader: BatchLoader, pipeline: Pipeline, learners: PartialFitEstimators
    ) -> OutOfMemoryRecovery:
        may_stream, trains = self._phase.residency != "resident", isinstance(part.part, TrainPhase)
        report = OutOfMemoryReport(
            label=part.part.label,
            trains=trains,
            may_stream=may_stream,
            couplings=_couplings(part.part, pipeline, learners),
            factory=part.factory,
            pipeline=pipeline,
        )
        return OutOfMemoryRecovery(
            name=part.name,
            loader=loader,
            batch_size=part.factory.batch_size,
            streamed=part.factory.streamed if may_stream else None,
            report=report,
            log_event=self._run.log_event,
        )

    def _loop(
        self,
        pipeline: Pipeline,
        parts: Sequence[PreparedPart],
        learners: PartialFitEstimators,
        value_names: Mapping[str, Sequence[str]],
        group: ProcessGroup,
    ) -> EvaluationValues | None:
        phase, run = self._phase, self._run
        evaluations = [
            self._evaluation(pipeline, part, policy, learners, value_names, group)
            for part, policy in zip(parts, self._policies, strict=True)
            if not isinstance(part.part, TrainPhase)
        ]
        if isinstance(phase, TrainPhase):
            train_loop(
                phase=phase,
                run=run,
                pipeline=pipeline,
                recovery=self._policies[0],
                hooks=self._hooks,
                progress=self._progress,
                learners=learners,
                validations=evaluations,
                nan_in_data=self._nan_in_data,
                checkpointers=self._checkpointers,
                group=group,
            ).run()
            self._first_buffers = group.check_end(self._graph)
            return None
        values = evaluations[0].run()
        if isinstance(phase, FitPhase):
            labels = next_to_fit(phase, self._graph, run.done)
            fit(labels, self._graph, values.outputs, parts[0].evaluated.rows, run.fitted)
            return replace(values, outputs={})
        run.evaluation = values
        return values

    def _evaluation(
        self,
        pipeline: Pipeline,
        part: PreparedPart,
        policy: OutOfMemoryRecovery,
        learners: PartialFitEstimators,
        value_names: Mapping[str, Sequence[str]],
        group: ProcessGroup,
    ) -> Evaluation:
        phase, graph = part.part, self._graph
        keep: Sequence[str] = ()
        losses, trained = evaluated_losses(self._phase, phase, graph), all_losses(self._phase)
        if isinstance(phase, FitPhase):
            keep = upstream_nodes(next_to_fit(phase, graph, self._run.done), graph)
        elif isinstance(phase, EvalPhase) and phase is self._phase:
            keep = kept_outputs(phase, graph)
        return Evaluation(
            pipeline=pipeline,
            policy=policy,
            rows=part.evaluated,
            losses=[(loss, trained_as(loss, losses if phase is self._phase else trained)) for loss in losses],
            metrics=part.metrics,
            keep=keep,
            value_names=value_names,
            learners=learners,
            log_event=self._run.log_event,
            group=group if part.is_shared else SingleProcess(),
        )

    def end(self, interrupt: BaseException | None = None) -> None:
        """Give the state back to the models, and call `phase_end`, whatever else fails. A second call is ignored."""
        run = self._run
        if not running.is_claimed(run):
            return
        if run.error is None:
            run.error = interrupt
        try:
            with self._contexts, self._settings:
                self._release()
        except BaseException as failure:
            if run.error is None:
                run.error = failure
                raise
            run.error.add_note(f"release also failed: {type(failure).__name__}: {failure}")
        finally:
            run.attach(None)
            while self._checkpointers:
                self._checkpointers.pop().close()
            running.release(run)
            if run.error is not None:
                release_frames(run.error)
            self._hooks.phase_end(run.error, phase=self._phase, plan=run.plan, run=run)

    def _close(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        policies, self._policies = self._policies, []
        self._graph.refresh = None
        try:
            for policy in policies:
                policy.rows.loader.close()
        finally:
            if pipeline is not None:
                pipeline.close(self._graph.optimizer_states)

    def _release(self) -> None:
        with ExitStack() as sources:
            if self._run.error is not None:
                # A phase that has not come to its loaders may have opened sources. They are not left to be freed: the
                # error, which is kept, keeps the functions of its frames, and what these have from outside.
                for source in (*_given_sources(self._phase), *self._opened.batches):
                    sources.callback(source.close)
            self._close()
        last = self._run.final_state
        if self._run.error is None and (last is not None or self._first_buffers):
            progress = dict(self._graph.progress)
            self._graph.load_state({**(self._graph.state() if last is None else last), **self._first_buffers})
            self._graph.progress = progress
        place(self._graph, self._final_devices)


def _given_sources(phase: Phase) -> Iterator[BatchSource]:
    """The sources of batches that a phase and its validation were given."""
    for part in parts_of(phase):
        values = part.data.values() if isinstance(part.data, Mapping) else [part.data]
        yield from (value for value in values if isinstance(value, BatchSource))


def _couplings(part: Phase, pipeline: Pipeline, learners: PartialFitEstimators) -> list[str]:
    """Why the steps of a phase, or of its validation, may not be computed in micro-batches."""
    if not isinstance(part, TrainPhase):
        return custom_losses(pipeline.stages)
    if part.step is not None:
        return ["the step, which is your own"]
    if part.microbatching == "approximate":
        return []
    each_batch = [f"the estimator {label!r}, which learns from each batch" for label in learners.labels]
    return training_couplings(pipeline.stages) + each_batch
