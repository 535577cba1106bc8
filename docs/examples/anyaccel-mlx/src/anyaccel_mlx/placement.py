"""Placement: where MLX computes, and what it means to be somewhere in a memory that all devices share."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from anyaccel import Backend, Device
from anyaccel.backend import DeviceInfo
from anyaccel.errors import MoveError
from anyaccel_mlx.arrays import arrays_in, dtype_on, name_of


class MlxPlacement(Backend):
    """MLX on the Apple GPU, which it calls `gpu`, and on the CPU.

    Both read the same memory: an array or model is where it was sent, which `put` remembers, or on the default device.
    """

    framework = "mlx"
    kinds = ("mps", "cpu")
    import_roots = ("mlx",)

    def __init__(self) -> None:
        self._sent: dict[int, tuple[weakref.ref[Any], Device]] = {}

    def devices(self) -> Sequence[Device]:
        """The GPU where MLX has Metal, and the CPU; none where MLX is missing or broken."""
        try:
            import mlx.core as mx

            return [Device("mps"), Device("cpu")] if mx.metal.is_available() else [Device("cpu")]
        except Exception:  # `unavailable_reason` tells
            return []

    def unavailable_reason(self, device: Device) -> str:
        """What a user should know if a device is missing."""
        there = " and ".join(map(str, self.devices()))
        return "" if device in self.devices() else f"MLX has {there}" if there else "MLX cannot be imported"

    def device_string(self, device: Device) -> str:
        """`"gpu"` or `"cpu"`."""
        return "gpu" if device.kind == "mps" else "cpu"

    def device_info(self, device: Device) -> DeviceInfo:
        """The CPU's memory is shared with other frameworks, which read MLX's arrays by DLPack."""
        return DeviceInfo(str(device), memory_space="host" if device.kind == "cpu" else "")

    def default(self) -> Device:
        """Where MLX does what names no device."""
        import mlx.core as mx

        return Device("mps" if mx.metal.is_available() and mx.default_device() != mx.cpu else "cpu")

    def put(self, obj: Any, device: Device) -> Any:
        """The object, remembered to be on a device for as long as it lives."""
        key = id(obj)
        self._sent[key] = weakref.ref(obj, lambda _: self._sent.pop(key, None)), device
        return obj

    def device_of(self, obj: Any) -> Device | None:
        """Where it, or else its first array, was sent; MLX's default device if nowhere, None if it holds no array."""
        if id(obj) in self._sent:
            return self._sent[id(obj)][1]
        first = next(arrays_in(obj), None)
        return None if first is None else self.default() if first is obj else self.device_of(first)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Another array of the same memory, sent to `device`; there is nothing to copy, or to pin."""
        dtype_on(device, name_of(tensor))
        return tensor if self.device_of(tensor) == device else self.put(tensor[...], device)

    def place(self, obj: Any, device: Device) -> Any:
        """Models and optimizers are sent as they are; trees of arrays are made anew."""
        if not self.owns(obj):
            if not isinstance(obj, (dict, list, tuple)):
                raise MoveError(f"MLX cannot place a {type(obj).__name__}", available="it places its arrays and models")
            from mlx.utils import tree_map

            return tree_map(lambda leaf: self.place(leaf, device), obj, is_leaf=self.owns)
        for array in arrays_in(obj):
            dtype_on(device, name_of(array))
        return self.move(obj, device) if hasattr(obj, "dtype") else self.put(obj, device)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """MLX restores what was before, after an error too."""
        import mlx.core as mx

        return mx.stream(getattr(mx, self.device_string(device)))

    def synchronize(self, device: Device) -> None:
        """Waits for what was started; what is still lazy was not asked of any device yet."""
        import mlx.core as mx

        with self.scope(device):
            mx.synchronize()
