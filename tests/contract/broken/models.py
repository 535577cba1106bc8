"""Wrong backends: shapes, weights and state of models, and supported specs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.numpy_backend import NumpyBackend, SequentialMLP
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sim_array import bare

from .faults import SECOND, fault

CPU = Device("cpu")


def host(array):
    """A NumPy copy of an array, without its device."""
    return np.array(np.asarray(array))


# -- models ------------------------------------------------------------------------------------------------------------


@fault("compute", "test_infer_gives_shape_and_dtype")
class InfersTheBatchToo(NumpyBackend):
    def infer(self, model, inputs, seed):
        return tuple(replace(spec, shape=(1, *spec.shape)) for spec in super().infer(model, inputs, seed))


@fault("compute", "test_infer_keeps_the_values_of_a_built_model[model]")
class InferRebuilds(NumpyBackend):
    def infer(self, model, inputs, seed):
        result = super().infer(model, inputs, seed)
        if seed == 99:
            model.build(inputs, seed)
        return result


@fault("compute", "test_infer_keeps_the_values_of_a_built_model[buffered_model]")
class InferCallsTheModelInTraining(NumpyBackend):
    def infer(self, model, inputs, seed):
        result = super().infer(model, inputs, seed)
        model.buffers.update({name: value * 0.9 for name, value in model.buffers.items()})
        return result


@fault("compute", "test_infer_refuses_wrong_shapes[(5,)]")
class InferRaisesValueError(NumpyBackend):
    def infer(self, model, inputs, seed):
        if inputs[0].shape == (5,):
            raise ValueError("mat1 and mat2 shapes cannot be multiplied")
        return super().infer(model, inputs, seed)


@fault("compute", "test_dtype_of_is_the_dtype_of_its_inputs")
class KnowsNoDtype(NumpyBackend):
    def dtype_of(self, model):
        return None if model.dtype == "float32" else model.dtype


@fault("compute", "test_parameters_are_described_with_their_shapes")
class ParametersPerSample(NumpyBackend):
    def parameters(self, model):
        return {name: replace(spec, shape=spec.shape[1:]) for name, spec in super().parameters(model).items()}


class WrongConfigMLP(SequentialMLP):
    """Its configuration has a wrong setting."""

    def get_config(self):
        return {**super().get_config(), "hidden_dim": self.spec.hidden_dim + 1}


@fault("compute", "test_named_models_are_made_from_their_configuration")
class ConfigIsWrong(NumpyBackend):
    def models(self):
        return {"SequentialMLP": WrongConfigMLP}


@fault("compute", "test_the_standard_model_has_its_specified_weights[(4,)]")
class WeightsOfItsOwn(NumpyBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs, seed + 1)


@fault("compute", "test_the_standard_model_depends_on_its_seed_alone")
class IgnoresTheSeed(NumpyBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs, 7)


@fault("compute", "test_the_standard_model_takes_any_shapes")
class TakesOneInput(NumpyBackend):
    def infer(self, model, inputs, seed):
        return super().infer(model, inputs[:1], seed) if len(inputs) == 1 else ()


@fault("compute", "test_place_moves_a_model")
class PlaceIgnoresModels(NumpyBackend):
    def place(self, obj, device):
        if isinstance(obj, Module) and device == SECOND:
            return obj
        return super().place(obj, device)


@fault("compute", "test_training_continues_on_another_device[buffered_model]")
class PlaceLeavesBuffersBehind(NumpyBackend):
    def place(self, obj, device):
        if not isinstance(obj, Module) or device != SECOND:
            return super().place(obj, device)
        left = dict(obj.buffers)
        placed = super().place(obj, device)
        placed.buffers.update(left)
        return placed

    def device_of(self, obj):
        return obj.home if isinstance(obj, Module) else super().device_of(obj)


@fault("compute", "test_training_continues_on_another_device[buffered_model]")
class PlaceLosesBuffers(NumpyBackend):
    def place(self, obj, device):
        placed = super().place(obj, device)
        if isinstance(obj, Module) and device == SECOND:
            placed.buffers.update({name: value * 0 for name, value in placed.buffers.items()})
        return placed


@fault("compute", "test_training_continues_on_another_device[model]")
class PlaceKeepsACopyOfItsFirstValues(NumpyBackend):
    def place(self, obj, device):
        if not isinstance(obj, Module):
            return super().place(obj, device)
        first = self.__dict__.setdefault("first", {}).setdefault(id(obj), super().state(obj))
        placed = super().place(obj, device)
        if device == SECOND:
            super().load_state(placed, first)
        return placed


@fault("compute", "test_a_model_without_parameters_is_placed_and_trained_through")
class PlaceNeedsParameters(NumpyBackend):
    def place(self, obj, device):
        if isinstance(obj, Module):
            next(iter(obj.parameters.values()))
        return super().place(obj, device)


@fault("compute", "test_placing_a_placed_model_changes_nothing")
class PlaceResetsModels(NumpyBackend):
    def place(self, obj, device):
        if isinstance(obj, Module) and self.device_of(obj) == device:
            obj.parameters.update({name: value * 0 for name, value in obj.parameters.items()})
        return super().place(obj, device)


@fault("compute", "test_it_owns_its_models")
class OwnsArraysOnly(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and not isinstance(obj, Module)


@fault("compute", "test_state_maps_names_to_arrays")
class StateHasAVersion(NumpyBackend):
    def state(self, model):
        return {**super().state(model), "version": np.array(1)}

    def load_state(self, model, state):
        super().load_state(model, {name: value for name, value in state.items() if name != "version"})


@fault("compute", "test_state_has_buffers")
class StateWithoutBuffers(NumpyBackend):
    def load_state(self, model, state):
        kept = {name: value for name, value in super().state(model).items() if name.startswith("buffers/")}
        super().load_state(model, {**state, **kept})


@fault("compute", "test_state_is_a_copy")
class StateIsTheMemory(NumpyBackend):
    def state(self, model):
        live = {f"parameters/{name}": bare(value) for name, value in model.parameters.items()}
        return {**super().state(model), **live}


@fault("compute", "test_live_state_is_the_state", also="multi_step")
class LiveStateIsTheFirst(NumpyBackend):
    def live_state(self, model):
        return self.__dict__.setdefault("live", {}).setdefault(id(model), super().state(model))


@fault("compute", "test_state_can_be_loaded_back")
class LoadsSomeStates(NumpyBackend):
    def load_state(self, model, state):
        before = super().state(model)
        if not all(name in before and (value == before[name] + 1).all() for name, value in state.items()):
            super().load_state(model, state)


@fault("compute", "test_load_state_keeps_the_model_on_its_device")
class LoadingMoves(NumpyBackend):
    def load_state(self, model, state):
        super().load_state(model, state)
        if self.device_of(model) == SECOND:
            self.place(model, CPU)


@fault("compute", "test_a_state_that_does_not_fit_is_refused_as_a_whole[missing name]")
class LoadsPartialStates(NumpyBackend):
    def load_state(self, model, state):
        super().load_state(model, {**super().state(model), **state})


@fault("compute", "test_a_state_that_does_not_fit_is_refused_as_a_whole[shape]")
class LoadsHalfBeforeItFails(NumpyBackend):
    def load_state(self, model, state):
        before = super().state(model)
        try:
            super().load_state(model, state)
        except StateError:
            fitting = {name: v for name, v in state.items() if name in before and v.shape == before[name].shape}
            super().load_state(model, {**before, **fitting})
            raise


@fault("compute", "test_every_named_optimizer_is_supported[adamw]")
class LacksAdamW(NumpyBackend):
    def unsupported_reason(self, spec):
        return "no adamw" if spec.name == "adamw" else super().unsupported_reason(spec)


@fault("compute", "test_every_named_loss_is_supported[mae]")
class LacksMae(NumpyBackend):
    def unsupported_reason(self, spec):
        return "no mae" if spec.name == "mae" else super().unsupported_reason(spec)


@fault("compute", "test_batch_coupling_detects_models_that_mix_rows[buffered_model]")
class BatchCouplingIsAlwaysEmpty(NumpyBackend):
    def batch_coupling(self, model):
        return ""


@fault("compute", "test_batch_coupling_detects_models_that_mix_rows[model]")
class BatchCouplingIsNeverEmpty(NumpyBackend):
    def batch_coupling(self, model):
        return "whatever it is"


@fault("compute", "test_a_registry_finds_it_by_a_model_of_a_users_class")
class OwnsOnlyClassesOfItsOwnModules(NumpyBackend):
    def owns(self, obj):
        return super().owns(obj) and type(obj).__module__.partition(".")[0] in ("numpy", "anyaccel")
