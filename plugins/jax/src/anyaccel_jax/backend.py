"""JaxBackend: placement and every capability in one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from anyaccel.doctor import Check, HealthChecks, Machine
from anyaccel_jax.compute import JaxCompute
from anyaccel_jax.exchange import JaxExchange
from anyaccel_jax.memory import JaxMemory


class JaxBackend(JaxExchange, JaxCompute, JaxMemory, HealthChecks):
    """JAX on the kinds of device that JAX itself serves. Creating one does not import JAX.

    For a chip that a PJRT plugin adds, derive a class that sets `kinds`, and `platforms` where JAX's name of the kind
    is another one (see `JaxPlacement`).
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

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """As `HealthChecks.health_checks`, by the packages that are installed."""
        from anyaccel_jax.health_checks import machine_checks

        return machine_checks(machine)
