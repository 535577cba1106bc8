"""Where torch computes: its devices, their names, and how things get there."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel_torch.faults import telling, why_not
from anyaccel_torch.host import host_bytes, sent
from anyaccel_torch.trees import mapped, tensors_in


class TorchPlacement(Backend):
    """The part of the contract that everybody writes. A subclass for another chip overrides the facts below."""

    framework = "torch"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "xpu", "cpu")
    roots = ("torch",)
    types: ClassVar[Mapping[str, str]] = {"gpu": "cuda"}  # torch's word for a kind, where it is another one
    pinning: ClassVar[frozenset[str]] = frozenset({"gpu", "xpu"})  # kinds that may be sent to from page-locked memory
    lacking: ClassVar[Mapping[str, frozenset[str]]] = {}  # dtypes that a kind cannot hold, by NumPy's names

    def devices(self) -> Sequence[Device]:
        return [Device(kind, index) for kind in self.kinds for index in range(self._count(kind))]

    def _count(self, kind: str) -> int:
        try:
            import torch

            return 1 if kind == "cpu" else int(torch.get_device_module(self.types.get(kind, kind)).device_count())
        except Exception:  # whatever is broken, there is no device to list; `why_not` tells
            return 0

    def why_not(self, device: Device) -> str:
        return why_not(device, self._count(device.kind))

    def device_info(self, device: Device) -> DeviceInfo:
        import torch

        if device.kind == "cpu":
            name = platform.processor() or platform.machine() or "cpu"
            return DeviceInfo(name, memory_space="host", total_memory=host_bytes("SC_PHYS_PAGES"))
        found = torch.get_device_module(self.torch_device(device)).get_device_properties(device.index)
        vendor = {"gpu": "amd" if torch.version.hip else "nvidia", "xpu": "intel"}.get(device.kind, "")
        uuid = str(getattr(found, "uuid", "")).lower()
        identity = f"GPU-{uuid}" if uuid and vendor == "nvidia" else uuid  # as nvidia-smi and NVML write it
        return DeviceInfo(str(found.name), vendor, identity, identity, int(found.total_memory))

    def device_string(self, device: Device) -> str:
        word = self.types.get(device.kind, device.kind)
        alone = word in ("cpu", "meta") and device.index == 0  # torch's `to` would copy to "cpu:0"
        return word if alone else f"{word}:{device.index}"

    def torch_device(self, device: Device) -> Any:
        """The device as torch's own object."""
        import torch

        return torch.device(self.device_string(device))

    def device_of(self, obj: Any) -> Device | None:
        first = next(tensors_in(obj), None)
        return None if first is None else Device.parse(first.device)

    def place(self, obj: Any, device: Device) -> Any:
        if hasattr(obj, "param_groups"):  # an optimizer: its state goes where its parameters are
            from anyaccel_torch.optimizers import place_state

            return place_state(obj)
        if not hasattr(obj, "to"):
            return mapped(obj, lambda item: self.place(item, device))
        self.check_dtypes(obj, device)
        with telling(f"{type(obj).__name__} on {device}"):
            return obj.to(self.torch_device(device))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        self.check_dtypes(tensor, device)
        target = self.torch_device(device)
        with telling(f"a tensor of shape {list(tensor.shape)} on {device}"):
            pinned = pinned and device.kind in self.pinning and tensor.device.type == "cpu"
            return sent(tensor, target) if pinned else tensor.to(target)

    def check_dtypes(self, obj: Any, device: Device) -> None:
        """Raise MoveError if the device cannot hold the dtype of a tensor in `obj`."""
        if lacking := self.lacking.get(device.kind):
            for name in {str(tensor.dtype).removeprefix("torch.") for tensor in tensors_in(obj)} & lacking:
                raise MoveError(f"{device} cannot hold {name}", there="moves keep dtypes", remedy="cast it: .float()")

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        return self.torch_device(device)  # type: ignore[no-any-return]

    def synchronize(self, device: Device) -> None:
        if device.kind != "cpu":
            import torch

            torch.accelerator.synchronize(self.torch_device(device))
