"""Copies in host memory that JAX may keep, and the dtypes that JAX supports as configured."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty

ENABLE_X64 = 'jax.config.update("jax_enable_x64", True)'


def copy_on_host(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy in native byte order that no other code writes to, so JAX may keep it.

    JAX aliases host arrays if their address allows it, regardless of `may_alias`: an array that other code may change
    afterwards must be copied.
    """
    copy = aligned_empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return copy


def check_dtype(dtype: Any) -> None:
    """Make sure that JAX does not convert a dtype.

    Args:
        dtype: Dtype of NumPy, or its name.

    Raises:
        MoveError: JAX lacks it, or would narrow it, because its 64-bit types are not enabled.
    """
    import jax

    native = np.dtype(getattr(jax.numpy, dtype, dtype) if isinstance(dtype, str) else dtype).newbyteorder("=")
    if native.kind not in "biufcV" or native.type is np.void:
        raise MoveError(
            f"JAX has no dtype for NumPy's {native}",
            available="bool, and integers, floats and complex numbers",
            hint="convert the array first, for example with array.astype('float32')",
        )
    kept = jax.dtypes.canonicalize_dtype(native)
    if kept != native:
        raise MoveError(
            f"JAX would convert {native} to {kept}, because its 64-bit types are not enabled",
            cause="moves keep dtypes",
            hint=f"call {ENABLE_X64} (or set JAX_ENABLE_X64=1) before you use JAX, or convert first: astype('{kept}')",
        )
