"""Loop factory: the training loop of a phase with the requested features; other features cost nothing."""

from __future__ import annotations

from anyaccel.phases.checkpointing.checkpointer import CheckpointWrites, Resumption
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.compile_policy import CompilePolicy
from anyaccel.phases.evaluation import Validation
from anyaccel.phases.hooks import EpochHooks
from anyaccel.phases.loop_extension import UNLIMITED, CallInProgress, LoopExtension
from anyaccel.phases.loss_scale_report import LossScaleReport
from anyaccel.phases.nan_check import NonFiniteLosses
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
    in_progress = CallInProgress()
    resumed = [(one, one.resumed) for one in checkpointers if one.resumed is not None]
    begins = next((position for _, position in resumed), Position(phase=phase.label, epoch=0, number=0))
    non_finite = NonFiniteLosses(run, warned=programs.nan_in_data)
    writes = [CheckpointWrites(run, one, pipeline, rows, in_progress) for one in checkpointers]
    if hooks.max_call_steps == 1 and pipeline.notifies_steps:
        listeners: list[LoopExtension] = [StepNotifier(run, hooks, pipeline, progress, in_progress)]
    else:
        listens = hooks.step_listeners or hooks.has_steps_done_listeners
        listeners = [StepListeners(run, hooks, pipeline)] if listens else []
    extensions: list[LoopExtension] = [
        *(Validation(run, evaluation, non_finite, progress) for evaluation in programs.evaluations),
        *([] if type(progress) is Progress else [ProgressReports(run, progress, rows, begins)]),
        *(one for callback in hooks.callbacks for one in callback.loop_extensions(programs)),
        *group.before_hooks(run, pipeline),
        EpochHooks(run, hooks, pipeline),
        *listeners,
        *group.after_hooks(run, pipeline),
        *(Resumption(run, begins, writes[0], one, pipeline, rows) for one, _ in resumed),
        *([programs.learners] if programs.learners else []),
        *group.step_checks(phase, pipeline),
        CompilePolicy(
            run,
            pipeline,
            rows.loader,
            rows.batch_size,
            max_call_steps=hooks.max_call_steps or UNLIMITED,
            may_stop_early=hooks.may_stop,
            on_activity=progress.doing,
        ),
        EpochRecovery(
            run,
            pipeline,
            rows,
            hooks.callbacks,
            in_progress,
            steps_before=sum(epoch.steps for epoch in begins.history) + begins.step,
            takes_snapshots=group.keeps_snapshots,
            goes_on=group.size == 1,
        ),
        *([] if phase.on_nan == "ignore" else [non_finite]),
        *(LossScaleReport(run, scaling, begins.loss_scale) for scaling in pipeline.loss_scalings),
        *writes,
    ]
    return TrainLoop(
        phase=phase,
        run=run,
        pipeline=pipeline,
        rows=rows,
        group=group,
        in_progress=in_progress,
        extensions=extensions,
    )
