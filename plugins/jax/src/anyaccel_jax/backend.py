"""JaxBackend: placement and every capability in one object."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from anyaccel.adapter.device_replicas import DeviceReplicas, Gradients
from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.doctor import Check, ExpectedDevices, HealthChecks, Machine
from anyaccel.program import Program
from anyaccel.replicas import ReplicaGroup, ShardParameters
from anyaccel.segment import Segment
from anyaccel_jax.compute import JaxCompute
from anyaccel_jax.exchange import JaxExchange
from anyaccel_jax.memory import JaxMemory


class JaxBackend(
    ExpectedDevices,
    JaxExchange,
    JaxCompute,
    JaxMemory,
    DeviceReplicas,
    ShardParameters,
    HealthChecks,
    ObservesTransfers,
    ProfilesSteps,
    StepCosts,
    LeavesContexts,
):
    """JAX on the kinds of device that JAX itself serves. Creating one does not import JAX.

    For a chip that a PJRT plugin adds, derive a class that sets `kinds`, and `platforms` where JAX's name of the kind
    is another one (see `JaxPlacement`).
    """

    divides_nodes: ClassVar[bool] = True
    shards_nodes: ClassVar[bool] = True
    global_batches: ClassVar[bool] = True
    computes_together: ClassVar[bool] = True
    environment: ClassVar[tuple[str, ...]] = (
        "JAX_PLATFORMS",
        "JAX_NUM_CPU_DEVICES",
        "JAX_ENABLE_X64",
        "XLA_FLAGS",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "KERAS_BACKEND",
    )

    def leave_contexts(self) -> AbstractContextManager[OuterContexts]:
        """As `LeavesContexts.leave_contexts`: a mesh and transfer guards; threads get 64 bits as they are here."""
        from anyaccel_jax.outer_contexts import leave_contexts

        return leave_contexts()

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """As `StepCosts.step_cost`: activations; operations are not counted."""
        from anyaccel_jax.step_cost import activations

        return StepCost(activations=activations(segment, batch_size))

    def profile_steps(
        self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]
    ) -> AbstractContextManager[Mark]:
        """As `ProfilesSteps.profile_steps`: `jax.profiler`, with the scopes of compiled code."""
        from anyaccel_jax.step_profile import profile_steps

        return profile_steps(path, nodes)

    def copy_models(self, models: Sequence[Any], device: Device) -> list[Any]:
        """As `DeviceReplicas.copy_models`."""
        from anyaccel_jax.device_replicas import copies

        return [self.place(model, device) for model in copies(models)]

    def weighted_sums(self, tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
        """As `DeviceReplicas.weighted_sums`, in one call."""
        from anyaccel_jax.device_replicas import weighted_sums

        return weighted_sums(tensors, weights)

    def build_over(
        self, segment: Segment, devices: Sequence[Device], *, divided: bool = False, whole: Collection[str] = ()
    ) -> Program | None:
        """As `DeviceReplicas.build_over`: one compiled step over a mesh, whose devices are all different."""
        if len({*devices}) < len(devices):
            return None
        return self.build_mesh(segment, devices, divided=divided, whole=whole)

    def undividable_reason(self, segment: Segment, *, whole: Collection[str] = ()) -> str:
        """As `DeviceReplicas.undividable_reason`: layers of Keras, whose variables are on one device."""
        from anyaccel_jax.array_trees import is_keras

        divided = (op for op in segment.operations if op.label not in whole)
        keras = next((op.label for op in divided if is_keras(op.model)), None)
        return f"node {keras!r} has Keras layers, whose variables cannot be divided" if keras is not None else ""

    def unshardable_reason(self, segment: Segment, *, offload: bool, whole: Collection[str] = ()) -> str:
        """As `ShardParameters.unshardable_reason`."""
        if offload:
            return "offload, which is there for torch alone"
        return self.undividable_reason(segment, whole=whole)

    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """As `ShardParameters.sharded_blocks`: none, the compiler gathers parameters as it needs them."""
        return ()

    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """As `ShardParameters.build_sharded`: one compiled step over a mesh of a device of each process."""
        return self.build_over_processes(segment, group, divided=True, whole=whole)

    def build_together(self, segment: Segment, group: ReplicaGroup) -> Program:
        """As `Replicate.build_together`: the same with whole parameters."""
        return self.build_over_processes(segment, group, divided=False)

    def sharded_bytes(self, program: Program) -> int | None:
        """As `ShardParameters.sharded_bytes`."""
        from anyaccel_jax.process_mesh import ProcessMeshProgram

        return program.sharded_bytes() if isinstance(program, ProcessMeshProgram) else None

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """As `Replicate.replica_group`, by jax.distributed."""
        from anyaccel_jax.replica_group import joined

        return joined(rank, size)

    def unsynchronizable(self, model: Any) -> str:
        """As `Replicate.unsynchronizable`: any layer that mixes the rows of a batch."""
        return self.batch_coupling(model)

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """As `ExpectedDevices.expected_of_kind`; None for those that a PJRT plugin adds."""
        from anyaccel_jax.device_info import expected_of_kind

        return expected_of_kind(kind, machine)

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """As `HealthChecks.health_checks`, by the packages that are installed."""
        from anyaccel_jax.health_checks import machine_checks

        return machine_checks(machine)

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """As `ObservesTransfers.observe_transfers`; an array on the CPU that becomes NumPy's counts as a transfer."""
        from anyaccel_jax.transfer_observer import observed

        return observed(record, self.device_named)

    def can_observe_transfers(self) -> bool:
        """As `ObservesTransfers.can_observe_transfers`."""
        from anyaccel_jax.transfer_observer import missing_names

        return not missing_names()

    def unobserved_transfers(self) -> Sequence[str]:
        """As `ObservesTransfers.unobserved_transfers`: all where JAX lacks what the observer needs."""
        from anyaccel_jax.transfer_observer import missing_names

        missing = ", ".join(missing_names())
        return [f"this version of JAX has no {missing}, by which transfers are seen"] if missing else []
