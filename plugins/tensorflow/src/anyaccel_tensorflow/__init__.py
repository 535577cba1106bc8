"""TensorFlow and Keras for anyaccel: on GPUs (`gpu`) and the CPU.

Offers `TensorFlowBackend`, and the models `SequentialMLP`, `SequentialCNN` and `TabularMLP`. Stands on
`anyaccel.backend` and `anyaccel.adapter`. Importing this package does not import TensorFlow: modules that need it are
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_tensorflow.backend import TensorFlowBackend as TensorFlowBackend
    from anyaccel_tensorflow.builtin_models import SequentialCNN as SequentialCNN
    from anyaccel_tensorflow.builtin_models import SequentialMLP as SequentialMLP
    from anyaccel_tensorflow.builtin_models import TabularMLP as TabularMLP

__all__ = ["SequentialCNN", "SequentialMLP", "TabularMLP", "TensorFlowBackend", "backends"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "SequentialCNN": ".builtin_models",
        "SequentialMLP": ".builtin_models",
        "TabularMLP": ".builtin_models",
        "TensorFlowBackend": ".backend",
    },
)

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Any]:
    """Return the backend of this plugin; TensorFlow is imported when the backend is first used."""
    from anyaccel_tensorflow.backend import TensorFlowBackend

    return [TensorFlowBackend()]
