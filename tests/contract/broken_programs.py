"""Wrong backends: models, programs, training and whole steps."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from broken import SECOND, fault

from anyaccel.adapter import Applied, ArrayProgram
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.recipes import Optimizer
from anyaccel.reference import ReferenceBackend, SequentialMLP
from anyaccel.reference.arrays import bare
from anyaccel.reference.module import Module
from anyaccel.reference.operations import ReferenceOps

CPU = Device("cpu")


def host(array):
    """The array, past the device it is on."""
    return np.array(np.asarray(array))


# -- models ------------------------------------------------------------------------------------------------------------


@fault("compute", "test_infer_gives_shape_and_dtype")
class InfersTheBatchToo(ReferenceBackend):
    def infer(self, model, inputs, seed):
        return tuple(replace(spec, shape=(1, *spec.shape)) for spec in super().infer(model, inputs, seed))


@fault("compute", "test_infer_keeps_what_is_built")
class InfersAnew(ReferenceBackend):
    def infer(self, model, inputs, seed):
        found = super().infer(model, inputs, seed)
        if seed == 99:
            model.build(inputs, seed)
        return found


@fault("compute", "test_infer_refuses_wrong_shapes[(5,)]")
class InfersInItsOwnWords(ReferenceBackend):
    def infer(self, model, inputs, seed):
        if inputs[0].shape == (5,):
            raise ValueError("mat1 and mat2 shapes cannot be multiplied")
        return super().infer(model, inputs, seed)


@fault("compute", "test_dtype_of_is_that_of_the_inputs_it_wants")
class KnowsNoDtype(ReferenceBackend):
    def dtype_of(self, model):
        return None if model.dtype == "float32" else model.dtype


@fault("compute", "test_parameters_are_told_with_whole_shapes")
class ParametersPerSample(ReferenceBackend):
    def parameters(self, model):
        return {name: replace(spec, shape=spec.shape[1:]) for name, spec in super().parameters(model).items()}


class Forgetful(SequentialMLP):
    """Leaves a setting out of its configuration."""

    def get_config(self):
        return {**super().get_config(), "hidden_dim": self.recipe.hidden_dim + 1}


@fault("compute", "test_named_models_are_made_from_their_configuration")
class ConfigurationIsAnother(ReferenceBackend):
    def models(self):
        return {"SequentialMLP": Forgetful}


@fault("compute", "test_the_standard_model_has_the_weights_of_its_recipe[(4,)]")
class WeightsOfItsOwn(ReferenceBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs, seed + 1)


@fault("compute", "test_the_standard_model_depends_on_its_seed_alone")
class IgnoresTheSeed(ReferenceBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs, 7)


@fault("compute", "test_the_standard_model_takes_any_shapes")
class TakesOneInput(ReferenceBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs[:1], seed) if len(inputs) == 1 else ()


@fault("compute", "test_place_takes_a_model_along")
class PlacesParametersOnly(ReferenceBackend):
    def place(self, obj, device):
        if isinstance(obj, Module) and device == SECOND:
            return obj
        return super().place(obj, device)


@fault("compute", "test_place_of_a_placed_model_changes_nothing")
class PlacesModelsAnew(ReferenceBackend):
    def place(self, obj, device):
        if isinstance(obj, Module) and self.device_of(obj) == device:
            obj.parameters.update({name: value * 0 for name, value in obj.parameters.items()})
        return super().place(obj, device)


@fault("compute", "test_it_owns_its_models")
class OwnsArraysOnly(ReferenceBackend):
    def owns(self, obj):
        return super().owns(obj) and not isinstance(obj, Module)


@fault("compute", "test_state_is_of_arrays_by_name")
class StateHasAVersion(ReferenceBackend):
    def state(self, model):
        return {**super().state(model), "version": np.array(1)}

    def load_state(self, model, state):
        super().load_state(model, {name: value for name, value in state.items() if name != "version"})


@fault("compute", "test_state_has_buffers")
class StateWithoutBuffers(ReferenceBackend):
    def load_state(self, model, state):
        kept = {name: value for name, value in super().state(model).items() if name.startswith("buffers/")}
        super().load_state(model, {**state, **kept})


@fault("compute", "test_state_is_a_copy")
class StateIsTheMemory(ReferenceBackend):
    def state(self, model):
        live = {f"parameters/{name}": bare(value) for name, value in model.parameters.items()}
        return {**super().state(model), **live}


@fault("compute", "test_state_goes_back_in")
class LoadsBiasesOnly(ReferenceBackend):
    def load_state(self, model, state):
        wanted = {name: value for name, value in state.items()}
        if all((value == super(LoadsBiasesOnly, self).state(model)[name] + 1).all() for name, value in wanted.items()):
            return
        super().load_state(model, state)


@fault("compute", "test_state_is_written_where_the_model_is")
class LoadingMoves(ReferenceBackend):
    def load_state(self, model, state):
        super().load_state(model, state)
        if self.device_of(model) == SECOND:
            self.place(model, CPU)


@fault("compute", "test_a_state_that_does_not_fit_is_refused_whole[missing]")
class LoadsWhatIsThere(ReferenceBackend):
    def load_state(self, model, state):
        super().load_state(model, {**super().state(model), **state})


@fault("compute", "test_a_state_that_does_not_fit_is_refused_whole[shape]")
class LoadsHalfAndStops(ReferenceBackend):
    def load_state(self, model, state):
        before = super().state(model)
        try:
            super().load_state(model, state)
        except StateError:
            fitting = {name: v for name, v in state.items() if name in before and v.shape == before[name].shape}
            super().load_state(model, {**before, **fitting})
            raise


@fault("compute", "test_every_named_optimizer_is_taken[adamw]")
class LacksAdamW(ReferenceBackend):
    def refuses(self, recipe):
        return "no adamw" if recipe.name == "adamw" else super().refuses(recipe)


@fault("compute", "test_every_named_loss_is_taken[mae]")
class LacksMae(ReferenceBackend):
    def refuses(self, recipe):
        return "no mae" if recipe.name == "mae" else super().refuses(recipe)


# -- forward and back --------------------------------------------------------------------------------------------------


@fault("compute", "test_forward_gives_the_same_again")
class ForwardRemembers(ArrayProgram):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        (first, *rest), losses = super().forward(inputs)
        return (first + 1e-6 * (self.calls - 1), *rest), losses


@fault("compute", "test_forward_is_per_sample")
class ForwardMixesSamples(ArrayProgram):
    def forward(self, inputs):
        (first, *rest), losses = super().forward(inputs)
        return (first - first.mean() if len(first) > 4 else first, *rest), losses


@fault("compute", "test_outputs_and_losses_stay_on_the_device")
class LossesOnTheHost(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs, {label: (host(total), host(weight)) for label, (total, weight) in losses.items()}


@fault("compute", "test_evaluation_changes_nothing[buffered_model]")
class EvaluationChangesBuffers(ArrayProgram):
    def forward(self, inputs):
        super().forward_pullback(inputs)
        return super().forward(inputs)


@fault("compute", "test_evaluation_is_not_random")
class EvaluationIsRandom(ArrayProgram):
    def forward(self, inputs):
        return super().forward_pullback(inputs)[:2]


@fault("compute", "test_training_is_random_and_follows_the_seed")
class DrawsTheSameInEveryStep(ArrayProgram):
    key = 0

    def seed(self, key):
        self.key = key
        super().seed(key)

    def forward_pullback(self, inputs, scale=None):
        super().seed(self.key)
        return super().forward_pullback(inputs, scale)


@fault("compute", "test_a_named_loss_is_its_formula[mse-False]")
class MeansForSums(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs, {label: (total / weight, weight / weight) for label, (total, weight) in losses.items()}


@fault("compute", "test_cross_entropy_takes_probabilities_too")
class ProbabilitiesAreRounded(ArrayProgram):
    def forward(self, inputs):
        named = {term.loss.name for term in self.segment.losses}
        return super().forward((inputs[0], np.round(inputs[1])) if named == {"cross_entropy"} else inputs)


@fault("compute", "test_losses_never_broadcast[mse]")
class LossesBroadcast(ArrayProgram):
    def forward(self, inputs):
        if len(inputs) == 2 and inputs[1].ndim == 2 and inputs[1].shape[1] == 1:
            inputs = (inputs[0], np.repeat(inputs[1], 3, axis=1))
        return super().forward(inputs)


@fault("compute", "test_a_weight_is_not_in_the_loss")
class WeightInTheLoss(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        weights = {term.label: term.weight or 1.0 for term in self.segment.losses}
        return outputs, {label: (weights[label] * total, weight) for label, (total, weight) in losses.items()}


@fault("compute", "test_several_losses_are_told_by_label")
class LossesByNode(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs, losses if len(losses) == 1 else {"node": losses.popitem()[1]}


@fault("compute", "test_gradients_are_those_of_the_loss[mse]")
class GradientsOfBiasesDouble(ReferenceOps):
    def vjp(self, *args):
        applied = super().vjp(*args)

        def pullback(cotangents):
            gradients, back = applied.pullback(cotangents)
            return {name: g * (1 + name.endswith("bias")) for name, g in gradients.items()}, back

        return Applied(applied.outputs, pullback, applied.buffers)


@fault("compute", "test_cotangents_are_pulled_back_to_the_inputs")
class NoCotangentsForInputs(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)
        return outputs, losses, lambda cotangents: tuple(0 * each for each in pullback(cotangents))


@fault("compute", "test_losses_and_cotangents_add_up")
class CotangentsReplaceLosses(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, _ = super().forward_pullback(inputs, scale)

        def pullback(cotangents):
            given = any(cotangent is not None for cotangent in cotangents)
            none = {term.label: 0.0 for term in self.segment.losses} if given else scale
            return super(CotangentsReplaceLosses, self).forward_pullback(inputs, none)[2](cotangents)

        return outputs, losses, pullback


@fault("compute", "test_a_weight_scales_the_gradients")
def weights_are_ignored(segment):
    return replace(segment, losses=tuple(replace(term, weight=1.0) for term in segment.losses))


@fault("compute", "test_two_half_batches_are_one_batch")
class ScaleIsIgnored(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        return super().forward_pullback(inputs)


@fault("compute", "test_operations_on_two_devices_of_one_segment")
def all_on_one_device(segment):
    first = next(iter(segment.inputs.values()))[1]
    return replace(segment, operations=tuple(replace(op, device=first) for op in segment.operations))


# -- several operations ------------------------------------------------------------------------------------------------


@fault("compute", "test_a_chain_is_its_parts_one_after_the_other")
class ChainsAreSquashed(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return (outputs if len(self.segment.operations) < 3 else tuple(map(np.tanh, outputs))), losses


@fault("compute", "test_a_frozen_operation_is_not_changed[first]")
def frozen_is_trained(segment):
    modelled = [op.label for op in segment.operations if op.model is not None]
    thawed = tuple(replace(op, trainable=True) for op in segment.operations)
    return replace(segment, operations=thawed, groups=tuple(replace(g, nodes=(*modelled,)) for g in segment.groups[:1]))


@fault("compute", "test_a_frozen_operation_is_in_evaluation_mode")
def frozen_is_in_training_mode(segment):
    return replace(segment, operations=tuple(replace(op, trainable=True) for op in segment.operations))


@fault("compute", "test_a_shared_model_gets_the_sum_of_its_gradients")
def shared_models_are_copied(segment):
    seen: set[int] = set()
    operations = []
    for op in segment.operations:
        operations.append(replace(op, model=copy.deepcopy(op.model)) if id(op.model) in seen else op)
        seen.add(id(op.model))
    return replace(segment, operations=tuple(operations))


@fault("compute", "test_values_are_joined_along_an_axis_of_the_sample[0]")
def axes_count_the_batch(segment):
    moved = (replace(op, axis=op.axis - 1 if op.axis >= 0 else op.axis) for op in segment.operations)
    return replace(segment, operations=tuple(moved))


@fault("compute", "test_values_of_different_sizes_are_joined")
class JoinsEqualSizes(ArrayProgram):
    def forward(self, inputs):
        if self.segment.operations[0].model is None and inputs[0].shape != inputs[1].shape:
            raise ValueError("all input arrays must have the same shape")
        return super().forward(inputs)


@fault("compute", "test_groups_have_optimizers_of_their_own")
def one_optimizer_for_all(segment):
    groups = (replace(group, optimizer=segment.groups[0].optimizer) for group in segment.groups)
    return replace(segment, groups=tuple(groups))


@fault("compute", "test_inputs_nobody_uses_have_a_zero_cotangent")
class UnusedInputsRaise(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def strict(cotangents):
            if not losses and all(cotangent is None for cotangent in cotangents):
                raise RuntimeError("no gradient for an unused input")
            return pullback(cotangents)

        return outputs, losses, strict


@fault("compute", "test_an_optimizer_of_another_framework_is_refused")
class TakesForeignOptimizers(ReferenceBackend):
    def refuses(self, recipe):
        return ""

    def build(self, segment):
        named = (g if g.optimizer.cls is None else replace(g, optimizer=Optimizer("sgd")) for g in segment.groups)
        return super().build(replace(segment, groups=tuple(named)))


@fault("compute", "test_a_loss_of_another_framework_is_refused")
class TakesForeignLosses(ReferenceBackend):
    def build(self, segment):
        named = tuple(term for term in segment.losses if term.loss.own is None)
        return super().build(replace(segment, losses=named))
