"""Tensors in host memory, page-locked where that helps a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.errors import MoveError
from anyaccel.hostmemory import aligned_empty

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
            there="float16, float32, float64, complex, bool, and integers of 8 to 64 bits",
            remedy="convert the array first, such as with array.astype('float32')",
        ) from None
