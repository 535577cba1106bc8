"""MpsBackend: `TorchBackend` with the differences of the Apple GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyaccel.backend import AsyncCopy, DeviceInfo, Memory, MemoryInfo, Program
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel.segment import Segment
from anyaccel_mps import device_info
from anyaccel_mps.dtype_support import check_array, check_tensors
from anyaccel_torch import TorchBackend

if TYPE_CHECKING:
    from anyaccel_mps.operator_support import OperatorSupport


class MpsMemory(Memory):
    """Memory of this process only: it is shared with the CPU, and other processes are not seen."""

    def memory(self, device: Device) -> MemoryInfo:
        """Torch's cache counts as not free, and there is no peak."""
        import torch

        total = device_info.total_memory()
        free = max(total - int(torch.mps.driver_allocated_memory()), 0)
        return MemoryInfo(total, free, used=int(torch.mps.current_allocated_memory()), peak=0)

    def release_memory(self, device: Device) -> None:
        """Empty torch's cache."""
        import torch

        torch.mps.empty_cache()


class MpsExpectedDevices(ExpectedDevices):
    """One GPU on a Mac with an Apple GPU, whose system torch supports."""

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """By the facts of the machine."""
        return device_info.expected_gpus(machine)


class MpsBackend(TorchBackend):
    """PyTorch on the Apple GPU: one device without float64, whose copies are synchronous. Does not import torch.

    No copy is asynchronous or from pinned memory, even on request: asynchronous copies to MPS may give wrong values.
    """

    kinds: ClassVar[tuple[str, ...]] = ("mps",)
    pinned_kinds: ClassVar[frozenset[str]] = frozenset()
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset({"float64", "complex128"})
    environment: ClassVar[tuple[str, ...]] = (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "KERAS_BACKEND",
    )
    capabilities: ClassVar[Capabilities] = {
        **TorchBackend.capabilities,
        Memory: MpsMemory,
        ExpectedDevices: MpsExpectedDevices,
        "anyaccel_devtools.HealthChecks": lazy("anyaccel_mps.health_checks:MpsHealthChecks"),
    }

    def unavailable_reason(self, device: Device) -> str:
        """The system, the build of torch, or that there is only one device."""
        return device_info.unavailable_reason(device, len(self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """Without a memory space, as torch copies between CPU and MPS although they share memory."""
        return device_info.apple_gpu_info()

    def place(self, obj: Any, device: Device) -> Any:
        """Nothing is moved if any tensor in `obj` has an unsupported dtype."""
        check_tensors(obj, device, self.unsupported_dtypes)
        return super().place(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Waits for the copy."""
        check_tensors(tensor, device, self.unsupported_dtypes)
        return super().move(tensor, device)

    def synchronize(self, device: Device) -> None:
        """Wait for all work on MPS."""
        import torch

        torch.mps.synchronize()

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Waits for the copy, and refuses an unsupported dtype before any."""
        check_array(array.dtype, device, self.unsupported_dtypes)
        return super().from_host(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """A copy, as Metal computes from memory of its own."""
        return self.from_host(array, device)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Waits for the copy, since asynchronous copies to MPS have given garbage."""
        return AsyncCopy(self.from_host(array, device))

    def build(self, segment: Segment) -> Program:
        """After a dry run that finds the operators of a step; where torch falls back to the CPU, it warns.

        Raises:
            PhaseError: MPS lacks some of them, and PYTORCH_ENABLE_MPS_FALLBACK is not set.
        """
        support = self.operator_support()
        if support is not None:
            from anyaccel_mps.operator_check import check_operators

            check_operators(segment, support)
        return super().build(segment)

    def operator_support(self) -> OperatorSupport | None:
        """Which operators MPS has; None where this torch does not know, and operators are not checked."""
        try:
            import anyaccel_mps.dry_run  # noqa: F401
            from anyaccel_mps.operator_support import OperatorSupport
        except ImportError:  # both use private names of torch, which may move
            return None
        support = OperatorSupport()
        return support if support.is_known() else None
