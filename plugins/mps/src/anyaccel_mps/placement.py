"""Where torch computes on a Mac: one device, without float64, whose copies are always waited for."""

from __future__ import annotations

from typing import Any, ClassVar

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel_mps.device_info import describe, why_not
from anyaccel_mps.dtype_support import check
from anyaccel_torch.placement import TorchPlacement


class MpsPlacement(TorchPlacement):
    """The part of the contract that everybody writes.

    No copy is asynchronous or from page-locked memory, whatever is wished: on MPS, one that nobody waits for may give
    values that were never there.
    """

    kinds: ClassVar[tuple[str, ...]] = ("mps",)
    pinned_kinds: ClassVar[frozenset[str]] = frozenset()
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset({"float64", "complex128"})

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.why_not`: the system, how this torch was built, or that there is one device only."""
        return why_not(device, len(self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """As `Backend.device_info`; no memory space, as torch copies between CPU and MPS though the chip has one."""
        return describe()

    def place(self, obj: Any, device: Device) -> Any:
        """As `Backend.place`; nothing is moved if a single tensor in `obj` has a dtype that MPS lacks."""
        check(obj, device, self.unsupported_dtypes)
        return super().place(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """As `Backend.move`; waits for the copy, pinned or not."""
        check(tensor, device, self.unsupported_dtypes)
        return super().move(tensor, device)

    def synchronize(self, device: Device) -> None:
        """As `Backend.synchronize`."""
        import torch

        torch.mps.synchronize()
