"""Loop factory: the training loop of a phase with the requested features; other features cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError
from anyaccel.phases.checkpointing.checkpointer import CheckpointWrites, Resumption
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.compile_policy import CompilePolicy
from anyaccel.phases.evaluation import Validation
from anyaccel.phases.hooks import EpochHooks
from anyaccel.phases.loop_extension import UNLIMITED, CallInProgress, LoopExtension
from anyaccel.phases.nan_check import LossScaleReport, NonFiniteLosses
from anyaccel.phases.oom_recovery import EpochRecovery
from anyaccel.phases.progress import Progress
from anyaccel.phases.progress.throttled import ProgressReports
from anyaccel.phases.runner import PhasePrograms
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.step_listeners import StepListeners, StepNotifier
from anyaccel.phases.train_loop import TrainLoop


def train_loop(phase: PhaseSettings, programs: PhasePrograms) -> TrainLoop:
    """Return the loop of a TrainPhase with its features in the order of their actions.

    At the end of the loop they act in reverse order.
    """
    run, pipeline, group, rows = programs.run, programs.pipeline, programs.group, programs.loaded[0]
    hooks, progress, checkpointers = programs.hooks, programs.progress, programs.checkpointers
    in_progress, non_finite = CallInProgress(), NonFiniteLosses(run, warned=programs.nan_in_data)
    begins, steps_before = Position(phase=phase.label, epoch=0, number=0), 0
    writes, resumption, extensions = list[LoopExtension](), list[LoopExtension](), list[LoopExtension]()
    for checkpointer in checkpointers:
        writing = CheckpointWrites(run, checkpointer, pipeline, rows, in_progress)
        writes.append(writing)
        if checkpointer.resumed is not None:
            begins = checkpointer.resumed
            steps_before = begins.step + sum(epoch.steps for epoch in begins.history)
            resumption.append(Resumption(run, begins, writing, checkpointer, pipeline, rows))
    for evaluation in programs.evaluations:
        extensions.append(Validation(run, evaluation, non_finite, progress))
    if type(progress) is not Progress:
        extensions.append(ProgressReports(run, progress, rows, begins.history, begins.step))
    for callback in hooks.callbacks:
        of_callback = callback.loop_extensions(programs)
        if not isinstance(of_callback, Sequence) or not all(isinstance(each, LoopExtension) for each in of_callback):
            problem = (
                f"{type(callback).__name__}.loop_extensions returned {shown(of_callback)}, no LoopExtension objects"
            )
            raise PhaseError(problem, hint="return them in a list, of classes derived from LoopExtension")
        extensions += of_callback
    before_hooks, after_hooks = group.loop_extensions(run, pipeline)
    extensions += before_hooks
    extensions.append(EpochHooks(run, hooks, pipeline))
    if hooks.max_call_steps == 1 and pipeline.notifies_steps:
        extensions.append(StepNotifier(run, hooks, pipeline, progress, in_progress))
    elif hooks.step_listeners or hooks.has_steps_done_listeners:
        extensions.append(StepListeners(run, hooks, pipeline))
    extensions += after_hooks
    extensions += resumption
    if programs.learners.labels:
        extensions.append(programs.learners)
    extensions.append(
        CompilePolicy(
            run,
            pipeline,
            rows.loader,
            rows.batch_size,
            max_call_steps=hooks.max_call_steps or UNLIMITED,
            may_stop_early=hooks.may_stop,
            on_activity=progress.doing,
        )
    )
    extensions.append(
        EpochRecovery(
            run,
            pipeline,
            rows,
            hooks.callbacks,
            in_progress,
            steps_before=steps_before,
            takes_snapshots=group.keeps_snapshots,
            goes_on=group.size == 1,
        )
    )
    if phase.on_nan != "ignore":
        extensions.append(non_finite)
    for scaling in pipeline.loss_scalings:
        extensions.append(LossScaleReport(run, scaling, begins.loss_scale))
    extensions += writes
    return TrainLoop(
        phase=phase,
        run=run,
        pipeline=pipeline,
        rows=rows,
        group=group,
        in_progress=in_progress,
        extensions=extensions,
    )
