"""Tensors in host memory, page-locked where that helps a copy."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import AsyncCopy
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty

if TYPE_CHECKING:
    import torch


# Bytes from which NumPy asks Linux for large pages, and torch does not: a first copy there takes a quarter of the time.
_LARGE = 4 * 2**20


def copied(array: np.ndarray, *, pinned: bool = False) -> torch.Tensor:
    """A tensor in host memory with the values of a NumPy array of any strides and byte order; owns its memory.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    dtype = _dtype_for(array.dtype)
    if not pinned and array.nbytes >= _LARGE and (room := _room_for(array)) is not None:
        return torch.from_numpy(room)
    tensor = _buffer(torch.empty(array.shape, dtype=dtype, device="meta"), pinned=pinned)
    np.copyto(tensor.numpy(), array)
    return tensor


def lent(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of a writable NumPy array, which it keeps alive.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    _dtype_for(array.dtype)
    return torch.from_numpy(array)


def page_locked(shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    """An array of any content in page-locked memory; None where there is none.

    Raises:
        MoveError: torch lacks the dtype.
    """
    import torch

    made = _buffer(torch.empty(shape, dtype=_dtype_for(np.dtype(dtype)), device="meta"), pinned=True)
    return made.numpy() if made.is_pinned() else None


def sent(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    """A tensor of the host on `target`, by an asynchronous copy from page-locked memory where that can be had.

    Safe though nobody waits: what is copied from is a buffer of our own, so that the caller's tensor may change at
    once, and torch's host allocator hands that buffer out again only after the event of the copy.
    """
    if tensor.requires_grad:
        return tensor.to(target)
    buffer = _buffer(tensor, pinned=True)
    return buffer.copy_(tensor).to(target, non_blocking=buffer.is_pinned())


def _room_for(array: np.ndarray) -> np.ndarray | None:
    try:
        room = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    except MemoryError:  # torch has words for it
        return None
    np.copyto(room, array)
    return room


def _buffer(like: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    import torch

    if pinned:
        try:
            return torch.empty_like(like, device="cpu", pin_memory=True)
        except RuntimeError:  # no page-locked memory is left, or none for this layout: then the wish has no effect
            pass
    return torch.empty_like(like, device="cpu")


def _dtype_for(dtype: np.dtype[Any]) -> torch.dtype:
    import torch

    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise MoveError(
            f"torch has no dtype for NumPy's {dtype}",
            available="float16, float32, float64, complex, bool, and integers of 8 to 64 bits",
            hint="convert the array first, such as with array.astype('float32')",
        ) from None


def can_send_aside(host: torch.Tensor, target: torch.device) -> bool:
    """Whether a tensor lies in page-locked memory, and the device has streams."""
    import torch

    return host.is_pinned() and hasattr(torch.get_device_module(target), "Stream")


def sent_aside(host: torch.Tensor, target: torch.device) -> AsyncCopy:
    """A tensor of page-locked memory on its way to `target`.

    The memory of the copy belongs to the stream that copies. So the stream that computes is noted with it: torch lets
    nobody have that memory before it has done with it, though the tensor may be gone by then.
    """
    import torch

    module = torch.get_device_module(target)
    aside = _stream(target)
    with module.stream(aside):
        tensor = host.to(target, non_blocking=True)
        copied = aside.record_event()

    def arrive() -> None:
        computing = module.current_stream(target)
        computing.wait_event(copied)
        tensor.record_stream(computing)

    return AsyncCopy(tensor, arrive, copied.synchronize)


@cache
def _stream(target: torch.device) -> Any:
    """The stream that copies to a device; one is enough, as its copies go over one wire."""
    import torch

    return torch.get_device_module(target).Stream(target)
