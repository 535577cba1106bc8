"""PyTorch for anyaccel: on NVIDIA and AMD GPUs (`gpu`), Intel GPUs (`xpu`) and the CPU.

Offers `SequentialMLP`, `SequentialCNN`, `TabularMLP`, `TorchBackend`, `TorchSchedule` and the plugin's hook. Stands on
anyaccel's kernel and `anyaccel.adapter`. Importing it does not import torch; its names are loaded when they are first
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_torch.backend import TorchBackend as TorchBackend
    from anyaccel_torch.builtin_models import SequentialCNN as SequentialCNN
    from anyaccel_torch.builtin_models import SequentialMLP as SequentialMLP
    from anyaccel_torch.builtin_models import TabularMLP as TabularMLP
    from anyaccel_torch.lr_schedule import TorchSchedule as TorchSchedule

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "SequentialCNN": ".builtin_models",
        "SequentialMLP": ".builtin_models",
        "TabularMLP": ".builtin_models",
        "TorchBackend": ".backend",
        "TorchSchedule": ".lr_schedule",
    },
)

__all__ = ["SequentialCNN", "SequentialMLP", "TabularMLP", "TorchBackend", "TorchSchedule", "backends"]

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Any]:
    """Return the torch backend, and that of simulated devices where these are asked for; creating them imports no
    torch.
    """
    from anyaccel_torch.backend import TorchBackend
    from anyaccel_torch.simulated import is_wanted

    if not is_wanted():
        return [TorchBackend()]
    from anyaccel_torch.simulated.backend import SimulatedBackend

    return [TorchBackend(), SimulatedBackend()]
