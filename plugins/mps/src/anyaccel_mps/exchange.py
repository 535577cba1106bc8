"""Tensors on the Apple GPU from and to host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.device import Device
from anyaccel_mps.dtype_support import check_array
from anyaccel_mps.placement import MpsPlacement
from anyaccel_torch.exchange import TorchExchange


class MpsExchange(MpsPlacement, TorchExchange):
    """As torch's; from page-locked memory never."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """As `Exchange.from_host`; waits for the copy, and refuses a dtype that MPS lacks before there is any."""
        check_array(array.dtype, device, self.unsupported_dtypes)
        return super().from_host(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `Exchange.take`; Metal computes from memory of its own, so that there is a copy."""
        return self.from_host(array, device)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """As `Exchange.send`; the copy is waited for: of one that is not, MPS has been seen to make garbage."""
        return AsyncCopy(self.from_host(array, device))
