"""Placement: torch's devices and their names, and how objects get onto them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel_torch.error_translation import first_line, raise_translated
from anyaccel_torch.host_transfer import check_dtypes, copied_async, tensors_in
from anyaccel_torch.installed_build import build_facts

if TYPE_CHECKING:
    import torch

offloads: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Modules whose weights rest elsewhere, each with its hooks: they have the `device` of its inputs, and `blocks`."""


def find_offload(obj: Any) -> Any:
    """Return the offload of a module; None if it is not offloaded, or for another object."""
    return offloads.get(obj) if offloads and hasattr(obj, "modules") else None


@functools.cache
def _devices_of(kind: str, count: int) -> list[Device]:
    return [Device(kind, index) for index in range(count)]


class TorchPlacement(Backend):
    """Placement over torch's devices. A subclass for another chip overrides these attributes."""

    framework = "torch"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "xpu", "cpu")
    import_roots = ("torch",)
    torch_types: ClassVar[Mapping[str, str]] = {"gpu": "cuda"}  # torch's device types that differ from the kind
    pinned_kinds: ClassVar[frozenset[str]] = frozenset({"gpu", "xpu"})  # copied to from page-locked host memory
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset()  # that its devices cannot hold, by NumPy's names

    def devices(self) -> Sequence[Device]:
        """List devices; until torch is imported, the expected ones if these are certain.

        GPUs are counted by NVML if it is installed, which does not initialize CUDA.
        """
        expects = None if "torch" in sys.modules else self.capability(ExpectedDevices)
        expected = None if expects is None else expects.expected_devices(Machine.detect())
        if expected is not None:
            return list(expected)
        devices: list[Device] = []
        for kind in self.kinds:
            try:
                import torch

                word = self.torch_types.get(kind, kind)
                count = 1 if kind == "cpu" else int(torch.get_device_module(word).device_count())
                devices += _devices_of(kind, count)
            except (Exception, SystemExit):  # whatever is broken, none can be listed; `unavailable_reason` says why
                continue
        return devices

    def unavailable_reason(self, device: Device) -> str:
        """How this torch was built, or how many devices it sees."""
        return unavailable_reason(device, sum(candidate.kind == device.kind for candidate in self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """An accelerator's memory space is its UUID, as nvidia-smi writes it for NVIDIA."""
        return describe(self.native_device(device))

    def device_string(self, device: Device) -> str:
        """Return `"cuda:1"`, `"xpu:0"` or `"cpu"` (torch's `to` would copy a tensor on the CPU to `"cpu:0"`)."""
        word = self.torch_types.get(device.kind, device.kind)
        return word if word in ("cpu", "meta") and device.index == 0 else f"{word}:{device.index}"

    def native_device(self, device: Device) -> Any:
        """Return a `torch.device`."""
        import torch

        return torch.device(self.device_string(device))

    def device_of(self, obj: Any) -> Device | None:
        """Return the device of the first tensor in a tensor, module, optimizer or container; None if it holds none."""
        first = find_offload(obj) or next(tensors_in(obj), None)
        return None if first is None else Device.parse(first.device)

    def place(self, obj: Any, device: Device) -> Any:
        """Move a module in place, or an optimizer's state to the devices of its parameters.

        Parameters stay the same objects, with their hooks and attributes, and tied tensors stay tied.
        """
        if hasattr(obj, "param_groups"):
            from anyaccel_torch.optimizer_state import place_state

            return place_state(obj)
        if not hasattr(obj, "to"):
            from anyaccel.adapter.nested import map_items

            return map_items(obj, lambda item: self.place(item, device))
        if self.unsupported_dtypes:
            check_dtypes(obj, device, self.unsupported_dtypes)
        target, is_module = self.native_device(device), hasattr(obj, "modules")
        offload = offloads.get(obj) if offloads and is_module else None
        if offload is not None:
            if all(block.device != target for block in offload.blocks):
                there = str(Device.parse(offload.device))
                raise CapabilityError(
                    f"this {type(obj).__name__} is offloaded and computes on {there}, not on {target}",
                    hint=f"use this accelerator: Accelerator({there!r}), or call remove_offload(model)",
                )
            return obj
        try:
            if not is_module:
                return obj.to(target)
            from anyaccel_torch.module_state import move_module

            return move_module(obj, target)
        except RuntimeError as error:
            raise_translated(error, f"{type(obj).__name__} on {device}")

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Pinned memory is used from the CPU to an accelerator only, and a copy back is awaited."""
        if not hasattr(tensor, "shape"):  # a module, a packed sequence, the named tuple of an operator
            return self.place(tensor, device)
        if self.unsupported_dtypes:
            check_dtypes(tensor, device, self.unsupported_dtypes)
        target = self.native_device(device)
        try:
            pinned = pinned and device.kind in self.pinned_kinds and tensor.device.type == "cpu"
            return copied_async(tensor, target) if pinned else tensor.to(target)
        except RuntimeError as error:
            raise_translated(error, f"a tensor of shape {list(tensor.shape)} on {device}")

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Return a context that sets the default device. It slows down every call of torch inside it, so do not use it
        in loops.
        """
        return self.native_device(device)  # type: ignore[no-any-return]

    def synchronize(self, device: Device) -> None:
        """Nothing to wait for on the CPU."""
        if device.kind != "cpu":
            import torch

            torch.accelerator.synchronize(self.native_device(device))


# -- Description of a device, and the reason why one is unavailable ----------------------------------------------------


# Kinds that torch must be built for: the variables of torch.version that are set then, and their names.
_BUILDS = {"gpu": (("cuda", "hip"), "CUDA and ROCm"), "xpu": (("xpu",), "XPU")}


def describe(device: torch.device) -> DeviceInfo:
    """Name, vendor, identity and memory of a device; initializes an accelerator."""
    import torch

    if device.type == "cpu":
        from anyaccel.adapter.device_description import cpu_info

        return cpu_info()
    properties = torch.get_device_module(device).get_device_properties(device.index)
    vendor = {"cuda": "amd" if torch.version.hip else "nvidia", "xpu": "intel"}.get(device.type, "")
    uuid = str(getattr(properties, "uuid", "")).lower()
    identity = f"GPU-{uuid}" if uuid and vendor == "nvidia" else uuid  # as nvidia-smi and NVML write it
    return DeviceInfo(str(properties.name), vendor, identity, identity, int(properties.total_memory))


def unavailable_reason(device: Device, count: int) -> str:
    """Why a device is not among the `count` devices of its kind that torch sees; initializes nothing."""
    if count:
        return "" if device.index < count else f"torch sees {count} of this kind"
    builds, names = _BUILDS.get(device.kind, ((), ""))
    facts = vars(sys.modules["torch"].version) if "torch" in sys.modules else build_facts()
    if names and "__version__" in facts and not any(facts.get(build) for build in builds):
        return f"this torch, {facts['__version__']}, is built without {names}"
    try:
        import torch  # noqa: F401
    except Exception as error:  # a broken torch must not break the listing of devices
        return f"torch cannot be imported: {first_line(error)}"
    return "torch finds no driver, or the driver finds no device"
