"""The devices of JAX, their names, and placing and moving objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel_jax import runtime_config
from anyaccel_jax.array_trees import arrays_in, comes_from, is_keras, is_own_model, map_arrays
from anyaccel_jax.device_info import describe, unavailable_reason
from anyaccel_jax.error_translation import translate_errors
from anyaccel_jax.transfers import put, single_device, wait_for


class JaxPlacement(Backend):
    """The mandatory part of the contract. A subclass for another chip overrides the class attributes."""

    framework = "jax"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "tpu", "cpu")
    import_roots = ("jax", "jaxlib", "flax", "equinox", "optax", "keras", "anyaccel_jax")
    fork_safe = False  # JAX keeps threads, which a forked process lacks
    platforms: ClassVar[Mapping[str, str]] = {}  # JAX's name of a kind, where it is another one

    def devices(self) -> Sequence[Device]:
        """List devices; until JAX has started, from its settings and the drivers, so that it does not start."""
        return [Device(kind, index) for kind in self.kinds for index in range(self._count(kind))]

    def _count(self, kind: str) -> int:
        try:
            import jax  # noqa: F401

            return len(self._jax_devices(kind)) if runtime_config.is_started() else runtime_config.expected_count(kind)
        except (Exception, SystemExit):  # a broken installation has no devices; `unavailable_reason` says why
            return 0

    def _platform(self, kind: str) -> str:
        return self.platforms.get(kind, kind)

    def _jax_devices(self, kind: str) -> list[Any]:
        import jax

        return list(jax.local_devices(backend=self._platform(kind)))

    def unavailable_reason(self, device: Device) -> str:
        """Return a reason in JAX's settings, or in its installation."""
        return unavailable_reason(device, sum(candidate.kind == device.kind for candidate in self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """Describe a device; the memory space of an NVIDIA GPU is its UUID, its memory comes from the driver."""
        return describe(device, self.jax_device)

    def device_string(self, device: Device) -> str:
        """Return `"gpu:1"`, `"tpu:0"` or `"cpu:0"`, as JAX prints most devices; it does not parse any."""
        return f"{self._platform(device.kind)}:{device.index}"

    def jax_device(self, device: Device) -> Any:
        """Return JAX's own object for a device, if it exists; starts JAX."""
        jax_devices = self._jax_devices(device.kind)
        if device.index < len(jax_devices):
            return jax_devices[device.index]
        raise DeviceUnavailableError(f"JAX has no {device}", available=", ".join(map(str, jax_devices)))

    def owns(self, obj: Any) -> bool:
        """Return whether it belongs to JAX: objects of Keras only if it runs on JAX, and the models of this package."""
        return is_own_model(obj) or is_keras(obj) or comes_from(obj, *self.import_roots[:-2])

    def device_of(self, obj: Any) -> Device | None:
        """Return the device of the first array of an array, model, optimizer or pytree; None without arrays, or while
        tracing.

        Raises:
            DeviceMismatchError: the array is spread over several devices.
        """
        first = next(arrays_in(obj), None)
        if first is None:
            return None
        return self.device_named(single_device(first))

    def device_named(self, native: Any) -> Device:
        """Return the device that one of JAX's own device objects is."""
        kinds = {platform: kind for kind, platform in self.platforms.items()}
        kind = kinds.get(native.platform, native.platform)
        return Device(kind, self._jax_devices(kind).index(native))

    def place(self, obj: Any, device: Device) -> Any:
        """Arrays are committed. Models and NNX objects are changed in place, pytrees are new."""
        return map_arrays(obj, lambda array: self._move_array(array, device))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Move an array, or the arrays in any other object. `pinned` has no effect.

        Arrays are committed, in JAX's terms, so that mixing devices is an error and not a hidden copy. An uncommitted
        array on the device becomes another object in the same memory.
        """
        return map_arrays(tensor, lambda array: self._move_array(array, device))

    def _move_array(self, array: Any, device: Device) -> Any:
        with translate_errors(f"an array of shape {list(array.shape)} on {device}"):
            return put(array, self.jax_device(device), commit=True)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        import jax

        return jax.default_device(self.jax_device(device))  # type: ignore[no-any-return]

    def synchronize(self, device: Device) -> None:
        """Wait for every array on the device."""
        if runtime_config.is_started():
            wait_for(self.jax_device(device))
