"""TensorFlowBackend: placement and every capability in one object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.device_replicas import DeviceReplicas, Gradients
from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.doctor import Check, ExpectedDevices, HealthChecks, Machine
from anyaccel.replicas import ReplicaGroup, Replicate
from anyaccel.segment import Segment
from anyaccel_tensorflow.compute import TensorFlowCompute
from anyaccel_tensorflow.exchange import TensorFlowExchange
from anyaccel_tensorflow.memory import TensorFlowMemory


class TensorFlowBackend(
    ExpectedDevices,
    TensorFlowExchange,
    TensorFlowCompute,
    TensorFlowMemory,
    DeviceReplicas,
    Replicate,
    HealthChecks,
    ObservesTransfers,
    ProfilesSteps,
    StepCosts,
    LeavesContexts,
):
    """TensorFlow and Keras on the kinds of device that TensorFlow itself serves. Creating one does not import it.

    For a chip that a PluggableDevice adds, derive a class that sets `kinds`, and `device_types` where TensorFlow's
    name of the kind is not its upper case (see `TensorFlowPlacement`).
    """

    fork_safe = False  # TensorFlow keeps threads, which a forked process lacks
    environment: ClassVar[tuple[str, ...]] = (
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_GPU_ALLOCATOR",
        "TF_XLA_FLAGS",
        "KERAS_BACKEND",
    )

    def leave_contexts(self) -> AbstractContextManager[OuterContexts]:
        """As `LeavesContexts.leave_contexts`: scopes of devices."""
        from anyaccel_tensorflow.outer_contexts import leave_contexts

        return leave_contexts()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """As `Backend.generator_state`, for objects of `tf.random.Generator`; the global state is not known."""
        import tensorflow as tf

        return np.asarray(generator.state.numpy()) if isinstance(generator, tf.random.Generator) else None

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        """As `Backend.set_generator_state`."""
        generator.state.assign(state)

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """As `StepCosts.step_cost`: activations; operations are not counted."""
        from anyaccel_tensorflow.step_cost import activations

        return StepCost(activations=activations(segment, batch_size))

    def profile_steps(
        self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]
    ) -> AbstractContextManager[Mark]:
        """As `ProfilesSteps.profile_steps`: `tf.profiler`, with the scopes of compiled code."""
        from anyaccel_tensorflow.step_profile import profile_steps

        return profile_steps(path, nodes)

    def copy_models(self, models: Sequence[Any], device: Device) -> list[Any]:
        """As `DeviceReplicas.copy_models`."""
        from anyaccel_tensorflow.device_replicas import copies

        return [self.place(model, device) for model in copies(models)]

    def weighted_sums(self, tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
        """As `DeviceReplicas.weighted_sums`, on the device of the tensors."""
        from anyaccel_tensorflow.device_replicas import weighted_sums

        return weighted_sums(tensors, weights)

    def replica_group(self, rank: int, size: int) -> ReplicaGroup:
        """As `Replicate.replica_group`, by TensorFlow's collective operations."""
        from anyaccel_tensorflow.replica_group import joined

        return joined(rank, size)

    def unsynchronizable(self, model: Any) -> str:
        """As `Replicate.unsynchronizable`: any layer that mixes the rows of a batch."""
        return self.batch_coupling(model)

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """As `ExpectedDevices.expected_of_kind`; None for those that a PluggableDevice adds."""
        from anyaccel_tensorflow.installed_build import build_flags, expected_of_kind

        return expected_of_kind(kind, machine, build_flags())

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """As `HealthChecks.health_checks`, by the packages that are installed."""
        from anyaccel_tensorflow.health_checks import machine_checks

        return machine_checks(machine)

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """As `ObservesTransfers.observe_transfers`; a tensor on the CPU that becomes NumPy's counts as a transfer."""
        from anyaccel_tensorflow.transfer_observer import observed

        return observed(record, self.device_named)

    def can_observe_transfers(self) -> bool:
        """As `ObservesTransfers.can_observe_transfers`."""
        from anyaccel_tensorflow.transfer_observer import missing_names

        return not missing_names()

    def unobserved_transfers(self) -> Sequence[str]:
        """As `ObservesTransfers.unobserved_transfers`: int32, NumPy's own reads, and what compiled functions hide."""
        from anyaccel_tensorflow.transfer_observer import unobserved

        return unobserved()
