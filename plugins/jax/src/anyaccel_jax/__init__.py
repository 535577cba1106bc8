"""JAX for anyaccel: on GPUs (`gpu`), TPUs (`tpu`) and the CPU; with Flax, Equinox, Optax, and Keras on JAX.

Importing this package does not import JAX; its models and `JaxBackend` are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl

if TYPE_CHECKING:
    from anyaccel_jax.backend import JaxBackend as JaxBackend
    from anyaccel_jax.equinox import Equinox as Equinox
    from anyaccel_jax.functions import Function as Function
    from anyaccel_jax.linen import Linen as Linen
    from anyaccel_jax.standard import SequentialCNN as SequentialCNN
    from anyaccel_jax.standard import SequentialMLP as SequentialMLP

_HOME_OF = {
    "Equinox": "anyaccel_jax.equinox",
    "Function": "anyaccel_jax.functions",
    "JaxBackend": "anyaccel_jax.backend",
    "Linen": "anyaccel_jax.linen",
    "SequentialCNN": "anyaccel_jax.standard",
    "SequentialMLP": "anyaccel_jax.standard",
}

__all__ = ["Equinox", "Function", "JaxBackend", "Linen", "SequentialCNN", "SequentialMLP", "backends"]


@hookimpl
def backends() -> list[Any]:
    """The one backend of this plugin; JAX is imported when it is first asked for something."""
    from anyaccel_jax.backend import JaxBackend

    return [JaxBackend()]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'anyaccel_jax' has no attribute {name!r}")
    value = getattr(_import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
