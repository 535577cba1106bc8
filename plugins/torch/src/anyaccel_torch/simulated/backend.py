"""SimulatedBackend: the torch backend over simulated devices. Creating one does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, ClassVar

from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.capability import Capabilities
from anyaccel.device import Device
from anyaccel.hookspecs import CONTRACT, hookimpl
from anyaccel.registry import registry
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.simulated.sim_device import KIND, observers, running, unavailable_reason

_PLUGIN = "torch-simulated"


class SimulatedTransfers(ObservesTransfers):
    """Report everything that the devices count."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Return all of it."""
        return observers.added(record)


class SimulatedBackend(TorchBackend):
    """torch on `sim`, which differs from torch on a GPU only in where things are."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)
    pinned_kinds: ClassVar[frozenset[str]] = frozenset({KIND})  # without effect: there is no page-locked memory
    capabilities: ClassVar[Capabilities] = {**TorchBackend.capabilities, ObservesTransfers: SimulatedTransfers}

    def __init__(self) -> None:
        self._registered = False

    def devices(self) -> Sequence[Device]:
        """Return those that were started, or that the environment variable asks for."""
        return [handle.device for handle in running()]

    def unavailable_reason(self, device: Device) -> str:
        """How many were started."""
        return unavailable_reason(device)

    def native_device(self, device: Device) -> Any:
        """The first call registers the devices with torch."""
        if not self._registered:
            from anyaccel_torch.simulated.registration import register

            register()
            self._registered = True
        return super().native_device(device)

    def synchronize(self, device: Device) -> None:
        """Count a wait, though nothing is ever pending."""
        import torch

        torch.get_device_module(self.native_device(device)).synchronize(device.index)


def add_to_registry() -> None:
    """Register the backend with anyaccel, if its plugin was loaded before there were simulated devices."""
    if registry().serves("torch", KIND):
        return
    plugin = ModuleType(_PLUGIN)
    plugin.contract = CONTRACT  # type: ignore[attr-defined]
    plugin.backends = hookimpl(lambda: [SimulatedBackend()])  # type: ignore[attr-defined]
    registry().register(plugin, _PLUGIN)
