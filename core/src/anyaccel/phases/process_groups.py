"""Process groups: which processes and devices compute a phase together; by default one of each.

A phase is bound to them and to its graph here, and nodes are placed on devices.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.device import Device
from anyaccel.distributions import missing
from anyaccel.errors import ConfigError, FallbackWarning, PhaseError
from anyaccel.extensions import extensions, sole_extension
from anyaccel.graph import ModelGraph, Plan, Resolution
from anyaccel.graph.device_assignment import accelerator_of_environment
from anyaccel.graph.nodes import ModelNode, layout_of
from anyaccel.launched import launched
from anyaccel.phases.loading.epoch_plan import EpochPlan
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry, registry
from anyaccel.user_level import user_level

_HOME = "anyaccel-distributed"


class ProcessGroups:
    """One process on one device computes each phase. A distribution that knows more extends the point `process_groups`.

    Its object is asked where a phase has one of its settings, where several devices are asked for, and in the processes
    that a launcher started.
    """

    def devices(
        self,
        phase: PhaseSettings,
        accelerator: Accelerator | None,
        frameworks: Callable[[], Sequence[str]],
        known: Registry | None = None,
    ) -> tuple[Device, ...]:
        """Return the devices that a phase gets in this process; empty if its accelerator names its one device.

        A TrainPhase gets all devices of a request, other phases the first.

        Args:
            phase: The phase.
            accelerator: Accelerator of the phase, or None.
            frameworks: Function that returns those of the graph.
            known: The backends; those of a described machine if it is planned for.

        Raises:
            ConfigError: a request for another number of devices than the phase specifies.
            DeviceUnavailableError: nothing fits a request.
            PhaseError: there are fewer devices than it specifies.
        """
        asked = accelerator_of_environment() if accelerator is None else accelerator
        if asked is None or not asked.is_request:
            return ()
        wanted = phase.replicas if phase.trains else 1
        replicas = wanted if phase.trains else None
        there = tuple(asked.requested_devices(frameworks(), known, replicas=replicas, strict=phase.strict))
        is_here = known is None or known.is_of_this_machine
        if not phase.trains or (accelerator is None and wanted == 1) or not is_here:
            return there[:1]
        if wanted not in (None, len(there)):
            raise ConfigError(
                f"phase {phase.label!r} has replicas={wanted}, and the request {asked.spec!r} is for {len(there)} "
                "devices",
                available=", ".join(map(str, there)),
                hint=f"leave replicas out, or write replicas={len(there)}",
            )
        return there

    def changes(self, phase: PhaseSettings, devices: Sequence[Device]) -> dict[str, Any]:
        """Return the settings of a phase that is `per_replica`, for these devices."""
        return {}

    def check(self, phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> None:
        """Check that what computes a phase together can.

        Raises:
            PhaseError: the phase or its graph has something that cannot be shared.
            CapabilityError: a backend cannot.
        """

    def check_epochs(self, phase: PhaseSettings, plan: Plan, epochs: EpochPlan) -> None:
        """Check that the steps of a training can be shared by the devices of a plan.

        Raises:
            PhaseError: they cannot.
        """

    def notes(self, phase: PhaseSettings, resolution: Resolution, batch_size: int | None) -> tuple[str, ...]:
        """Return notes for a plan about the processes of the phase; `batch_size` is None if unknown beforehand."""
        return ()

    def plan_of_one(self, phase: PhaseSettings, plan: Plan, devices: Sequence[Device]) -> Plan:
        """Return the plan of one participant of a phase on these devices together, or in the available processes.

        Args:
            phase, plan: Phase and plan for one that computes alone.
            devices: One device for each; empty without a request.
        """
        return plan

    def group(self, phase: PhaseSettings, resolution: Resolution, learners: Sequence[str]) -> ProcessGroup:
        """Join the processes that compute a phase.

        Raises:
            AnyaccelError: they cannot be joined, or something cannot be shared.
        """
        return SingleProcess()

    def join(self, framework: str) -> None:
        """Join the processes of a framework before it starts, if a launcher has started several.

        Raises:
            AnyaccelError: they cannot be joined.
        """


_ALONE = ProcessGroups()


def process_groups(phase: PhaseSettings, graph: ModelGraph) -> ProcessGroups:
    """Return the object that decides it for a phase on a graph.

    Raises:
        MissingDistributionError: more than one process or device takes part, and no installed distribution splits
            phases.
        ConfigError: the variables of a launcher contradict each other.
    """
    launch = None if trains_alone(phase) else launched()
    if launch is not None:
        if phase.replicas == 1 and not extensions("process_groups"):
            return _ALONE  # whole in each process
        return shared_groups(f"sharing phase {phase.label!r} among the {launch.size} processes of a launcher")
    if len(phase.devices) > 1:
        return shared_groups(f"training phase {phase.label!r} on {len(phase.devices)} devices")
    several = phase.trains and phase.replicas not in (None, 1)
    if several or phase.per_replica or phase.deterministic or phase.sharding is not None:
        return shared_groups(f"sharing phase {phase.label!r}")
    for node in graph.nodes.values():
        if getattr(node, "sharding", None):
            return shared_groups(f"ModelNode.sharding of {node.label!r}")
    return _ALONE


def trains_alone(phase: PhaseSettings) -> bool:
    """Whether each process of a launcher trains a phase by itself."""
    return phase.trains and phase.replicas == 1


def shared_groups(what: str) -> ProcessGroups:
    """Return the object that splits phases over processes and devices.

    Args:
        what: The feature that needs it, for the message.

    Raises:
        MissingDistributionError: no installed distribution does.
        PluginError: two distributions do.
    """
    installed: ProcessGroups | None = sole_extension("process_groups")
    if installed is None:
        raise missing(_HOME, what)
    return installed


# -- Bound phase: a phase with what depends on its graph filled in: the node of its losses, and its device -------------


_ONLY_BY_NAME = ("cpu", "sim")


def bound(phase: PhaseSettings, graph: ModelGraph, known: Registry | None = None) -> PhaseSettings:
    """Return the phase itself if nothing in it depends on the graph, otherwise a copy.

    Losses without `on` are applied to the only output node. `accelerator="auto"` is the best device on which all
    frameworks of the graph run. A request is resolved to the device, or to the devices of a training, among those
    supported by the graph's frameworks.

    Raises:
        PhaseError: a loss without `on`, and the graph has several output nodes.
        ConfigError: a request for another number of devices than the phase specifies.
        DeviceUnavailableError: nothing fits a request.
    """
    changes: dict[str, Any] = {}
    losses = [*phase.losses]
    for i, loss in enumerate(phase.losses):
        if loss.on:
            continue
        nodes = graph.output_nodes
        if len(nodes) > 1:
            name = loss.loss.name
            raise PhaseError(
                f"phase {phase.label!r} has the loss {name!r} on no particular node, but the graph has several outputs",
                available=", ".join(nodes),
                hint=f"name one: AppliedLoss({name!r}, on={nodes[0]!r})",
            )
        losses[i] = replace(loss, on=nodes[0], label=loss.label or nodes[0])
        changes["losses"] = tuple(losses)
    if phase.chooses_device:
        changes |= {"accelerator": Accelerator(best_common_device(_frameworks(graph), known)), "chooses_device": False}
    accelerator = changes.get("accelerator", phase.accelerator)
    groups = process_groups(phase, graph)
    devices = groups.devices(phase, accelerator, partial(_frameworks, graph), known)
    if devices:
        changes["devices"] = devices
        if accelerator is not None:
            changes["accelerator"] = accelerator.at(devices[0])
    if phase.per_replica:
        changes |= groups.changes(phase, devices)
    validation = phase.validation
    if validation is not None and (own_validation := bound(validation, graph, known)) is not validation:
        changes["validation"] = own_validation
    if not changes:
        return phase
    copied = copy.copy(phase)
    vars(copied).update(changes)
    return copied


def _frameworks(graph: ModelGraph) -> list[str]:
    return sorted({*graph.shapes.frameworks.values()})


def best_common_device(frameworks: Sequence[str], known: Registry | None = None) -> Device:
    """Return the best device for all of these frameworks: a GPU, another accelerator, or the CPU. Loads no others."""
    common: list[Device] = []
    for number, framework in enumerate(frameworks):
        of_others, common = common, []
        for _, device in (known or registry()).devices(framework):
            if number == 0 or device in of_others:
                common.append(device)
    accelerators = list[tuple[bool, Device]]()
    for device in common:
        if device.kind not in _ONLY_BY_NAME:
            accelerators.append((device.kind != "gpu", device))
    return min(accelerators)[1] if accelerators else Device("cpu")


# -- Model placement: moves nodes and their optimizer state to the devices of a plan, and to where a phase leaves them


_NONE: Mapping[str, Any] = {}


def final_devices(
    phase: PhaseSettings, final_device: Accelerator, plan: Plan, known: Registry | None = None
) -> dict[str, Device]:
    """Return the devices of nodes after the phase. Without `strict`, a node stays if its framework does not run there.

    Raises:
        FrameworkError, DeviceUnavailableError: no node can be moved there.
    """
    frameworks = sorted({assignment.framework for assignment in plan.assignments})
    backends = known or registry()
    final = final_device.on_one_device(*frameworks, strict=phase.strict, known=known)
    device = final.device
    served = [
        assignment
        for assignment in plan.assignments
        if phase.strict or backends.serves(assignment.framework, device.kind)
    ]
    for assignment in served or plan.assignments:
        backends.serving(assignment.framework, device, vendor=final.vendor)
    return {assignment.node: device for assignment in served}


def warn_of_fallbacks(plan: Plan) -> None:
    """Warn once of nodes that run on the CPU although the phase requests another device."""
    names, requested = list[str](), ""
    for assignment in plan.assignments:
        if assignment.reason == "fallback":
            names.append(f"{assignment.node} ({assignment.framework})")
            requested = requested or assignment.requested
    if names:
        warnings.warn(
            f"phase {plan.phase!r} asks for {requested!r}, but these nodes cannot run there and run on the CPU: "
            f"{', '.join(names)}. Hint: set accelerator='cpu' on them to silence this warning, or strict=True on the "
            "phase to make it an error.",
            FallbackWarning,
            stacklevel=user_level(),
        )


def place(graph: ModelGraph, devices: Mapping[str, Device], plans: Mapping[str, Any] = _NONE) -> None:
    """Place nodes, with their optimizer state from training, on devices; the graph then holds the placed models.

    Args:
        graph: The graph with the nodes.
        devices: Devices of the nodes.
        plans: Plans of nodes whose blocks are on several devices or stored elsewhere; their optimizer state stays with
            them.
    """
    for label, device in devices.items():
        node = graph[label]
        if not isinstance(node, ModelNode):
            continue
        backend = registry().find(graph.shapes.frameworks[label], device.kind)
        before, state = node.model, graph.optimizer_states.get(label)
        after = layout_of(node).place(node, backend, device, plans.get(label))
        graph.exchange_model(before, after)  # nodes that share the model go on sharing it, taking part or not
        if state is not None and label not in plans:
            slots = {
                name: {slot: backend.move(value, device) for slot, value in values.items()}
                for name, values in state.slots.items()
            }
            graph.optimizer_states[label] = replace(state, slots=slots)
