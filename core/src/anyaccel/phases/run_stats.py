"""RunStats: the memory of a run's devices and nodes, and its speed, at the moment of asking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from anyaccel.adapter.device_description import nvidia_utilization
from anyaccel.adapter.step_costs import StepCost
from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel.graph import ModelGraph, ModelNode, Plan
from anyaccel.html import size
from anyaccel.phases.loading.residency import state_slots
from anyaccel.phases.measured_work import MeasuredWork
from anyaccel.phases.step_pacing import EpochTiming
from anyaccel.registry import registry
from anyaccel.specs import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """The memory of a framework on a device, in bytes.

    Attributes:
        used: now, as the framework tells; None where it does not.
        peak: the most that was used at once since the process began, or the framework was told to begin anew.
        total: of the device.
        identity: of an NVIDIA GPU, by which NVML knows it; `""` for others.
    """

    device: Device
    framework: str
    used: int | None
    peak: int | None
    total: int | None
    identity: str = field(default="", repr=False)

    @property
    def utilization(self) -> float | None:
        """The part of the last moment, from 0 to 1, in which the GPU computed, as NVML tells now; None elsewhere."""
        return nvidia_utilization(self.identity) if self.identity else None

    def __str__(self) -> str:
        known = ((self.used, "used"), (self.peak, "at the peak"), (self.total, "in total"))
        words = ", ".join(f"{size(nbytes)} {what}" for nbytes, what in known if nbytes is not None)
        part = self.utilization
        busy = "" if part is None else f", busy {part:.0%} of the time"
        return f"{self.device} ({self.framework}): {words or 'the framework tells no memory'}{busy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """What the model of a node needs, in bytes; nodes that share a model have its figures each.

    Attributes:
        parameters: of the model.
        gradients: of those parameters, 0 where the phase does not train them.
        optimizer: state of the optimizer; None where it is one of the user's own.
        activations: what its forward pass leaves until its backward pass; None before `Run.measure_step`, or where that
            does not tell.
    """

    node: str
    framework: str
    device: Device
    parameters: int
    gradients: int
    optimizer: int | None
    activations: int | None = None

    def __str__(self) -> str:
        state = "its own" if self.optimizer is None else size(self.optimizer)
        figures = f"{size(self.parameters)} parameters, {size(self.gradients)} gradients, {state} optimizer"
        kept = "" if self.activations is None else f", {size(self.activations)} activations"
        return f"{self.node} on {self.device}: {figures}{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Figures of a run; `print` shows them.

    Attributes:
        devices: each framework on each device of the plan.
        nodes: those with a model, in the order of computation.
        steps_per_second, samples_per_second: of the last complete epoch, without its validation; None before there is
            one. Of several processes, each has those of its own rows.
        flops_per_step: operations of a step, as `Run.measure_step` found; None before, or where nobody tells.
        model_flops_utilization: operations a second by those that the makers of the devices state for the dtype that is
            computed in, from 0 to 1; None where one of these is not known.
        not_covered: why figures are None that `Run.measure_step` could give, by name.
    """

    devices: tuple[DeviceStats, ...] = ()
    nodes: tuple[NodeStats, ...] = ()
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    flops_per_step: int | None = None
    model_flops_utilization: float | None = None
    not_covered: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        speed = [] if self.steps_per_second is None else [f"{self.steps_per_second:,.0f} steps/s"]
        if self.samples_per_second is not None:
            speed = [f"{self.samples_per_second:,.0f} samples/s, {speed[0]}"]
        work = [] if self.flops_per_step is None else [f"{self.flops_per_step:,} operations a step"]
        if self.model_flops_utilization is not None:
            work.append(f"{self.model_flops_utilization:.1%} of the stated rate")
        return "\n".join([*map(str, self.devices), *map(str, self.nodes), *filter(None, [", ".join(work)]), *speed])

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = asdict(self)
        for entry in (*plain["devices"], *plain["nodes"]):
            entry["device"] = str(Device(**entry["device"]))
        for entry, device in zip(plain["devices"], self.devices, strict=True):
            entry["utilization"] = device.utilization
        return plain


def run_stats(
    plan: Plan | None, graph: ModelGraph, timing: EpochTiming | None, work: MeasuredWork, *, trains: bool
) -> RunStats:
    """The figures of a run now; reads the memory of its devices, and waits for none of them.

    Args:
        plan: None before it is made.
        graph: whose models are used.
        timing: of the last complete epoch; None before there is one.
        work: what was measured of a step.
        trains: the phase trains the models that are not frozen.
    """
    if plan is None:
        return RunStats()
    timed = timing if timing is not None and timing.seconds > 0 else None
    steps = None if timed is None else timed.steps / timed.seconds
    return RunStats(
        devices=tuple(_devices(plan)),
        nodes=tuple(_nodes(plan, graph, work.cost, trains=trains)),
        steps_per_second=steps,
        samples_per_second=None if timed is None else timed.samples / timed.seconds,
        flops_per_step=work.cost.flops,
        model_flops_utilization=work.utilization(steps),
        not_covered=work.not_covered,
    )


def _devices(plan: Plan) -> Iterator[DeviceStats]:
    for framework, device in dict.fromkeys((each.framework, each.device) for each in plan.assignments):
        backend = registry().find(framework, device.kind)
        memory = backend.capability(Memory)
        info = None if memory is None else memory.memory(device)
        known = backend.device_info(device)
        yield DeviceStats(
            device=device,
            framework=framework,
            used=(info.used if info else 0) or None,
            peak=(info.peak if info else 0) or None,
            total=(info.total if info else 0) or None,
            identity=known.identity if known.vendor == "nvidia" else "",
        )


def _nodes(plan: Plan, graph: ModelGraph, cost: StepCost, *, trains: bool) -> Iterator[NodeStats]:
    for each in plan.assignments:
        node = graph[each.node]
        if isinstance(node, ModelNode):
            optimizer = (node.optimizer or graph.optimizer) if trains and not each.frozen else None
            yield NodeStats(
                node=each.node,
                framework=each.framework,
                device=each.device,
                parameters=each.nbytes,
                gradients=0 if optimizer is None else each.nbytes,
                optimizer=_state_bytes(optimizer, each.nbytes),
                activations=cost.activations.get(each.node),
            )


def _state_bytes(optimizer: Optimizer | None, nbytes: int) -> int | None:
    if optimizer is None:
        return 0
    return nbytes * state_slots(optimizer) if optimizer.own is None else None
