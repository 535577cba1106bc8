"""Where torch computes: its devices, their names, and how things get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel_torch.device_info import describe, why_not
from anyaccel_torch.error_translation import telling
from anyaccel_torch.host_transfer import sent
from anyaccel_torch.tree_utils import check_dtypes, mapped, tensors_in


class TorchPlacement(Backend):
    """The part of the contract that everybody writes. A subclass for another chip overrides the facts below."""

    framework = "torch"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "xpu", "cpu")
    import_roots = ("torch",)
    types: ClassVar[Mapping[str, str]] = {"gpu": "cuda"}  # torch's word for a kind, where it is another one
    pinning: ClassVar[frozenset[str]] = frozenset({"gpu", "xpu"})  # kinds that may be sent to from page-locked memory
    lacking: ClassVar[frozenset[str]] = frozenset()  # dtypes that its devices cannot hold, by NumPy's names

    def devices(self) -> Sequence[Device]:
        """As `Backend.devices`; GPUs are counted by NVML where that is there, so that CUDA is not initialised."""
        return [Device(kind, index) for kind in self.kinds for index in range(self._count(kind))]

    def _count(self, kind: str) -> int:
        try:
            import torch

            return 1 if kind == "cpu" else int(torch.get_device_module(self.types.get(kind, kind)).device_count())
        except (Exception, SystemExit):  # whatever is broken, there is no device to list; `why_not` tells
            return 0

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.why_not`: how this torch was built, or how many devices it sees."""
        return why_not(device, self._count(device.kind))

    def device_info(self, device: Device) -> DeviceInfo:
        """As `Backend.device_info`; an accelerator's memory space is its UUID, as nvidia-smi writes it for NVIDIA."""
        return describe(self.torch_device(device))

    def device_string(self, device: Device) -> str:
        """`"cuda:1"`, `"xpu:0"`, `"cpu"`: torch's `to` would copy a tensor of the CPU to `"cpu:0"`."""
        word = self.types.get(device.kind, device.kind)
        return word if word in ("cpu", "meta") and device.index == 0 else f"{word}:{device.index}"

    def torch_device(self, device: Device) -> Any:
        """The device as torch's own object."""
        import torch

        return torch.device(self.device_string(device))

    def device_of(self, obj: Any) -> Device | None:
        """Where the first tensor of a tensor, module, optimizer or container is; None if it holds none."""
        first = next(tensors_in(obj), None)
        return None if first is None else Device.parse(first.device)

    def place(self, obj: Any, device: Device) -> Any:
        """As `Backend.place`; a module is moved in place, and an optimizer's state to where its parameters are."""
        if hasattr(obj, "param_groups"):
            from anyaccel_torch.optimizers import place_state

            return place_state(obj)
        if not hasattr(obj, "to"):
            return mapped(obj, lambda item: self.place(item, device))
        check_dtypes(obj, device, self.lacking)
        if hasattr(obj, "modules"):
            from anyaccel_torch.module_state import bring

            bring(obj, self.torch_device(device))
        with telling(f"{type(obj).__name__} on {device}"):
            return obj.to(self.torch_device(device))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """As `Backend.move`; pinned memory is used from the CPU to an accelerator only, and a copy back is awaited."""
        if not hasattr(tensor, "shape"):  # a module, a packed sequence, the named tuple of an operator
            return self.place(tensor, device)
        check_dtypes(tensor, device, self.lacking)
        target = self.torch_device(device)
        with telling(f"a tensor of shape {list(tensor.shape)} on {device}"):
            pinned = pinned and device.kind in self.pinning and tensor.device.type == "cpu"
            return sent(tensor, target) if pinned else tensor.to(target)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """As `Backend.scope`; it slows every call of torch inside it, so that nothing in a loop should use it."""
        return self.torch_device(device)  # type: ignore[no-any-return]

    def synchronize(self, device: Device) -> None:
        """As `Backend.synchronize`; the CPU is never waited for."""
        if device.kind != "cpu":
            import torch

            torch.accelerator.synchronize(self.torch_device(device))
