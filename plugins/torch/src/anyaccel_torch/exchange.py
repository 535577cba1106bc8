"""Exchange: tensors from and to host memory, and from other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.backend import AsyncCopy, Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, is_dense, is_own
from anyaccel_torch.error_translation import first_line, translate_errors
from anyaccel_torch.host_transfer import (
    as_array,
    can_copy_aside,
    copied,
    copied_aside,
    numpy_dtype,
    pinned_empty,
    shared,
)
from anyaccel_torch.placement import TorchPlacement
from anyaccel_torch.tree_utils import check_dtypes


class TorchExchange(TorchPlacement, Exchange):
    """Exchange through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Any strides and byte order, and read-only arrays without a warning."""
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            pinned = pinned and device.kind in self.pinned_kinds
            host = copied(array, pinned=pinned)
            check_dtypes(host, device, self.unsupported_dtypes)
            return host.to(self.native_device(device), non_blocking=pinned and host.is_pinned())

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor; on the CPU it shares the memory of a writable, dense array."""
        if self.native_device(device).type != "cpu" or not is_own(array):
            return self.from_host(array, device)
        tensor = shared(array)
        check_dtypes(tensor, device, self.unsupported_dtypes)
        return tensor

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate host memory, page-locked for `pinned_kinds` while such memory is available."""
        pinned = pinned_empty(shape, dtype) if device.kind in self.pinned_kinds else None
        return aligned_empty(shape, numpy_dtype(dtype)) if pinned is None else pinned

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Page-locked memory is copied by its own stream, other memory at once."""
        target = self.native_device(device)
        if (
            device.kind not in self.pinned_kinds
            or not is_dense(array)
            or not can_copy_aside(host := shared(array), target)
        ):
            return AsyncCopy(self.from_host(array, device))
        check_dtypes(host, device, self.unsupported_dtypes)
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            return copied_aside(host, target)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return bfloat16 as the dtype of ml_dtypes.

        Raises:
            MoveError: an 8-bit float or a sparse layout, which NumPy does not support.
        """
        host = tensor.detach().cpu()
        try:
            array = as_array(host.resolve_conj().resolve_neg())
        except (TypeError, RuntimeError) as error:
            raise MoveError(
                f"NumPy cannot hold a tensor of {tensor.dtype} ({tensor.layout}): {first_line(error)}",
                hint="convert it first: tensor.float(), or tensor.to_dense() if it is sparse",
            ) from error
        return array

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Read-only arrays are copied, as torch would write to them."""
        import torch

        if isinstance(foreign, torch.Tensor):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        if any(stride < 0 for stride in getattr(foreign, "strides", None) or ()):  # these end torch's process
            return self.from_host(np.asarray(foreign), device)
        try:
            tensor = torch.from_dlpack(foreign)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            kind = f"{type(foreign).__module__}.{type(foreign).__name__}"
            raise MoveError(
                f"torch cannot import a {kind} through DLPack: {first_line(error)}",
                hint="pass a plain array without gradients, or copy it through host memory with from_host",
            ) from error
        return self.move(tensor, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Return a view of the column without an order."""
        if order is None:
            return column[start:stop]
        with translate_errors(f"rows {start} to {stop} of a column of shape {list(column.shape)}"):
            return column.index_select(0, order[start:stop])

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Return scalars with one transfer per device and dtype."""
        import torch

        result = np.empty(len(values), dtype=np.float64)
        groups: dict[Any, list[int]] = {}
        for i, value in enumerate(values):
            groups.setdefault((value.device, value.dtype), []).append(i)
        for indices in groups.values():
            stacked = torch.stack([values[i].detach().reshape(()) for i in indices])
            result[indices] = stacked.cpu().double().numpy()
        return result
