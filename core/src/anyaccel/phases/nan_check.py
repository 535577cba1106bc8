"""NaN checks of a TrainPhase: in its data, where NaN would make every loss NaN; in losses; in scaled gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from anyaccel.data import Rows, joined_array
from anyaccel.errors import NaNWarning
from anyaccel.graph import Plan, Resolution
from anyaccel.graph.nodes import kind_of
from anyaccel.phases.executor.cross_segment import LossScaling
from anyaccel.phases.loading.host_columns import HostColumn, stored_values
from anyaccel.phases.loop_extension import LoopExtension
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.precision import LossScaleState
from anyaccel.printable import printable
from anyaccel.segment import Segment
from anyaccel.user_level import user_level


def notes(
    phase: PhaseSettings,
    plan: Plan,
    segments: Sequence[Segment],
    rows: Mapping[str, Rows],
    arrays: Mapping[str, HostColumn],
) -> tuple[str, ...]:
    """Return a note for each column whose NaN would reach a node that a TrainPhase trains by gradients.

    Features count unless a model that may handle NaN comes before the trained node; targets count if a named loss takes
    them, because a custom loss may leave out NaN.

    Args:
        phase: Any phase; only a TrainPhase has notes.
        plan: Plan of the phase.
        segments: Its segments, in the order of computation.
        rows: Data of the phase, by feature set.
        arrays: Columns of the plan as loaded, by name; those of a source are not known beforehand.
    """
    if not phase.trains:
        return ()
    origins: dict[str, set[str]] = {}
    reached: set[str] = set()
    for segment in segments:
        trained = {label for group in segment.groups for label in group.nodes}
        for operation in segment.operations:
            inputs = set[str]()
            for value in operation.inputs:
                inputs |= origins.get(value, {value})
            passed_on = inputs if kind_of(operation.model).passes_nan_on else set[str]()
            origins.update(dict.fromkeys(operation.outputs, passed_on))
            if operation.label in trained:
                reached |= inputs
    for segment in segments:
        for term in segment.losses:
            taken = term.inputs[:1] + term.inputs[2:] if term.inputs[2:] else term.inputs  # weights may leave NaN out
            for value in taken if term.loss.own is None else ():
                reached |= origins.get(value, {value})
    found: dict[str, None] = {}
    for column in plan.columns:
        loaded = stored_values(arrays[column.name]) if column.name in reached and column.name in arrays else None
        if loaded is None or loaded.dtype.kind != "f":
            continue
        with np.errstate(invalid="ignore"):  # the minimum is NaN if any number is, and computing it allocates nothing
            if not np.isnan(loaded.min(initial=np.inf)):
                continue
        feature_set, role = rows[column.feature_set], "features" if column.role == "features" else "targets"
        for name in column.columns:
            array = joined_array(feature_set, (name,))
            if array.dtype.kind == "f" and (count := int(np.isnan(array.reshape(len(array), -1)).any(axis=1).sum())):
                split, label = phase.data if isinstance(phase.data, str) else "all", feature_set.label
                axes = tuple(range(1, 1 + len(feature_set.spec(name).shape)))
                condition = f"lambda rows: np.isfinite(rows).all({axes})" if axes else "np.isfinite"  # one value a row
                hint = f"train without these rows: data={label}.split({split!r}).filter({{{name!r}: {condition}}})"
                if role == "features":
                    hint = f"build the graph on {label}.fit_transform(SimpleImputer(), [{name!r}], fit_on={split!r})"
                problem = f"{role} {name!r} hold NaN in {count} of {len(feature_set)} rows; losses will be NaN."
                found[f"{problem} Hint: {hint}"] = None
    return tuple(found)


def warn(phase: PhaseSettings, nan_notes: Sequence[str], resolution: Resolution) -> bool:
    """Issue one NaNWarning with the notes, if any, unless the phase ignores NaN; return whether it was issued.

    Also warn of trained parameters in float16, whose gradients and updates silently become 0 or not finite.
    """
    if not phase.trains or phase.on_nan == "ignore":
        return False
    if nan_notes:
        warnings.warn(printable(f"phase {phase.label!r}: {'. '.join(nan_notes)}."), NaNWarning, stacklevel=user_level())
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for group in segment.groups:
            for operation in segment.operations:
                is_trained = operation.label in group.nodes and operation.model is not None
                if is_trained and backend.dtype_of(operation.model) == "float16":
                    problem = f"phase {phase.label!r}: the parameters of node {operation.label!r} are float16, in "
                    problem += "which updates are lost or not finite. Hint: convert them to float32, and write "
                    problem += "precision='fp16-mixed' to compute in float16"
                    warnings.warn(printable(problem), NaNWarning, stacklevel=user_level())
    return bool(nan_notes)


# -- Losses: the first one of a run that is NaN or infinite -----------------------------------------------------------


_HINT = "lower lr, set clip_norm=1.0 of the Optimizer, or look for NaN in the data and in your own losses"


class NonFiniteLosses(LoopExtension):
    """Acts on NaN and infinite losses as `TrainPhase.on_nan` says; looks at whole epochs, on the host.

    Args:
        run: Run of a TrainPhase.
        warned: Whether a warning of NaN in the data was issued already.
    """

    def __init__(self, run: Run, *, warned: bool = False) -> None:
        self._run = run
        self._warned = warned

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        """Look at the losses of training: the first step that is not finite in each, or that nothing counted."""
        if all(map(math.isfinite, means.values())):
            return
        first = losses.first_not_finite()
        if first:
            step = min(step for step, _ in first.values())
            values = {label: value for label, (at, value) in first.items() if at == step}
            self._found(values, f"at step {step + 1} of epoch {self._run.epoch + 1}", hint=_HINT)
        elif losses.weightless:
            values = dict.fromkeys(losses.weightless, math.nan)
            where = f"in epoch {self._run.epoch + 1}, because nothing counts: all weights are 0"
            self._found(values, where, hint="look at sample_weight, mask, class_weights and ignore_index of the loss")

    def validation(self, values: Mapping[str, float]) -> None:
        """Check the losses among the values of a validation; metrics may be NaN."""
        losses = {loss.label: values.get(f"loss.{loss.label}", 0.0) for loss in self._run.phase.all_losses}
        not_finite = {label: value for label, value in losses.items() if not math.isfinite(value)}
        if not_finite:
            self._found(not_finite, f"in the validation after epoch {self._run.epoch + 1}", hint=_HINT)

    def _found(self, values: Mapping[str, float], where: str, *, hint: str) -> None:
        on_nan, named = self._run.phase.on_nan, []
        nodes = {loss.label: loss.on for loss in self._run.phase.all_losses}
        for label, value in values.items():
            loss = f"loss {label!r} on node {nodes[label]!r}" if label in nodes else ""
            named.append(f"{loss or f'the figure {label!r} of your step'} is {value}")
        problem = f"{' and '.join(named)} {where}"
        if on_nan == "stop":
            self._run.stop(problem)
        if on_nan != "ignore" and not self._warned:
            self._warned = True
            label = self._run.phase.label
            stop = (
                ""
                if on_nan == "stop"
                else "; on_nan='stop' ends the run when this happens, on_nan='ignore' silences this warning"
            )
            message = f"phase {label!r}: {problem}. Hint: {hint}{stop}"
            warnings.warn(printable(message), NaNWarning, stacklevel=user_level())


# -- Gradients: the steps that a loss scale skips because scaled gradients are not finite ------------------------------


class LossScaleReport(LoopExtension):
    """Count the steps whose scaled gradients were not finite, epoch by epoch.

    Args:
        run: The run, which receives the reports.
        scaling: Loss scales of all programs.
        resumed: Position of an earlier run; None if this one starts from scratch, or losses were not scaled.
    """

    def __init__(self, run: Run, scaling: LossScaling, resumed: LossScaleState | None) -> None:
        self._run, self._scaling, self._resumed = run, scaling, resumed
        self._skipped_before = self._n_skipped = 0

    def run_begins(self) -> None:
        if self._resumed is not None:
            self._scaling.load(self._resumed)

    def steps_begin(self, losses: LossAccumulator) -> None:
        self._skipped_before = self._scaling.state.skipped

    def steps_end(self, losses: LossAccumulator, means: Mapping[str, float]) -> None:
        n_skipped = self._scaling.state.skipped - self._skipped_before
        if n_skipped > 0:
            self._n_skipped += n_skipped
            self._run.log_event(
                "precision",
                f"{n_skipped} of {self._run.step} steps were skipped because gradients were not finite; "
                f"losses are now scaled by {self._scaling.scale:g}",
            )

    def run_ends(self) -> None:
        """Warn where all steps were skipped."""
        n_steps = sum(epoch.steps for epoch in self._run.history)
        if self._n_skipped < n_steps or not n_steps or self._run.phase.on_nan == "ignore":
            return
        label = self._run.phase.label
        problem = (
            f"phase {label!r}: all of its {n_steps} steps were skipped because gradients were not finite in float16"
        )
        hint = (
            "Hint: train for more steps, because each skipped step halves the scale, or set a "
            "smaller loss_scale=; if values exceed 65504, scale the data, or use precision='bf16-mixed', which has "
            "the range of float32"
        )
        warnings.warn(printable(f"{problem}: nothing was learned. {hint}"), NaNWarning, stacklevel=user_level())
