"""Process groups: decide which processes and devices compute a phase together; by default one of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.device import Device
from anyaccel.distributions import missing
from anyaccel.errors import ConfigError
from anyaccel.extensions import extensions, sole_extension
from anyaccel.graph import ModelGraph, Plan, Resolution
from anyaccel.graph.device_assignment import accelerator_of_environment
from anyaccel.launched import launched
from anyaccel.phases.loading.epoch_plan import EpochPlan
from anyaccel.phases.process_group import ProcessGroup, SingleProcess
from anyaccel.phases.settings import PhaseSettings
from anyaccel.registry import Registry

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
