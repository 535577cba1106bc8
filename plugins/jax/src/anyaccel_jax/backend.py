"""JaxBackend: placement, exchange and compute, and the table of its capabilities."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.outer_contexts import LeavesContexts
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.adapter.step_profiler import ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.backend import Memory, MemoryInfo
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel.precision import ComputesPrecision
from anyaccel_jax import runtime_config
from anyaccel_jax.compute import JaxCompute, JaxMemoryFigures, JaxPrecision
from anyaccel_jax.device_info import JaxExpectedDevices
from anyaccel_jax.exchange import JaxExchange

# -- Memory of devices, by JAX's own figures --------------------------------------------------------------------------


class JaxMemory(Memory):
    """Memory of an accelerator as this process's allocator reports it; for the CPU only its size is known."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the memory; free is what JAX's allocator can still provide, which is less than the device has free."""
        stats = self.backend.jax_device(device).memory_stats() or {}
        if not stats:
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0) if device.kind == "cpu" else MemoryInfo(0, 0, 0, 0)
        used, peak = (int(stats.get(name, 0)) for name in ("bytes_in_use", "peak_bytes_in_use"))
        free = max(int(stats.get("bytes_limit", 0)) - used, 0)
        return MemoryInfo(self.backend.device_info(device).total_memory, free, used, max(peak, used))

    def share(self, device: Device, fraction: float) -> str:
        """On a GPU, JAX takes memory as it needs it, unless the user configured something else."""
        return runtime_config.disable_preallocation() if device.kind == "gpu" else ""

    def release_memory(self, device: Device) -> None:
        """JAX has no way to return what its allocator holds."""


# ----------------------------------------------------------------------------------------------------------------------


class JaxBackend(JaxExchange, JaxCompute):
    """JAX on the kinds of device that JAX itself serves. Creating one does not import JAX.

    For a chip that a PJRT plugin adds, derive a class that sets `kinds`, and `platforms` where JAX's name of the kind
    is another one (see `JaxPlacement`).
    """

    environment: ClassVar[tuple[str, ...]] = (
        "JAX_PLATFORMS",
        "JAX_NUM_CPU_DEVICES",
        "JAX_ENABLE_X64",
        "XLA_FLAGS",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "KERAS_BACKEND",
    )
    capabilities: ClassVar[Capabilities] = {
        Memory: JaxMemory,
        MemoryFigures: JaxMemoryFigures,
        StepCosts: lazy("anyaccel_jax.step_cost:JaxStepCosts"),
        ProfilesSteps: lazy("anyaccel_jax.step_profile:JaxProfiler"),
        ObservesTransfers: lazy("anyaccel_jax.transfer_observer:JaxTransfers"),
        ComputesPrecision: JaxPrecision,
        LeavesContexts: lazy("anyaccel_jax.outer_contexts:JaxContexts"),
        "anyaccel_distributed.DeviceReplicas": lazy("anyaccel_jax.device_replicas:JaxReplicas"),
        "anyaccel_distributed.ShardParameters": lazy("anyaccel_jax.sharding:JaxSharding"),
        "anyaccel_distributed.OwnLoops": lazy("anyaccel_jax.own_loop:JaxLoops"),
        ExpectedDevices: JaxExpectedDevices,
        "anyaccel_devtools.HealthChecks": lazy("anyaccel_jax.health_checks:JaxHealthChecks"),
    }

    def devices(self) -> Sequence[Device]:
        """Return those expected where these are certain, until jax is imported."""
        if "jax" not in sys.modules:
            expected = self.required(ExpectedDevices).expected_devices(Machine.detect())
            if expected is not None:
                return list(expected)
        return super().devices()
