"""Measured work: the operations and activations of a step, beside the rates that the makers of its devices state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.distributions import missing
from anyaccel.extensions import extensions
from anyaccel.graph import Plan
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.registry import registry

_DTYPES = {"bf16-mixed": "bf16", "bf16": "bf16", "fp16-mixed": "fp16"}
_NOT_MEASURED = "run.measure_step() was not called"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """What was measured of a step.

    Attributes:
        cost: of a step.
        rate: operations a second of its devices together; None if that is not known.
        not_covered: why something is not known, by the name of the figure.
    """

    cost: StepCost = field(default_factory=StepCost)
    rate: float | None = None
    not_covered: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(("flops_per_step", "activations"), _NOT_MEASURED)
    )

    def utilization(self, steps_per_second: float | None) -> float | None:
        """The part of the stated rate that so many steps a second are."""
        if steps_per_second is None or self.cost.flops is None or self.rate is None:
            return None
        return self.cost.flops * steps_per_second / self.rate


def measured_work(plan: Plan, stages: Sequence[PipelineStage], batch_size: int, custom_step: bool) -> MeasuredWork:
    """Measure a training step of so many rows, where a backend can without its devices.

    Args:
        plan: says where and in which precision nodes are computed.
        stages: the segments, with their backends.
        batch_size: rows of a step.
        custom_step: the step is the user's own.
    """
    gaps: dict[str, str] = {}
    cost, why = _cost(stages, batch_size, custom_step)
    if not cost.activations:
        gaps["activations"] = why
    if cost.flops is None:
        gaps["flops_per_step"] = why or f"the plugin of {stages[0].backend.framework} does not count operations"
    rate, unknown = _rate(plan)
    if unknown:
        gaps["model_flops_utilization"] = unknown
    return MeasuredWork(cost=cost, rate=rate, not_covered=gaps)


def _cost(stages: Sequence[PipelineStage], batch_size: int, custom_step: bool) -> tuple[StepCost, str]:
    """The cost of a step, and why it is empty."""
    if custom_step or len(stages) != 1:
        why = "the training step is your own" if custom_step else "several segments compute a step"
        return StepCost(), why
    segment, backend = stages[0].segment, stages[0].backend
    costs = backend.capability(StepCosts)
    if costs is None:
        return StepCost(), f"the plugin of {backend.framework} does not tell the work of a step"
    try:
        return costs.step_cost(segment, batch_size), ""
    except Exception as error:  # of a user's model or loss, which may take no rows of zeros
        release_frames(error)
        return StepCost(), f"measuring a step failed: {type(error).__name__}: {error}"


def _rate(plan: Plan) -> tuple[float | None, str]:
    """Operations a second that are stated for the devices of a plan, and why that is not known."""
    precisions = {each.precision for each in plan.assignments if each.parameters}
    if not precisions <= _DTYPES.keys() or len(precisions) != 1:
        given = ", ".join(sorted(each or "none" for each in precisions))
        return None, f"rates are stated for one dtype of 16 bits, and precision is {given}"
    rates = extensions("compute_rate")
    if not rates:
        return None, str(missing("anyaccel-resources", "the table of rates"))
    dtype = _DTYPES[precisions.pop()]
    total = 0.0
    for framework, device in dict.fromkeys((each.framework, each.device) for each in plan.assignments):
        name = registry().find(framework, device.kind).device_info(device).name
        rate = next(filter(None, (stated(name, dtype) for stated in rates)), None)
        if rate is None:
            return None, f"no rate in {dtype} is known of {name} ({device})"
        total += rate.per_second
    return total * max(len(plan.replicas), 1), ""
