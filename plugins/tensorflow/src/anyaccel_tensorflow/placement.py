"""Where TensorFlow computes: its devices, their names, and how things get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel_tensorflow.device_info import describe, why_not
from anyaccel_tensorflow.runtime_config import physical
from anyaccel_tensorflow.tree_utils import first_string, is_tensor, keras_is_ours, mapped, parsed


class TensorFlowPlacement(Backend):
    """The part of the contract that everybody writes. A subclass for another chip overrides the facts below."""

    framework = "tensorflow"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "cpu")
    import_roots = ("tensorflow", "keras")
    types: ClassVar[Mapping[str, str]] = {}  # TensorFlow's word for a kind, where it is not its upper case

    def devices(self) -> Sequence[Device]:
        """As `Backend.devices`; logical devices, as they are configured, without starting TensorFlow."""
        return [Device(kind, index) for kind in self.kinds for index in range(self._count(kind))]

    def _count(self, kind: str) -> int:
        try:
            return len(physical(self._word(kind)))
        except (Exception, SystemExit):  # whatever is broken, there is no device to list; `why_not` tells
            return 0

    def _word(self, kind: str) -> str:
        return self.types.get(kind, kind.upper())

    def unavailable_reason(self, device: Device) -> str:
        """As `Backend.why_not`: how this TensorFlow was built, or how many devices it sees."""
        return why_not(device, self._count(device.kind))

    def device_info(self, device: Device) -> DeviceInfo:
        """As `Backend.device_info`; TensorFlow tells no identity of a GPU."""
        return describe(device, self._word(device.kind))

    def device_string(self, device: Device) -> str:
        """`"/GPU:0"`, `"/CPU:1"`, as users write it in `tf.device`."""
        return f"/{self._word(device.kind)}:{device.index}"

    def owns(self, obj: Any) -> bool:
        """As `Backend.owns`; Keras runs on one framework in a process, and is ours where that is TensorFlow."""
        return super().owns(obj) and keras_is_ours(type(obj))

    def device_of(self, obj: Any) -> Device | None:
        """Where the first tensor or variable of a tensor, model, optimizer or container is; None if it has none."""
        if (found := first_string(obj)) is None:
            return None
        word, index = parsed(found)
        kind = next((kind for kind in self.kinds if self._word(kind) == word), word.lower())
        return Device(kind, index)

    def place(self, obj: Any, device: Device) -> Any:
        """As `Backend.place`; a model's variables are made anew on the device, in the same model object.

        Raises:
            MoveError: a variable is held where it cannot be replaced, or a traced `tf.function` holds the old ones.
            DeviceUnavailableError: TensorFlow has no such device.
        """
        from anyaccel_tensorflow.transfers import relocated

        if is_tensor(obj):
            return self.move(obj, device)
        if isinstance(obj, (Mapping, list, tuple)):
            return mapped(obj, lambda item: self.place(item, device))
        return obj if self.device_of(obj) is None else relocated(obj, self._present(device))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """As `Backend.move`; where it lands is checked. There is no page-locked memory to ask for."""
        from anyaccel_tensorflow.transfers import moved

        return self.place(tensor, device) if not is_tensor(tensor) else moved(tensor, self.device_string(device))

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """As `Backend.scope`; soft placement is off inside: what the device lacks raises, and does not fall back."""
        from anyaccel_tensorflow.transfers import on

        return on(self._present(device))

    def _present(self, device: Device) -> str:
        """TensorFlow's name of a device that is there."""
        if device not in (there := self.devices()):
            asked = f"TensorFlow has no {device} ({self.unavailable_reason(device) or 'unknown'})"
            raise DeviceUnavailableError(asked, available=", ".join(map(str, there)) or "no device", hint="use another")
        return self.device_string(device)

    def synchronize(self, device: Device) -> None:
        """As `Backend.synchronize`; waits for every device."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()
