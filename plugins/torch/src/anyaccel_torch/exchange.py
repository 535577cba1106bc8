"""Tensors from and to host memory, and from other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import Exchange
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel_torch.faults import first_line, telling
from anyaccel_torch.placement import TorchPlacement

if TYPE_CHECKING:
    import torch


def copied(array: np.ndarray, *, pinned: bool = False) -> torch.Tensor:
    """A tensor in host memory with the values of a NumPy array of any strides and byte order; owns its memory.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    dtype = _dtype_for(array.dtype)
    tensor = _buffer(torch.empty(array.shape, dtype=dtype, device="meta"), pinned=pinned)
    np.copyto(tensor.numpy(), array)
    return tensor


def sent(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """A tensor of the host on `target`, by an asynchronous copy from page-locked memory where that can be had.

    Safe though nobody waits: what is copied from is a buffer of our own, so that the caller's tensor may change at
    once, and torch's host allocator hands that buffer out again only after the event of the copy.
    """
    if tensor.requires_grad:
        return tensor.to(target)
    buffer = _buffer(tensor, pinned=True)
    return buffer.copy_(tensor).to(target, non_blocking=buffer.is_pinned())


def _buffer(like: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    import torch

    if pinned:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=True)
        except RuntimeError:  # no page-locked memory is left, or none for this layout: then the wish has no effect
            pass
    return torch.empty_like(like, device="cpu")


class TorchExchange(TorchPlacement, Exchange):
    """Through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        with telling(f"an array of {array.nbytes} bytes on {device}"):
            pinned = pinned and device.kind in self.pinning
            host = copied(array, pinned=pinned)
            self.check_dtypes(host, device)
            return host.to(self.torch_device(device), non_blocking=pinned and host.is_pinned())

    def to_host(self, tensor: Any) -> np.ndarray:
        host = tensor.detach().cpu()
        try:
            found: np.ndarray = host.resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError) as error:
            raise MoveError(
                f"NumPy cannot hold a tensor of {tensor.dtype} ({tensor.layout})",
                there=first_line(error),
                remedy="convert it first: tensor.float(), or tensor.to_dense() if it is sparse",
            ) from error
        return found

    def adopt(self, foreign: Any, device: Device) -> Any:
        import torch

        if isinstance(foreign, torch.Tensor):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)  # torch would write to what its owner says is read-only
        try:
            taken = torch.from_dlpack(foreign)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"torch cannot take over a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                there=first_line(error),
                remedy="give a plain array without gradients, or go through host memory with from_host",
            ) from error
        return self.move(taken, device)

    def rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        return column[start:stop] if order is None else column.index_select(0, order[start:stop])

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        import torch

        found = np.empty(len(values), dtype=np.float64)
        alike: dict[Any, list[int]] = {}
        for i, value in enumerate(values):
            alike.setdefault((value.device, value.dtype), []).append(i)
        for places in alike.values():  # one transfer for each device and dtype: nearly always one
            found[places] = torch.stack([values[i].detach().reshape(()) for i in places]).cpu().double().numpy()
        return found


def _dtype_for(dtype: np.dtype[Any]) -> torch.dtype:
    import torch

    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise MoveError(
            f"torch has no dtype for NumPy's {dtype}",
            there="float16, float32, float64, complex, bool, and integers of 8 to 64 bits",
            remedy="convert the array first, such as with array.astype('float32')",
        ) from None
