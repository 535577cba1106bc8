"""The array namespace that the adapter computes with: `jax.numpy`, and zeros that need no compilation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel_jax.transfers import put_alike


class Namespace:
    """`jax.numpy` under its own names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def zeros_like(self, array: Any) -> Any:
        """As `jnp.zeros_like`, on the array's device."""
        if isinstance(array, jax.core.Tracer):
            return jnp.zeros_like(array)
        return put_alike(np.zeros(array.shape, array.dtype), array.sharding)
