"""Host memory: how much there is, arrays in it that are our own, and dtypes that JAX holds as it is set up."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from anyaccel.errors import MoveError

_ALIGNMENT = 64  # XLA takes host memory over without a copy from such addresses on
X64 = 'jax.config.update("jax_enable_x64", True)'


def host_bytes(name: str) -> int:
    """Bytes of a count of memory pages, such as `"SC_PHYS_PAGES"`; 0 where the system does not say."""
    try:
        return max(os.sysconf(name), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system has sysconf, or this name
        return 0


def copied(array: np.ndarray) -> np.ndarray:
    """A copy in C's order and the machine's byte order, that JAX may take over: nobody else writes to it.

    JAX aliases arrays of the host where their address allows it, whatever `may_alias` says, so that only memory of our
    own is safe from whoever writes to the source afterwards.
    """
    dtype = array.dtype.newbyteorder("=")
    room = np.empty(array.size * dtype.itemsize + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    made = room[begin : begin + array.size * dtype.itemsize].view(dtype).reshape(array.shape)
    np.copyto(made, array)
    return made


def check_dtype(dtype: Any) -> None:
    """Nothing, where JAX holds a dtype as it is.

    Args:
        dtype: of NumPy, or its name.

    Raises:
        MoveError: JAX lacks it, or would make it narrower, since its 64-bit types are not enabled.
    """
    import jax

    found = np.dtype(getattr(jax.numpy, dtype, dtype) if isinstance(dtype, str) else dtype).newbyteorder("=")
    if found.kind not in "biufcV" or found.type is np.void:
        raise MoveError(
            f"JAX has no dtype for NumPy's {found}",
            there="bool, and integers, floats and complex numbers",
            remedy="convert the array first, such as with array.astype('float32')",
        )
    held = jax.dtypes.canonicalize_dtype(found)
    if held != found:
        raise MoveError(
            f"JAX would make {found} {held}: its 64-bit types are not enabled",
            there="moves keep dtypes",
            remedy=f"call {X64} (or set JAX_ENABLE_X64=1) before you use JAX, or convert first: astype('{held}')",
        )
