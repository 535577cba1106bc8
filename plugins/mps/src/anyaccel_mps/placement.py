"""Placement on the Apple GPU: one device without float64, whose copies are synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.doctor import Machine
from anyaccel_mps import device_info
from anyaccel_mps.dtype_support import check_tensors
from anyaccel_torch.placement import TorchPlacement


class MpsPlacement(TorchPlacement):
    """The required part of the contract, as `TorchPlacement` with the differences of MPS.

    No copy is asynchronous or from pinned memory, even on request: asynchronous copies to MPS may give wrong values.
    """

    kinds: ClassVar[tuple[str, ...]] = ("mps",)
    pinned_kinds: ClassVar[frozenset[str]] = frozenset()
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset({"float64", "complex128"})

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """As `ExpectedDevices.expected_of_kind`: none but on a Mac with an Apple GPU, whose system torch supports."""
        return device_info.expected_gpus(machine)

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.unavailable_reason`: the system, the build of torch, or that there is only one device."""
        return device_info.unavailable_reason(device, len(self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """As `Backend.device_info`; no memory space, as torch copies between CPU and MPS although they share memory."""
        return device_info.apple_gpu_info()

    def place(self, obj: Any, device: Device) -> Any:
        """As `Backend.place`; nothing is moved if any tensor in `obj` has an unsupported dtype."""
        check_tensors(obj, device, self.unsupported_dtypes)
        return super().place(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """As `Backend.move`; waits for the copy."""
        check_tensors(tensor, device, self.unsupported_dtypes)
        return super().move(tensor, device)

    def synchronize(self, device: Device) -> None:
        import torch

        torch.mps.synchronize()
