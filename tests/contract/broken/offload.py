"""Wrong backends that declare `offload`: the right one keeps the arrays of a module where they are, as one block."""

from __future__ import annotations

from dataclasses import replace

from anyaccel.errors import ConfigError
from anyaccel_distributed.device_replicas import DeviceReplicas
from anyaccel_offload.planner import OffloadModels, OffloadPlan, PlacedBlock

from .faults import SECOND, fault, having


class OneBlock(OffloadModels):
    """All of a model is one block, which is copied in each step and rests where it is."""

    def plan_offload(self, model, device, request):
        unknown = [name for name in request.device_map if name]
        if unknown:
            raise ConfigError(f"device_map names {unknown[0]!r}, which the model does not have")
        nbytes = sum(spec.nbytes for spec in self.backend.parameters(model).values())
        return OffloadPlan(blocks=(PlacedBlock(name="", device=device, tier="cpu", nbytes=nbytes, step_bytes=nbytes),))

    def offload(self, model, device, plan):
        return model

    def end_offload(self, model):
        return model


@fault("compute", "test_an_offload_plan_places_every_parameter")
class PlansThatForgetAByte(OneBlock):
    def plan_offload(self, model, device, request):
        plan = super().plan_offload(model, device, request)
        return replace(plan, blocks=(replace(plan.blocks[0], nbytes=plan.blocks[0].nbytes - 4),))


@fault("compute", "test_planning_an_offload_moves_nothing")
class PlansThatMove(OneBlock):
    def plan_offload(self, model, device, request):
        self.backend.place(model, SECOND)
        return super().plan_offload(model, device, request)


@fault("compute", "test_a_map_that_names_no_part_of_the_model_is_refused")
class MapsOfAnything(OneBlock):
    def plan_offload(self, model, device, request):
        return super().plan_offload(model, device, replace(request, device_map={}))


@fault("compute", "test_an_offloaded_model_keeps_its_values")
class WeightsRoundedAtRest(OneBlock):
    def offload(self, model, device, plan):
        rounded = {
            name: value.astype("float16").astype(value.dtype) for name, value in self.backend.state(model).items()
        }
        self.backend.load_state(model, rounded)
        return model


class Resting(OneBlock):
    def offload(self, model, device, plan):
        self.backend.resting.append(model)
        return model


@fault("compute", "test_an_offloaded_model_trains_like_a_resident_one")
class OffloadedModelsThatAreNotTrained(having(Resting)):
    """As Accelerate's: the steps go to copies."""

    def __init__(self):
        self.resting = []

    def build(self, segment):
        if any(operation.model is each for operation in segment.operations for each in self.resting):
            models = [operation.model for operation in segment.operations]
            copies = self.required(DeviceReplicas).copy_models(models, segment.operations[0].device)
            operations = (replace(o, model=m) for o, m in zip(segment.operations, copies, strict=True))
            segment = replace(segment, operations=tuple(operations))
        return super().build(segment)


@fault("compute", "test_a_model_is_ordinary_again_where_its_offload_ends")
class EndsThatGoBack(OneBlock):
    """The model has the values again that it had before it was offloaded."""

    def __init__(self, backend):
        super().__init__(backend)
        self.kept = {}

    def offload(self, model, device, plan):
        self.kept.setdefault(id(model), self.backend.state(model))
        return model

    def end_offload(self, model):
        if id(model) in self.kept:
            self.backend.load_state(model, self.kept.pop(id(model)))
        return model
