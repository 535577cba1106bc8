"""Wrong backends that compute in precisions: that ignore them, convert parameters, or scale by halves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend.ops import NumpyOps, NumpyPrecision
from anyaccel.precision import LossScaleState

from .faults import FAULTS, Fault, fault, having


@fault("compute", "test_a_precision_shows_in_the_outputs[bf16-mixed]")
def precisions_are_ignored(segment):
    own = segment.precision
    return segment if own is None else replace(segment, precision=replace(own, precisions=()))


@fault("compute", "test_parameters_keep_their_dtype_in_a_precision")
class ParametersAreRounded(ArrayProgram):
    """Updates parameters as if these were of 16 bits."""

    def optimizer_step(self, scale=None):
        super().optimizer_step(scale)
        if self.segment.precision is not None and self.segment.precision.precisions:
            for label, arrays in self._state.parameters.items():
                narrow = {name: array.astype(np.float16).astype(array.dtype) for name, array in arrays.items()}
                self._state.parameters[label] = narrow


@fault("compute", "test_gradients_are_those_of_scaled_losses", also="multi_step")
class LossesAreNotScaled(ArrayProgram):
    def _pull_loss(self, term, loss, scale, values, sums):
        kept, self._loss_scale = self._loss_scale, None
        super()._pull_loss(term, loss, scale, values, sums)
        self._loss_scale = kept


@fault("compute", "test_a_loss_scale_shrinks_and_grows")
class TheScaleNeverGrows(ArrayProgram):
    def update_loss_scale(self, *, finite):
        if not finite:
            super().update_loss_scale(finite=False)


@fault("compute", "test_a_loss_scale_goes_on_from_its_state")
class TheScaleBeginsAnew(ArrayProgram):
    def load_loss_scale_state(self, state):
        super().load_loss_scale_state(LossScaleState(1024.0))


@fault("multi_step", "test_steps_that_are_not_finite_are_skipped[False]")
class EveryStepIsDone(ArrayProgram):
    def _step_unless_skipped(self, means):
        kept, self._loss_scale = self._loss_scale, None
        if kept is not None:
            self._state.map_gradients(lambda gradient: gradient / kept.state.scale)
        super()._step_unless_skipped(means)
        self._loss_scale = kept


class AgainOps(NumpyOps):
    """Computes again, and from twice the cotangents."""

    def vjp(self, *arguments, remat="", **named):
        applied = super().vjp(*arguments, **named)
        if not remat:
            return applied
        return applied._replace(pullback=lambda cotangents: applied.pullback(tuple(2 * each for each in cotangents)))


class Whole(NumpyPrecision):
    def remat_blocks(self, model, remat):
        return ("",)


class Recomputes(having(Whole)):
    def build(self, segment):
        return ArrayProgram(segment, AgainOps())


FAULTS["Recomputes"] = Fault(Recomputes, "compute", "test_values_computed_again_give_the_same_gradients")
