"""TensorFlowBackend: placement and every capability in one object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from anyaccel.adapter.device_replicas import DeviceReplicas, Gradients
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.doctor import Check, ExpectedDevices, HealthChecks, Machine
from anyaccel.replicas import ReplicaGroup, Replicate
from anyaccel_tensorflow.compute import TensorFlowCompute
from anyaccel_tensorflow.exchange import TensorFlowExchange
from anyaccel_tensorflow.memory import TensorFlowMemory


class TensorFlowBackend(
    ExpectedDevices, TensorFlowExchange, TensorFlowCompute, TensorFlowMemory, DeviceReplicas, Replicate, HealthChecks
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
