"""Host memory: how much there is, and tensors in it, page-locked where that helps a copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.errors import MoveError

if TYPE_CHECKING:
    import torch


def host_bytes(name: str) -> int:
    """Bytes of a count of memory pages, such as `"SC_PHYS_PAGES"`; 0 where the system does not say."""
    try:
        return max(os.sysconf(name), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system has sysconf, or this name
        return 0


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
