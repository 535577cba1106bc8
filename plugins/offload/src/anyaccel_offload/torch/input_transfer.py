"""Move the inputs of modules to the device of their weights, each once in a pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor


class MovedInputs:
    """The tensors that were moved in one pass. A tensor that was written to since is moved again.

    Only tensors, lists, tuples and dicts are moved. Other objects stay unchanged, such as a cache of keys and values,
    whose tensors are on the device of the layer that created them.
    """

    def __init__(self) -> None:
        self._moved: dict[tuple[int, torch.device], tuple[Tensor, int, Tensor, int]] = {}

    def clear(self) -> None:
        """Discard all tensors."""
        self._moved.clear()

    def to(self, value: Any, device: torch.device, skipped: Collection[str] = ()) -> Any:
        """Return a value with its tensors on a device; the same object if nothing had to be moved.

        Args:
            value: A tensor, or containers of tensors.
            device: Target device.
            skipped: Keys of the outermost dict that are not moved.
        """
        if isinstance(value, Tensor):
            return value if value.device == device or value.device.type == "meta" else self._tensor(value, device)
        if type(value) in _PLAIN:
            return value
        if isinstance(value, list | tuple):
            made = [self.to(item, device) for item in value]
            if all(new is old for new, old in zip(made, value, strict=True)):
                return value
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        if isinstance(value, Mapping):
            moved = {key: item if key in skipped else self.to(item, device) for key, item in value.items()}
            if all(moved[key] is item for key, item in value.items()):
                return value
            of_type: Any = type(value)
            return moved if of_type is dict else of_type(moved)
        return value

    def _tensor(self, value: Tensor, device: torch.device) -> Tensor:
        if value.requires_grad or value.is_inference():
            return value.to(device)
        key = (id(value), device)
        source, version, copy, copy_version = self._moved.get(key, (None, 0, None, 0))
        if source is value and copy is not None and (value._version, copy._version) == (version, copy_version):  # noqa: SLF001  (count writes)
            return copy
        copy = value.to(device)
        if not copy.is_inference():
            self._moved[key] = (value, value._version, copy, copy._version)  # noqa: SLF001
        return copy


_PLAIN = frozenset({int, float, bool, str, type(None)})


def first_device(*values: Any) -> torch.device | None:
    """Return the device of the first tensor in arguments."""
    for value in values:
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, list | tuple | Mapping):
            inner = first_device(*(value.values() if isinstance(value, Mapping) else value))
            if inner is not None:
                return inner
    return None
