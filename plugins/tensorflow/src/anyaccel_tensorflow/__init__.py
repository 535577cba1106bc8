"""TensorFlow and Keras for anyaccel: on GPUs (`gpu`) and the CPU.

Importing this package does not import TensorFlow; its models and `TensorFlowBackend` are loaded when they are first
used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl

if TYPE_CHECKING:
    from anyaccel_tensorflow.backend import TensorFlowBackend as TensorFlowBackend
    from anyaccel_tensorflow.builtin_models import SequentialCNN as SequentialCNN
    from anyaccel_tensorflow.builtin_models import SequentialMLP as SequentialMLP

_HOME_OF = {
    "SequentialCNN": "anyaccel_tensorflow.builtin_models",
    "SequentialMLP": "anyaccel_tensorflow.builtin_models",
    "TensorFlowBackend": "anyaccel_tensorflow.backend",
}

__all__ = ["SequentialCNN", "SequentialMLP", "TensorFlowBackend", "backends"]


@hookimpl
def backends() -> list[Any]:
    """The one backend of this plugin; TensorFlow is imported when it is first asked for something."""
    from anyaccel_tensorflow.backend import TensorFlowBackend

    return [TensorFlowBackend()]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'anyaccel_tensorflow' has no attribute {name!r}")
    value = getattr(_import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
