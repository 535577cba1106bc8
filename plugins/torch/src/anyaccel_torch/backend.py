"""TorchBackend: placement and every capability in one object."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.device_replicas import DeviceReplicas, Gradients
from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.doctor import Check, ExpectedDevices, HealthChecks, Machine
from anyaccel.planner import OffloadModels, OffloadPlan, OffloadRequest
from anyaccel.program import Program
from anyaccel.replicas import ReplicaGroup, ShardParameters
from anyaccel.segment import Segment
from anyaccel_torch.compute import TorchCompute
from anyaccel_torch.exchange import TorchExchange
from anyaccel_torch.memory import TorchMemory
from anyaccel_torch.settings import BOOLEANS, with_settings


class TorchBackend(
    ExpectedDevices,
    TorchExchange,
    TorchCompute,
    TorchMemory,
    ShardParameters,
    DeviceReplicas,
    OffloadModels,
    HealthChecks,
    ObservesTransfers,
    ProfilesSteps,
    StepCosts,
    HasSettings,
    LeavesContexts,
):
    """torch on the kinds of device that torch itself supports. Creating one does not import torch.

    A chip that torch has a device type for is supported by a subclass that sets `kinds`, and where needed
    `torch_types`, `pinned_kinds` and `unsupported_dtypes` (see `TorchPlacement`).
    """

    environment: ClassVar[tuple[str, ...]] = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "KERAS_BACKEND")
    shards_nodes: ClassVar[bool] = True
    kernel_trials: ClassVar[str] = "torch.backends.cudnn.benchmark"
    _replica_group: ReplicaGroup | None = None

    def thread_rng(self, key: int | None) -> AbstractContextManager[Any]:
        """As `Backend.thread_rng`, for the generator of the CPU."""
        from anyaccel_torch.thread_rng import ThreadRandomness

        return ThreadRandomness(key)

    def global_rng(self, key: int) -> AbstractContextManager[Any]:
        """As `Backend.global_rng`: the generator of the CPU starts from `key`; those of devices are kept."""
        from anyaccel_torch.thread_rng import GlobalRandomness

        return GlobalRandomness(key)

    def watch_rng(self) -> AbstractContextManager[Any]:
        """As `Backend.watch_rng`, for the generator of the CPU."""
        from anyaccel_torch.thread_rng import WatchedRandomness

        return WatchedRandomness()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """As `Backend.generator_state`, for objects of `torch.Generator`."""
        import torch

        generator = torch.default_generator if generator is None else generator
        if not isinstance(generator, torch.Generator):
            return None
        return np.asarray(generator.get_state().numpy().copy())

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        """As `Backend.set_generator_state`."""
        import torch

        generator = torch.default_generator if generator is None else generator
        generator.set_state(torch.from_numpy(np.array(state, np.uint8)))

    def settings(self) -> Mapping[str, tuple[Any, ...]]:
        """As `HasSettings.settings`: flags of cuDNN and cuBLAS."""
        return dict.fromkeys(BOOLEANS, (True, False))

    def with_settings(self, values: Mapping[str, Any]) -> AbstractContextManager[None]:
        """As `HasSettings.with_settings`."""
        return with_settings(values)

    def leave_contexts(self) -> AbstractContextManager[OuterContexts]:
        """As `LeavesContexts.leave_contexts`: autocast, inference_mode and no_grad."""
        from anyaccel_torch.outer_contexts import leave_contexts

        return leave_contexts({kind: self.torch_types.get(kind, kind) for kind in self.kinds})

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """As `StepCosts.step_cost`, over tensors without values."""
        from anyaccel_torch.step_cost import step_cost

        return step_cost(segment, batch_size)

    def activations(self, segment: Segment, batch_size: int) -> Mapping[str, int]:
        """As `StepCosts.activations`, over tensors without values."""
        from anyaccel_torch.step_cost import activations

        return activations(segment, batch_size)

    def profile_steps(
        self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]
    ) -> AbstractContextManager[Mark]:
        """As `ProfilesSteps.profile_steps`: `torch.profiler`."""
        from anyaccel_torch.step_profile import profile_steps

        return profile_steps(path, nodes, devices)

    def copy_models(self, models: Sequence[Any], device: Device) -> list[Any]:
        """As `DeviceReplicas.copy_models`; Keras models as Keras copies them, through its saving.

        Raises:
            CapabilityError: Keras models share parameters, which their copies would not.
        """
        from anyaccel_torch.device_replicas import check_copies
        from anyaccel_torch.keras import quiet_saving

        with quiet_saving():
            copies = super().copy_models(models, device)
        check_copies(models, copies)
        return copies

    def gradients(self, program: Program) -> Gradients:
        """As `DeviceReplicas.gradients`; None for a parameter that no loss depends on in these rows."""
        from anyaccel_torch.device_replicas import gradients

        return gradients(program)

    def set_gradients(self, program: Program, gradients: Gradients) -> None:
        """As `DeviceReplicas.set_gradients`."""
        from anyaccel_torch.device_replicas import set_gradients

        set_gradients(program, gradients)

    def empty_weights(self) -> AbstractContextManager[Any]:
        """As `OffloadModels.empty_weights`: parameters are on torch's `meta` device."""
        from anyaccel_torch.big_models.empty_modules import init_empty_weights

        return init_empty_weights()

    def plan_offload(self, model: Any, device: Device, request: OffloadRequest) -> OffloadPlan:
        """As `OffloadModels.plan_offload`; blocks are elements of lists of modules, and modules without others inside.

        Weights rest on disk in files of safetensors, which they were loaded from.
        """
        from anyaccel_torch.big_models.node_offload import plan_offload

        return plan_offload(model, device, request, self.native_device)

    def offload(self, model: Any, device: Device, plan: OffloadPlan) -> Any:
        """As `OffloadModels.offload`; the module is changed in place."""
        from anyaccel_torch.big_models.node_offload import offload
        from anyaccel_torch.tree_utils import check_dtypes

        check_dtypes(model, device, self.unsupported_dtypes)
        return offload(model, plan, self.native_device)

    def end_offload(self, model: Any) -> Any:
        """As `OffloadModels.end_offload`."""
        from anyaccel_torch.big_models.node_offload import end_offload

        return end_offload(model)

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """As `Replicate.replica_group`, by torch.distributed."""
        from anyaccel_torch.replica_group import TorchReplicaGroup

        if self._replica_group is None:
            self._replica_group = TorchReplicaGroup(rank, size)
        return self._replica_group

    def unshareable_reason(self, model: Any) -> str:
        """As `Replicate.unshareable_reason`: parameters that are DTensors, which other processes have parts of."""
        from anyaccel_torch.module_traits import has_dtensors

        return "has DTensors as parameters, which its user has divided among processes" if has_dtensors(model) else ""

    def unsynchronizable(self, model: Any) -> str:
        """As `Replicate.unsynchronizable`; layers of Keras, or with a forward of their own, cannot."""
        from anyaccel_torch.module_traits import unsynchronizable

        return unsynchronizable(model)

    def unshardable_reason(self, segment: Segment, *, offload: bool, whole: Collection[str] = ()) -> str:
        """As `ShardParameters.unshardable_reason`."""
        from anyaccel_torch.sharded_module import lacking_reason
        from anyaccel_torch.sharded_program import unshardable_reason

        if reason := lacking_reason():
            return reason
        if offload and any(operation.device.kind == "cpu" for operation in segment.operations):
            return "offload, and its nodes are on the CPU, whose memory is the host's"
        return unshardable_reason(segment, whole)

    def sharded_blocks(self, model: Any) -> Sequence[str]:
        """As `ShardParameters.sharded_blocks`: the outermost children of ModuleLists and Sequentials."""
        from anyaccel_torch.sharded_module import blocks_of

        return tuple(blocks_of(model))

    def build_sharded(
        self, segment: Segment, group: ReplicaGroup, *, offload: bool, whole: Collection[str] = ()
    ) -> Program:
        """As `ShardParameters.build_sharded`, by torch's FSDP2."""
        from anyaccel_torch.replica_group import device_mesh
        from anyaccel_torch.sharded_program import ShardedProgram

        device = next(operation.device for operation in segment.operations if operation.model is not None)
        mesh = device_mesh(self.native_device(device).type, group.size)
        return ShardedProgram(segment, self.native_device, mesh, offload=offload, whole=whole)

    def sharded_bytes(self, program: Program) -> int | None:
        """As `ShardParameters.sharded_bytes`."""
        from anyaccel_torch.sharded_program import ShardedProgram

        return program.sharded_bytes() if isinstance(program, ShardedProgram) else None

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """As `ExpectedDevices.expected_of_kind`, of those that torch itself has."""
        from anyaccel_torch.installed_build import build_facts, expected_of_kind

        return expected_of_kind(kind, machine, build_facts())

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """As `HealthChecks.health_checks`: what torch was built for, and whether steps can be compiled."""
        from anyaccel_torch.health_checks import machine_checks
        from anyaccel_torch.installed_build import build_facts

        return machine_checks(machine, build_facts())

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """As `ObservesTransfers.observe_transfers`, by kernels around torch's own; the CPU has no transfers."""
        from anyaccel_torch.transfer_observer import observed

        return observed(self._accelerator_types(), record)

    def can_observe_transfers(self) -> bool:
        """As `ObservesTransfers.can_observe_transfers`: of any type of device that is here."""
        from anyaccel_torch.transfer_observer import unobserved

        types = self._accelerator_types()
        return not types or len(unobserved(types)) < len(types)

    def unobserved_transfers(self) -> Sequence[str]:
        """As `ObservesTransfers.unobserved_transfers`: all where this torch cannot give its kernels."""
        from anyaccel_torch.transfer_observer import unobserved

        return unobserved(self._accelerator_types())

    def _accelerator_types(self) -> tuple[str, ...]:
        """Types of torch's devices that are on this machine and are no CPU."""
        kinds = [kind for kind in self.kinds if kind != "cpu" and self._count(kind)]
        return tuple(self.torch_types.get(kind, kind) for kind in kinds)

    def device_checks(self, device: Device) -> Iterable[Check]:
        """As `HealthChecks.device_checks`: whether torch has kernels for a GPU."""
        from anyaccel_torch.health_checks import architecture_checks

        return architecture_checks(device)
