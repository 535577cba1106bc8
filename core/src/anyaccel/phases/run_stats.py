"""RunStats: the memory of a run's devices and nodes, and its speed, at the moment of asking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel.display import size
from anyaccel.graph import ModelGraph, ModelNode, Plan
from anyaccel.phases.loading.residency import state_slots
from anyaccel.registry import registry
from anyaccel.specs import OPTIMIZERS, Optimizer


class FinishedEpoch(Protocol):
    """What is asked of a completed epoch."""

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""

    @property
    def seconds(self) -> float:
        """Its duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """The memory of a framework on a device, in bytes.

    Attributes:
        used: now, as the framework tells; None where it does not.
        peak: the most that was used at once since the process began, or the framework was told to begin anew.
        total: of the device.
    """

    device: Device
    framework: str
    used: int | None
    peak: int | None
    total: int | None

    def __str__(self) -> str:
        known = ((self.used, "used"), (self.peak, "at the peak"), (self.total, "in total"))
        words = ", ".join(f"{size(nbytes)} {what}" for nbytes, what in known if nbytes is not None)
        return f"{self.device} ({self.framework}): {words or 'the framework tells no memory'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """What the model of a node needs, in bytes; nodes that share a model have its figures each.

    Attributes:
        parameters: of the model.
        gradients: of those parameters, 0 where the phase does not train them.
        optimizer: state of the optimizer; None where it is one of the user's own.
    """

    node: str
    framework: str
    device: Device
    parameters: int
    gradients: int
    optimizer: int | None

    def __str__(self) -> str:
        state = "its own" if self.optimizer is None else size(self.optimizer)
        figures = f"{size(self.parameters)} parameters, {size(self.gradients)} gradients, {state} optimizer"
        return f"{self.node} on {self.device}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Figures of a run; `print` shows them.

    Attributes:
        devices: each framework on each device of the plan.
        nodes: those with a model, in the order of computation.
        steps_per_second: of the last complete epoch, without its validation; None before there is one.
    """

    devices: tuple[DeviceStats, ...] = ()
    nodes: tuple[NodeStats, ...] = ()
    steps_per_second: float | None = None

    def __str__(self) -> str:
        speed = [] if self.steps_per_second is None else [f"{self.steps_per_second:,.0f} steps/s"]
        return "\n".join([*map(str, self.devices), *map(str, self.nodes), *speed])

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = asdict(self)
        for entry in (*plain["devices"], *plain["nodes"]):
            entry["device"] = str(Device(**entry["device"]))
        return plain


def run_stats(plan: Plan | None, graph: ModelGraph, history: Sequence[FinishedEpoch], *, trains: bool) -> RunStats:
    """The figures of a run now; reads the memory of its devices, and waits for none of them.

    Args:
        plan: None before it is made.
        graph: whose models are used.
        history: the complete epochs.
        trains: the phase trains the models that are not frozen.
    """
    if plan is None:
        return RunStats()
    last = history[-1] if history else None
    return RunStats(
        devices=tuple(_devices(plan)),
        nodes=tuple(_nodes(plan, graph, trains=trains)),
        steps_per_second=last.steps / last.seconds if last is not None and last.seconds > 0 else None,
    )


def _devices(plan: Plan) -> Iterator[DeviceStats]:
    for framework, device in dict.fromkeys((each.framework, each.device) for each in plan.assignments):
        backend = registry().find(framework, device.kind)
        info = backend.memory(device) if isinstance(backend, Memory) else None
        yield DeviceStats(
            device=device,
            framework=framework,
            used=(info.used if info else 0) or None,
            peak=(info.peak if info else 0) or None,
            total=(info.total if info else 0) or None,
        )


def _nodes(plan: Plan, graph: ModelGraph, *, trains: bool) -> Iterator[NodeStats]:
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
            )


def _state_bytes(optimizer: Optimizer | None, nbytes: int) -> int | None:
    if optimizer is None:
        return 0
    known = optimizer.own is None and optimizer.name in OPTIMIZERS
    return nbytes * state_slots(optimizer) if known else None
