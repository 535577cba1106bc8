"""PyTorch for anyaccel: on NVIDIA and AMD GPUs (`gpu`), Intel GPUs (`xpu`) and the CPU.

Offers `SequentialMLP`, `SequentialCNN`, `TorchBackend` and the plugin's hook. Stands on anyaccel's kernel and
`anyaccel.adapter`. Importing it does not import torch; its names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl

if TYPE_CHECKING:
    from anyaccel_torch.backend import TorchBackend as TorchBackend
    from anyaccel_torch.builtin_models import SequentialCNN as SequentialCNN
    from anyaccel_torch.builtin_models import SequentialMLP as SequentialMLP

_HOME_OF = {
    "SequentialCNN": "anyaccel_torch.builtin_models",
    "SequentialMLP": "anyaccel_torch.builtin_models",
    "TorchBackend": "anyaccel_torch.backend",
}

__all__ = ["SequentialCNN", "SequentialMLP", "TorchBackend", "backends"]


@hookimpl
def backends() -> list[Any]:
    """The torch backend, and that of simulated devices where these are asked for; creating them imports no torch."""
    from anyaccel_torch.backend import TorchBackend
    from anyaccel_torch.simulated import is_wanted

    if not is_wanted():
        return [TorchBackend()]
    from anyaccel_torch.simulated.backend import SimulatedBackend

    return [TorchBackend(), SimulatedBackend()]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'anyaccel_torch' has no attribute {name!r}")
    value = getattr(_import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
