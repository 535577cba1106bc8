"""JAX for anyaccel: on GPUs (`gpu`), TPUs (`tpu`) and the CPU; with Flax, Equinox, Optax, and Keras on JAX.

Offers `JaxBackend`, the models `SequentialMLP`, `SequentialCNN` and `TabularMLP`, and the wrappers `Function`, `Linen`
and `Equinox` for functions and modules that do not hold their values. Stands on `anyaccel.backend` and
`anyaccel.adapter`. Importing this package does not import JAX: modules that need it are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_jax.backend import JaxBackend as JaxBackend
    from anyaccel_jax.models.builtin import SequentialCNN as SequentialCNN
    from anyaccel_jax.models.builtin import SequentialMLP as SequentialMLP
    from anyaccel_jax.models.builtin import TabularMLP as TabularMLP
    from anyaccel_jax.models.equinox import Equinox as Equinox
    from anyaccel_jax.models.function import Function as Function
    from anyaccel_jax.models.linen import Linen as Linen

__all__ = ["Equinox", "Function", "JaxBackend", "Linen", "SequentialCNN", "SequentialMLP", "TabularMLP", "backends"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Equinox": ".models.equinox",
        "Function": ".models.function",
        "JaxBackend": ".backend",
        "Linen": ".models.linen",
        "SequentialCNN": ".models.builtin",
        "SequentialMLP": ".models.builtin",
        "TabularMLP": ".models.builtin",
    },
)

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Any]:
    """Return the backend of this plugin; JAX is imported when the backend is first used."""
    from anyaccel_jax.backend import JaxBackend

    return [JaxBackend()]
