"""JAX for anyaccel: on GPUs (`gpu`), TPUs (`tpu`) and the CPU; with Flax, Equinox, Optax, and Keras on JAX.

Importing this package does not import JAX; its models and `JaxBackend` are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl

if TYPE_CHECKING:
    from anyaccel_jax.backend import JaxBackend as JaxBackend
    from anyaccel_jax.models.builtin import SequentialCNN as SequentialCNN
    from anyaccel_jax.models.builtin import SequentialMLP as SequentialMLP
    from anyaccel_jax.models.equinox import Equinox as Equinox
    from anyaccel_jax.models.function import Function as Function
    from anyaccel_jax.models.linen import Linen as Linen

_HOME_OF = {
    "Equinox": "anyaccel_jax.models.equinox",
    "Function": "anyaccel_jax.models.function",
    "JaxBackend": "anyaccel_jax.backend",
    "Linen": "anyaccel_jax.models.linen",
    "SequentialCNN": "anyaccel_jax.models.builtin",
    "SequentialMLP": "anyaccel_jax.models.builtin",
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
