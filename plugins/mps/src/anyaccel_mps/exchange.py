"""Transfers between host memory and the Apple GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.device import Device
from anyaccel_mps.dtype_support import check_array
from anyaccel_mps.placement import MpsPlacement
from anyaccel_torch.exchange import TorchExchange


class MpsExchange(MpsPlacement, TorchExchange):
    """As `TorchExchange`, without pinned memory and without asynchronous copies."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """As `Exchange.from_host`; waits for the copy, and refuses an unsupported dtype before any."""
        check_array(array.dtype, device, self.unsupported_dtypes)
        return super().from_host(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `Exchange.from_host_owned`; a copy, as Metal computes from memory of its own."""
        return self.from_host(array, device)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """As `Exchange.copy_async`; waits for the copy, since asynchronous copies to MPS have given garbage."""
        return AsyncCopy(self.from_host(array, device))
