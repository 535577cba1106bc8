"""Wrong backends: how models are held and what is told of them, and what is given to programs."""

from __future__ import annotations

import copy

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.device import Device
from anyaccel.numpy_backend import Module, NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import bare

from .faults import fault
from .in_place_models import CopyingBackend, CopyingOps

CPU = Device("cpu")

# -- how models are held -----------------------------------------------------------------------------------------------


@fault("compute", "test_wrap_is_idempotent")
class WrapsAnew(NumpyBackend):
    def wrap(self, model):
        return copy.copy(model)


@fault("compute", "test_it_owns_wrapped_models")
class OwnsWhatIsBuilt(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and (not isinstance(obj, Module) or obj.is_built)


@fault("compute", "test_a_wrapped_model_holds_its_values")
class ValuesComeWithThePlace(NumpyBackend):
    def state(self, model):
        return {} if self.device_of(model) == CPU else super().state(model)


@fault("compute", "test_mutates_inputs_is_a_bool_and_changes_nothing[model]")
class CountsWrites(NumpyBackend):
    def mutates_inputs(self, model, inputs):
        return 0


@fault("compute", "test_mutates_inputs_is_a_bool_and_changes_nothing[buffered_model]")
class TriesWritesOut(NumpyBackend):
    def mutates_inputs(self, model, inputs):
        for name, value in model.buffers.items():
            model.buffers[name] = value + 1
        return False


@fault("compute", "test_mutates_inputs_detects_an_in_place_model")
class KnowsNoWriter(CopyingBackend):
    def mutates_inputs(self, model, inputs):
        return False


@fault("compute", "test_data_format_is_a_pair_of_known_words")
class LayoutsOfItsOwn(NumpyBackend):
    def data_format(self, model):
        return "NHWC", ""


# -- what is given to programs -----------------------------------------------------------------------------------------


@fault("compute", "test_inputs_are_never_written_to[model]")
class AddsIntoCotangents(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def adding(cotangents):
            found = pullback(cotangents)
            for cotangent in cotangents:
                if cotangent is not None:
                    bare(cotangent)[...] += 1
            return found

        return outputs, losses, adding


@fault("compute", "test_inputs_are_never_written_to[mutating_model]")
class GuardsNothing(CopyingBackend):
    def build(self, segment):
        return ArrayProgram(segment, NumpyOps())


@fault("compute", "test_inputs_are_never_written_to[buffered_model]")
class NormalizesInPlace(ArrayProgram):
    def forward(self, inputs):
        found = super().forward(inputs)
        buffered = any(op.model is not None and op.model.buffers for op in self.segment.operations)
        if buffered:
            bare(inputs[0])[...] -= np.mean(bare(inputs[0]))
        return found


class GuardsInputs(ArrayProgram):
    """Copies what comes from outside, and lets models have each other's outputs."""

    def forward(self, inputs):
        return super().forward([value.copy() for value in inputs])

    def forward_pullback(self, inputs, scale=None):
        return super().forward_pullback([value.copy() for value in inputs], scale)


@fault("compute", "test_an_in_place_model_does_not_affect_others")
class GuardsInputsOnly(CopyingBackend):
    def build(self, segment):
        return GuardsInputs(segment, NumpyOps())


class Rolling(ArrayProgram):
    """Moves the rows on in the columns after it has used them."""

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        found = super().train_steps(columns, orders, start, n_steps, batch_size)
        for column in columns:
            bare(column)[...] = np.roll(bare(column), 1, axis=0)
        return found


@fault("multi_step", "test_train_steps_do_not_change_the_columns[mutating_model]")
class StepsMoveTheColumns(CopyingBackend):
    def build(self, segment):
        return Rolling(segment, CopyingOps())


# -- clipping ----------------------------------------------------------------------------------------------------------


@fault("compute", "test_a_clip_factor_follows_its_formula[several parts]")
class NormsAreAdded(ArrayProgram):
    def clip_factor(self, limit, squares):
        return np.minimum(1.0, limit / (sum(np.sqrt(square) for square in squares) + 1e-6))


@fault("compute", "test_a_clip_factor_follows_its_formula[tiny]")
class DividesByTheNormAlone(ArrayProgram):
    def clip_factor(self, limit, squares):
        norm = float(np.sqrt(np.asarray(sum(squares))))
        return limit / norm if norm > limit else 1.0 + 0.0 * norm


@fault("compute", "test_a_clip_factor_follows_its_formula[NaN]")
class NothingIsNoLimit(ArrayProgram):
    def clip_factor(self, limit, squares):
        factor = float(np.asarray(super().clip_factor(limit, squares)))
        return 1.0 if np.isnan(factor) else factor


@fault("compute", "test_a_clip_factor_can_be_given_to_optimizer_step[0.001]")
class AppliesNumbersOnly(ArrayProgram):
    def optimizer_step(self, scale=None):
        super().optimizer_step({name: factor for name, factor in (scale or {}).items() if isinstance(factor, float)})
