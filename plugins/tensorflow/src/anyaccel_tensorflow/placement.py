"""The devices of TensorFlow, their names, and placing and moving objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.adapter.nested import map_items
from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel_tensorflow.device_info import describe, unavailable_reason
from anyaccel_tensorflow.object_location import device_name_of, is_tensor, parse_device_name, runs_on_tensorflow
from anyaccel_tensorflow.runtime_config import device_count


class TensorFlowPlacement(Backend):
    """The mandatory part of the contract. A subclass for another chip overrides the class attributes."""

    framework = "tensorflow"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "cpu")
    import_roots = ("tensorflow", "keras")
    device_types: ClassVar[Mapping[str, str]] = {}  # TensorFlow's name of a kind, where it is not its upper case

    def devices(self) -> Sequence[Device]:
        """List logical devices from the configuration, without starting TensorFlow."""
        return [Device(kind, index) for kind in self.kinds for index in range(device_count(self._device_type(kind)))]

    def _device_type(self, kind: str) -> str:
        return self.device_types.get(kind, kind.upper())

    def unavailable_reason(self, device: Device) -> str:
        """How this TensorFlow was built, or how many devices it sees."""
        return unavailable_reason(device, sum(candidate.kind == device.kind for candidate in self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """TensorFlow does not give the identity of a GPU."""
        return describe(device, self._device_type(device.kind))

    def device_string(self, device: Device) -> str:
        """Return `"/GPU:0"` or `"/CPU:1"`, as for `tf.device`."""
        return f"/{self._device_type(device.kind)}:{device.index}"

    def owns(self, obj: Any) -> bool:
        """Return whether it belongs to TensorFlow; objects of Keras only if it runs on TensorFlow in this process."""
        return super().owns(obj) and runs_on_tensorflow(type(obj))

    def device_of(self, obj: Any) -> Device | None:
        """Return the device of the first tensor or variable of a tensor, model, optimizer or container, or None."""
        return None if (name := device_name_of(obj)) is None else self.device_named(name)

    def device_named(self, name: str) -> Device:
        """Return the device of one of TensorFlow's names, such as `".../device:CPU:1"`."""
        device_type, index = parse_device_name(name)
        kind = next((kind for kind in self.kinds if self._device_type(kind) == device_type), device_type.lower())
        return Device(kind, index)

    def place(self, obj: Any, device: Device) -> Any:
        """The model object stays, and gets new variables on the device.

        Raises:
            MoveError: a variable is held where it cannot be replaced, or a traced `tf.function` uses the old ones.
            DeviceUnavailableError: TensorFlow has no such device.
        """
        from anyaccel_tensorflow.transfers import relocate

        if is_tensor(obj):
            return self.move(obj, device)
        if isinstance(obj, (Mapping, list, tuple)):
            return map_items(obj, lambda item: self.place(item, device))
        return obj if self.device_of(obj) is None else relocate(obj, self._available_name(device))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Move a tensor and check its device. TensorFlow has no pinned memory."""
        from anyaccel_tensorflow.transfers import move_tensor

        return move_tensor(tensor, self.device_string(device)) if is_tensor(tensor) else self.place(tensor, device)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Soft placement is off inside: an operation that the device lacks raises an error."""
        from anyaccel_tensorflow.transfers import device_scope

        return device_scope(self._available_name(device))

    def _available_name(self, device: Device) -> str:
        if device in (devices := self.devices()):
            return self.device_string(device)
        problem = f"TensorFlow has no {device} ({self.unavailable_reason(device) or 'unknown reason'})"
        raise DeviceUnavailableError(problem, available=", ".join(map(str, devices)), hint="use one of these")

    def synchronize(self, device: Device) -> None:
        """Wait for every device."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()
