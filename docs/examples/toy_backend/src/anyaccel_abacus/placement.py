"""Placement: where abacus computes, and how things get there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from anyaccel import Backend, Device
from anyaccel.errors import MoveError


class AbacusPlacement(Backend):
    """abacus on its frames, and on the CPU, which it calls the desk."""

    framework = "abacus"
    kinds = ("frame", "cpu")
    import_roots = ("abacus",)

    def devices(self) -> Sequence[Device]:
        """The frames, then the desk; none where abacus is not installed."""
        try:
            import abacus
        except ImportError:
            return []
        return [*(Device("frame", index) for index in range(len(abacus.FRAMES))), Device("cpu")]

    def unavailable_reason(self, device: Device) -> str:
        """What a user should know if a device is missing."""
        there = self.devices()
        return "" if device in there else f"abacus has {len(there)} places" if there else "abacus is not installed"

    def device_string(self, device: Device) -> str:
        """abacus's own name of a device."""
        return "desk" if device.kind == "cpu" else f"frame {device.index}"

    def device_of(self, obj: Any) -> Device | None:
        """Where a tensor is, or the first weight of a model."""
        import abacus

        found = next(abacus.tensors(getattr(obj, "weights", obj)), None)
        if found is None:
            return None
        return Device("cpu") if found.place == abacus.DESK else Device.parse(found.place.replace(" ", ":"))

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """abacus checks by itself whether the tensor is there already, and has no page-locked memory."""
        return tensor.to(self.device_string(device))

    def place(self, obj: Any, device: Device) -> Any:
        """A model is changed and returned; trees of tensors are made anew."""
        import abacus

        if isinstance(obj, abacus.Linear):
            obj.weights = self.place(obj.weights, device)
            return obj
        if isinstance(obj, dict):
            return {name: self.place(part, device) for name, part in obj.items()}
        if isinstance(obj, (tuple, list)):
            return type(obj)(self.place(part, device) for part in obj)
        if isinstance(obj, abacus.Tensor):
            return self.move(obj, device)
        raise MoveError(f"abacus cannot place a {type(obj).__name__}")

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """abacus restores what was before, after an error too."""
        import abacus

        return abacus.at(self.device_string(device))
