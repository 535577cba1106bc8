"""Tensors from and to host memory, and from other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, is_dense, is_own
from anyaccel_torch.error_translation import first_line, telling
from anyaccel_torch.host_transfer import can_send_aside, copied, lent, page_locked, sent_aside
from anyaccel_torch.placement import TorchPlacement
from anyaccel_torch.tree_utils import check_dtypes


class TorchExchange(TorchPlacement, Exchange):
    """Through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """As `Exchange.from_host`; any strides and byte order, and read-only arrays without a warning."""
        with telling(f"an array of {array.nbytes} bytes on {device}"):
            pinned = pinned and device.kind in self.pinning
            host = copied(array, pinned=pinned)
            check_dtypes(host, device, self.lacking)
            return host.to(self.torch_device(device), non_blocking=pinned and host.is_pinned())

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """As `Exchange.take`; on the CPU the tensor is the array's own memory, where that is writable and dense."""
        if self.torch_device(device).type != "cpu" or not is_own(array):
            return self.from_host(array, device)
        tensor = lent(array)
        check_dtypes(tensor, device, self.lacking)
        return tensor

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """As `Exchange.buffer`; page-locked for the kinds of `pinning`, as long as there is such memory."""
        made = page_locked(shape, dtype) if device.kind in self.pinning else None
        return aligned_empty(shape, dtype) if made is None else made

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """As `Exchange.send`; from page-locked memory by a stream of its own, from any other at once."""
        target = self.torch_device(device)
        if device.kind not in self.pinning or not is_dense(array) or not can_send_aside(host := lent(array), target):
            return AsyncCopy(self.from_host(array, device))
        check_dtypes(host, device, self.lacking)
        with telling(f"an array of {array.nbytes} bytes on {device}"):
            return sent_aside(host, target)

    def to_host(self, tensor: Any) -> np.ndarray:
        """As `Exchange.to_host`; NumPy lacks bfloat16 and sparse layouts."""
        host = tensor.detach().cpu()
        try:
            found: np.ndarray = host.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise MoveError(
                f"NumPy cannot hold a tensor of {tensor.dtype} ({tensor.layout})",
                available=first_line(error),
                hint="convert it first: tensor.float(), or tensor.to_dense() if it is sparse",
            ) from error
        return found

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """As `Exchange.adopt`; what its owner says is read-only is copied, as torch would write to it."""
        import torch

        if isinstance(foreign, torch.Tensor):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        if any(stride < 0 for stride in getattr(foreign, "strides", None) or ()):  # these end torch's process
            return self.from_host(np.asarray(foreign), device)
        try:
            taken = torch.from_dlpack(foreign)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"torch cannot take over a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                available=first_line(error),
                hint="give a plain array without gradients, or go through host memory with from_host",
            ) from error
        return self.move(taken, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """As `Exchange.rows`; a view of the column where there is no order."""
        if order is None:
            return column[start:stop]
        with telling(f"rows {start} to {stop} of a column of shape {list(column.shape)}"):
            return column.index_select(0, order[start:stop])

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """As `Exchange.scalars`; one transfer for each device and dtype, which nearly always is one."""
        import torch

        found = np.empty(len(values), dtype=np.float64)
        alike: dict[Any, list[int]] = {}
        for i, value in enumerate(values):
            alike.setdefault((value.device, value.dtype), []).append(i)
        for places in alike.values():
            found[places] = torch.stack([values[i].detach().reshape(()) for i in places]).cpu().double().numpy()
        return found
