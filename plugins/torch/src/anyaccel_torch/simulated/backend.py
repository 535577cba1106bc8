"""SimulatedBackend: the backend of torch, over simulated devices. Making one does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from anyaccel.device import Device
from anyaccel.hookspecs import hookimpl
from anyaccel.registry import registry
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.simulated.sim_device import KIND, missing, running

_PLUGIN = "torch-simulated"


class SimulatedBackend(TorchBackend):
    """torch on `sim`: nothing but where things are is different from torch on a GPU."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)
    pinning: ClassVar[frozenset[str]] = frozenset({KIND})  # a wish without effect, as there is no page-locked memory

    def __init__(self) -> None:
        self._prepared = False

    def devices(self) -> Sequence[Device]:
        """As `Backend.devices`: those that were started, or that the environment asks for."""
        return [one.device for one in running()]

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.why_not`: how many were started."""
        return missing(device)

    def torch_device(self, device: Device) -> Any:
        """As `TorchPlacement.torch_device`; the first call tells torch of the devices."""
        if not self._prepared:
            from anyaccel_torch.simulated.inside import prepare

            prepare()
            self._prepared = True
        return super().torch_device(device)

    def synchronize(self, device: Device) -> None:
        """As `Backend.synchronize`; nothing is ever under way."""
        import torch

        torch.get_device_module(self.torch_device(device)).synchronize(device.index)


def enter() -> None:
    """Let anyaccel know the backend, if its plugin was loaded before there were simulated devices."""
    if registry().serves("torch", KIND):
        return
    plugin = ModuleType(_PLUGIN)
    plugin.backends = hookimpl(lambda: [SimulatedBackend()])  # type: ignore[attr-defined]
    registry().register(plugin, _PLUGIN)
