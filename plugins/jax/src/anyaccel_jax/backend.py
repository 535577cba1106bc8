"""JaxBackend: placement and every capability in one object."""

from __future__ import annotations

from typing import ClassVar

from anyaccel_jax.compute import JaxCompute
from anyaccel_jax.exchange import JaxExchange
from anyaccel_jax.memory import JaxMemory


class JaxBackend(JaxExchange, JaxCompute, JaxMemory):
    """JAX on the kinds of device that JAX itself serves. Making one does not import JAX.

    A chip that JAX knows under a name of its own (a PJRT plugin) is served by a subclass that says `kinds`, and where
    JAX's word is another one, `platforms` (see `JaxPlacement`).
    """

    environment: ClassVar[tuple[str, ...]] = (
        "JAX_PLATFORMS",
        "JAX_NUM_CPU_DEVICES",
        "JAX_ENABLE_X64",
        "XLA_FLAGS",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "KERAS_BACKEND",
    )
