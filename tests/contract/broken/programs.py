"""Wrong programs: forward, backward, and segments of several operations."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend, SequentialMLP
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import put
from anyaccel.specs import Optimizer

from .faults import fault

CPU = Device("cpu")


def host(array):
    """A NumPy copy of an array, without its device."""
    return np.array(np.asarray(array))


# -- forward and backward ----------------------------------------------------------------------------------------------


@fault("compute", "test_forward_is_deterministic")
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


@fault("compute", "test_equal_rows_have_equal_outputs")
class RowsDropInEvaluation(NumpyOps):
    """Evaluates in training mode, with the same random numbers every time."""

    def call(self, model, parameters, buffers, inputs):
        return self.vjp(model, parameters, buffers, inputs, True, 7).outputs


@fault("compute", "test_evaluation_equals_that_without_dropout")
class FeaturesDropInEvaluation(ArrayProgram):
    """Drops the same outputs of every row if the model has dropout."""

    def forward(self, inputs):
        (first, *rest), losses = super().forward(inputs)
        drops = any(getattr(getattr(op.model, "spec", None), "dropout", 0) for op in self.segment.operations)
        return (first * put(np.array([2, 0, 2], "float32"), first.on) if drops else first, *rest), losses


class ModalMLP(SequentialMLP):
    """Drops values in evaluation, too, once its user has called `train()`."""

    in_training = False

    def train(self):
        self.in_training = True

    def apply(self, values, inputs, *, train, key):
        return super().apply(values, inputs, train=train or self.in_training, key=key)


@fault("compute", "test_evaluation_does_not_depend_on_the_users_mode[random_model]")
class LeavesTheModeToTheUser(NumpyBackend):
    def models(self):
        return {**super().models(), "SequentialMLP": ModalMLP}


@fault("compute", "test_the_users_random_state_is_kept")
class DrawsFromTheUsersGenerator(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        np.random.random_sample()
        return super().forward_pullback(inputs, scale)


@fault("compute", "test_the_users_random_state_is_kept")
class SeedsTheUsersGenerator(ArrayProgram):
    def seed(self, key):
        np.random.seed(key % 2**32)
        super().seed(key)


@fault("compute", "test_training_randomness_follows_the_seed")
class EvaluationDrawsNumbers(ArrayProgram):
    def forward(self, inputs):
        self._draws += 1
        return super().forward(inputs)


@fault("compute", "test_training_randomness_follows_the_seed")
class DrawsTheSameInEveryStep(ArrayProgram):
    key = 0

    def seed(self, key):
        self.key = key
        super().seed(key)

    def forward_pullback(self, inputs, scale=None):
        super().seed(self.key)
        return super().forward_pullback(inputs, scale)


@fault("compute", "test_random_streams_go_on_within_an_epoch")
class ForgetsHowFarItsStreamsAre(ArrayProgram):
    def random_state(self):
        return {"draws": np.array(0)}


@fault("compute", "test_named_losses_follow_their_formulas[False]")
class MeansForSums(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs, {label: (total / weight, weight / weight) for label, (total, weight) in losses.items()}


class ReadsIndicesAsWide(ArrayProgram):
    """Reads int32 class indices as int64."""

    def forward(self, inputs):
        return super().forward([x.view("int64") if x.dtype == np.int32 else x for x in inputs])


@fault("compute", "test_named_losses_follow_their_formulas[False]")
class NarrowIndicesAreReadAsWide(NumpyBackend):
    index_dtype = "int32"

    def build(self, segment):
        return ReadsIndicesAsWide(segment, NumpyOps())


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


@fault("compute", "test_several_losses_are_returned_by_label")
class LossesByNode(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs, losses if len(losses) == 1 else {"node": losses.popitem()[1]}


@fault("compute", "test_gradients_are_those_of_the_losses")
class GradientsOfBiasesDouble(NumpyOps):
    def vjp(self, *args):
        applied = super().vjp(*args)

        def pullback(cotangents):
            gradients, back = applied.pullback(cotangents)
            return {name: g * (1 + name.endswith("bias")) for name, g in gradients.items()}, back

        return VjpResult(applied.outputs, pullback, applied.buffers)


@fault("compute", "test_backward_uses_the_random_numbers_of_forward")
class WayBackDrawsAnew(NumpyOps):
    def vjp(self, model, parameters, buffers, inputs, train, key):
        applied = super().vjp(model, parameters, buffers, inputs, train, key)
        other = super().vjp(model, parameters, buffers, inputs, train, key ^ 1)
        return applied._replace(pullback=other.pullback)


@fault("compute", "test_a_trained_program_evaluates_like_a_new_one[random_model]")
class EvaluatesAsItTrained(ArrayProgram):
    trained = None

    def forward_pullback(self, inputs, scale=None):
        result = super().forward_pullback(inputs, scale)
        self.trained = result[0]
        return result

    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return outputs if self.trained is None else self.trained, losses


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


@fault("compute", "test_a_chain_equals_its_parts_in_sequence")
class ChainsAreWrong(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        return (outputs if len(self.segment.operations) < 3 else tuple(map(np.tanh, outputs))), losses


@fault("compute", "test_a_frozen_operation_is_not_changed[first]")
def frozen_is_trained(segment):
    modelled = [op.label for op in segment.operations if op.model is not None]
    thawed = tuple(replace(op, trainable=True) for op in segment.operations)
    return replace(segment, operations=thawed, groups=tuple(replace(g, nodes=(*modelled,)) for g in segment.groups[:1]))


@fault("compute", "test_a_frozen_operation_is_in_evaluation_mode[random_model]")
def frozen_is_in_training_mode(segment):
    return replace(segment, operations=tuple(replace(op, trainable=True) for op in segment.operations))


@fault("compute", "test_a_frozen_operation_is_in_evaluation_mode[buffered_model]")
class FrozenNormalizesByTheBatch(NumpyOps):
    def call(self, model, parameters, buffers, inputs):
        return super().vjp(model, parameters, buffers, inputs, False, 0).outputs

    def vjp(self, model, parameters, buffers, inputs, train, key):
        applied = super().vjp(model, parameters, buffers, inputs, True, key)
        return applied if train else applied._replace(buffers=None)


@fault("compute", "test_a_shared_model_gets_the_sum_of_its_gradients", also="multi_step")
def shared_models_are_copied(segment):
    seen: set[int] = set()
    operations = []
    for op in segment.operations:
        operations.append(replace(op, model=copy.deepcopy(op.model)) if id(op.model) in seen else op)
        seen.add(id(op.model))
    return replace(segment, operations=tuple(operations))


@fault("compute", "test_a_shared_model_gets_the_sum_of_its_gradients")
class SharedModelsCountTwice(ArrayProgram):
    """A model in two operations enters the norm twice."""

    def grad_stats(self):
        models = [id(op.model) for op in self.segment.operations if op.model is not None]
        times = len(models) / len(set(models))
        return {name: (square * times, finite) for name, (square, finite) in super().grad_stats().items()}


def times_used(segment):
    """How often the layers of the first model are used on average."""
    layers = [id(layer) for layer in getattr(segment.operations[0].model, "layers", ())]
    return len(layers) / len(set(layers)) if layers else 1


@fault("compute", "test_a_tied_parameter_is_one_parameter")
class TiedParametersCountTwice(ArrayProgram):
    def grad_stats(self):
        times = times_used(self.segment)
        return {name: (square * times, finite) for name, (square, finite) in super().grad_stats().items()}


@fault("compute", "test_a_tied_parameter_is_one_parameter")
class TiedParametersLearnTwice(ArrayProgram):
    def map_gradients(self, fn):
        super().map_gradients(lambda gradient: fn(gradient) * times_used(self.segment))

    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def doubling(cotangents):
            result = pullback(cotangents)
            self.map_gradients(lambda gradient: gradient)
            return result

        return outputs, losses, doubling


@fault("compute", "test_a_tied_parameter_decays_once")
class TiedParametersDecayTwice(ArrayProgram):
    def optimizer_step(self, scale=None):
        (group,), times = self.segment.groups, times_used(self.segment)
        spec = group.optimizer
        super().optimizer_step(scale)
        for owner, arrays in self._state.parameters.items():
            factor = 1 - spec.lr * spec.settings.get("weight_decay", 0.0) * (times > 1)
            self._state.parameters[owner] = {name: array * np.float32(factor) for name, array in arrays.items()}


@fault("compute", "test_a_tied_parameter_has_one_value")
class SecondNameKeepsTheFirstValue(NumpyBackend):
    def __init__(self):
        super().__init__()
        self.first = {}

    def state(self, model):
        state, layers = super().state(model), getattr(model, "layers", ())
        if len(set(map(id, layers))) == len(layers):
            return state
        value = self.first.setdefault(id(model), state["parameters/0.weight"].copy())
        return {**state, "parameters/2.weight": value.copy()}


@fault("compute", "test_values_are_concatenated_along_a_sample_axis[0]")
def axes_count_the_batch(segment):
    moved = (replace(op, axis=op.axis - 1 if op.axis >= 0 else op.axis) for op in segment.operations)
    return replace(segment, operations=tuple(moved))


@fault("compute", "test_values_of_different_sizes_are_concatenated")
class ConcatenatesEqualSizesOnly(ArrayProgram):
    def forward(self, inputs):
        if self.segment.operations[0].model is None and inputs[0].shape != inputs[1].shape:
            raise ValueError("all input arrays must have the same shape")
        return super().forward(inputs)


@fault("compute", "test_each_group_has_its_own_optimizer")
def one_optimizer_for_all(segment):
    groups = (replace(group, optimizer=segment.groups[0].optimizer) for group in segment.groups)
    return replace(segment, groups=tuple(groups))


@fault("compute", "test_unused_inputs_have_a_zero_cotangent")
class UnusedInputsRaise(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def strict(cotangents):
            if not losses and all(cotangent is None for cotangent in cotangents):
                raise RuntimeError("no gradient for an unused input")
            return pullback(cotangents)

        return outputs, losses, strict


@fault("compute", "test_an_optimizer_of_another_framework_is_refused")
class TakesForeignOptimizers(NumpyBackend):
    def unsupported_reason(self, spec):
        return ""

    def build(self, segment):
        named = (g if g.optimizer.own is None else replace(g, optimizer=Optimizer("sgd")) for g in segment.groups)
        return super().build(replace(segment, groups=tuple(named)))


@fault("compute", "test_a_loss_of_another_framework_is_refused")
class TakesForeignLosses(NumpyBackend):
    def build(self, segment):
        named = tuple(term for term in segment.losses if term.loss.own is None)
        return super().build(replace(segment, losses=named))


# -- what users give ---------------------------------------------------------------------------------------------------


@fault("compute", "test_models_that_share_a_parameter_are_refused_or_train_as_one")
class ParametersAreCopies(NumpyOps):
    def parameters(self, model):
        return {name: value.copy() for name, value in super().parameters(model).items()}


@fault("compute", "test_a_loss_of_the_user_is_the_mean_over_the_rows")
class TheSumIsTheMean(NumpyOps):
    def custom_loss(self, loss):
        right = super().custom_loss(loss)
        return lambda inputs: (result := right(inputs))._replace(sum=result.sum / len(inputs[0]))


@fault("compute", "test_a_loss_of_the_user_is_the_mean_over_the_rows")
class GradientsAreThoseOfTheMean(NumpyOps):
    def custom_loss(self, loss):
        right = super().custom_loss(loss)

        def wrong(inputs):
            result = right(inputs)
            of_sum = result.gradients()
            return result._replace(gradients=lambda: [None if g is None else g / len(inputs[0]) for g in of_sum])

        return wrong
