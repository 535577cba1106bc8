"""Wrong backends: wrapping and properties of models, protection of inputs, clip factors."""

from __future__ import annotations

import copy

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.device import Device
from anyaccel.numpy_backend import Module, NumpyBackend, SequentialCNN
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import bare

from .faults import fault
from .in_place_models import CopyingBackend, CopyingOps

CPU = Device("cpu")

# -- wrapped models ----------------------------------------------------------------------------------------------------


@fault("compute", "test_wrap_is_idempotent")
class WrapsAnew(NumpyBackend):
    def wrap(self, model):
        return copy.copy(model)


@fault("compute", "test_it_owns_wrapped_models")
class OwnsBuiltModelsOnly(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and (not isinstance(obj, Module) or obj.is_built)


@fault("compute", "test_it_owns_its_named_models")
class OwnsOneOfItsNamedModels(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and not (isinstance(obj, SequentialCNN) and not obj.is_built)


@fault("compute", "test_a_wrapped_model_holds_its_values")
class StateIsEmptyOnTheCpu(NumpyBackend):
    def state(self, model):
        return {} if self.device_of(model) == CPU else super().state(model)


@fault("compute", "test_mutates_inputs_is_a_bool_and_changes_nothing[model]")
class MutatesInputsIsAnInt(NumpyBackend):
    def mutates_inputs(self, model, inputs):
        return 0


@fault("compute", "test_mutates_inputs_is_a_bool_and_changes_nothing[buffered_model]")
class MutatesInputsChangesBuffers(NumpyBackend):
    def mutates_inputs(self, model, inputs):
        for name, value in model.buffers.items():
            model.buffers[name] = value + 1
        return False


@fault("compute", "test_mutates_inputs_detects_an_in_place_model")
class MutatesInputsIsAlwaysFalse(CopyingBackend):
    def mutates_inputs(self, model, inputs):
        return False


@fault("compute", "test_data_format_is_a_pair_of_known_words")
class UnknownDataFormat(NumpyBackend):
    def data_format(self, model):
        return "NHWC", ""


# -- protection of inputs ----------------------------------------------------------------------------------------------


@fault("compute", "test_inputs_are_never_written_to[model]")
class AddsIntoCotangents(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def adding(cotangents):
            result = pullback(cotangents)
            for cotangent in cotangents:
                if cotangent is not None:
                    bare(cotangent)[...] += 1
            return result

        return outputs, losses, adding


@fault("compute", "test_inputs_are_never_written_to[mutating_model]")
class CopiesNothing(CopyingBackend):
    def build(self, segment):
        return ArrayProgram(segment, NumpyOps())


@fault("compute", "test_inputs_are_never_written_to[buffered_model]")
class NormalizesInPlace(ArrayProgram):
    def forward(self, inputs):
        result = super().forward(inputs)
        buffered = any(op.model is not None and op.model.buffers for op in self.segment.operations)
        if buffered:
            bare(inputs[0])[...] -= np.mean(bare(inputs[0]))
        return result


class CopiesInputs(ArrayProgram):
    """Copies the inputs of the segment, but not values between models."""

    def forward(self, inputs):
        return super().forward([value.copy() for value in inputs])

    def forward_pullback(self, inputs, scale=None):
        return super().forward_pullback([value.copy() for value in inputs], scale)


@fault("compute", "test_an_in_place_model_does_not_affect_others")
class CopiesInputsOnly(CopyingBackend):
    def build(self, segment):
        return CopiesInputs(segment, NumpyOps())


class RollsTheColumns(ArrayProgram):
    """Rolls the rows of the columns after use."""

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        result = super().train_steps(columns, orders, start, n_steps, batch_size)
        for column in columns:
            bare(column)[...] = np.roll(bare(column), 1, axis=0)
        return result


@fault("multi_step", "test_train_steps_do_not_change_the_columns[mutating_model]")
class StepsMoveTheColumns(CopyingBackend):
    def build(self, segment):
        return RollsTheColumns(segment, CopyingOps())


# -- clipping ----------------------------------------------------------------------------------------------------------


@fault("compute", "test_a_clip_factor_follows_its_formula")
class NormsAreAdded(ArrayProgram):
    def clip_factor(self, limit, squares):
        return np.minimum(1.0, limit / (sum(np.sqrt(square) for square in squares) + 1e-6))


@fault("compute", "test_a_clip_factor_follows_its_formula")
class DividesByTheNormAlone(ArrayProgram):
    def clip_factor(self, limit, squares):
        norm = float(np.sqrt(np.asarray(sum(squares))))
        return limit / norm if norm > limit else 1.0 + 0.0 * norm


@fault("compute", "test_a_clip_factor_follows_its_formula")
class NaNIsOne(ArrayProgram):
    def clip_factor(self, limit, squares):
        factor = float(np.asarray(super().clip_factor(limit, squares)))
        return 1.0 if np.isnan(factor) else factor


@fault("compute", "test_a_clip_factor_can_be_given_to_optimizer_step[0.001]", also="multi_step")
class IgnoresTensorScales(ArrayProgram):
    def optimizer_step(self, scale=None):
        super().optimizer_step({name: factor for name, factor in (scale or {}).items() if isinstance(factor, float)})
