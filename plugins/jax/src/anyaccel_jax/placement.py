"""Where JAX computes: its devices, their names, and how things get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel_jax import runtime_config
from anyaccel_jax.device_info import describe, why_not
from anyaccel_jax.error_translation import telling
from anyaccel_jax.transfers import only_device, sent, wait_for
from anyaccel_jax.tree_utils import arrays_in, comes_from, is_held, is_keras, mapped


class JaxPlacement(Backend):
    """The part of the contract that everybody writes. A subclass for another chip overrides the facts below."""

    framework = "jax"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "tpu", "cpu")
    import_roots = ("jax", "jaxlib", "flax", "equinox", "optax", "keras", "anyaccel_jax")
    fork_safe = False  # JAX keeps threads of its own, which a forked process lacks
    platforms: ClassVar[Mapping[str, str]] = {}  # JAX's word for a kind, where it is another one

    def devices(self) -> Sequence[Device]:
        """As `Backend.devices`; until JAX has started, from its settings and the drivers, so that it does not start."""
        return [Device(kind, index) for kind in self.kinds for index in range(self._count(kind))]

    def _count(self, kind: str) -> int:
        try:
            return len(self._there(kind)) if runtime_config.is_started() else runtime_config.expected(kind)
        except (Exception, SystemExit):  # whatever is broken, there is no device to list; `why_not` tells
            return 0

    def _there(self, kind: str) -> list[Any]:
        import jax

        return list(jax.local_devices(backend=self.platforms.get(kind, kind)))

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.why_not`: JAX's settings, or how it was installed."""
        return why_not(device, self._count(device.kind))

    def device_info(self, device: Device) -> DeviceInfo:
        """As `Backend.device_info`; an NVIDIA GPU's memory space is its UUID, and its memory what the driver says."""
        return describe(device, self.jax_device)

    def device_string(self, device: Device) -> str:
        """`"gpu:1"`, `"tpu:0"`, `"cpu:0"`: JAX has no text that it reads, and this is how it writes most devices."""
        return f"{self.platforms.get(device.kind, device.kind)}:{device.index}"

    def jax_device(self, device: Device) -> Any:
        """The device as JAX's own object; starts JAX."""
        there = self._there(device.kind)
        if device.index >= len(there):
            raise DeviceUnavailableError(f"JAX has no {device}", available=", ".join(map(str, there)))
        return there[device.index]

    def owns(self, obj: Any) -> bool:
        """As `Backend.owns`; objects of Keras where it runs on JAX, and of this package the models."""
        return is_held(obj) or is_keras(obj) or comes_from(obj, *self.import_roots[:-2])

    def device_of(self, obj: Any) -> Device | None:
        """Where the first array of an array, model, optimizer or pytree is; None if it holds none, or while traced.

        Raises:
            DeviceMismatchError: the array is spread over several devices.
        """
        first = next(arrays_in(obj), None)
        if first is None:
            return None
        own = only_device(first)
        kinds = {word: kind for kind, word in self.platforms.items()}
        kind = kinds.get(own.platform, own.platform)
        return Device(kind, self._there(kind).index(own))

    def place(self, obj: Any, device: Device) -> Any:
        """As `Backend.place`, committed, as JAX calls it. Models and NNX's objects are changed, pytrees made anew."""
        return mapped(obj, lambda array: self._sent(array, device, bound=True))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """As `Backend.move`; JAX has no use for pinned memory here. Of anything but an array, the arrays in it."""
        return mapped(tensor, lambda array: self._sent(array, device))

    def _sent(self, array: Any, device: Device, *, bound: bool = False) -> Any:
        with telling(f"an array of shape {list(array.shape)} on {device}"):
            return sent(array, self.jax_device(device), bound=bound)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """As `Backend.scope`."""
        import jax

        return jax.default_device(self.jax_device(device))  # type: ignore[no-any-return]

    def synchronize(self, device: Device) -> None:
        """As `Backend.synchronize`: waits for every array that is on the device."""
        if runtime_config.is_started():
            wait_for(self.jax_device(device))
