"""Arrays in host memory that are our own, and dtypes that JAX holds as it is set up."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty

X64 = 'jax.config.update("jax_enable_x64", True)'


def copied(array: np.ndarray) -> np.ndarray:
    """A copy in C's order and the machine's byte order, that JAX may take over: nobody else writes to it.

    JAX aliases arrays of the host where their address allows it, whatever `may_alias` says, so that only memory of our
    own is safe from whoever writes to the source afterwards.
    """
    made = aligned_empty(array.shape, array.dtype.newbyteorder("="))
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
            available="bool, and integers, floats and complex numbers",
            hint="convert the array first, such as with array.astype('float32')",
        )
    held = jax.dtypes.canonicalize_dtype(found)
    if held != found:
        raise MoveError(
            f"JAX would make {found} {held}: its 64-bit types are not enabled",
            available="moves keep dtypes",
            hint=f"call {X64} (or set JAX_ENABLE_X64=1) before you use JAX, or convert first: astype('{held}')",
        )
