"""Device maps: names of modules with the device of their weights, or `"cpu"` or `"disk"` for offloaded weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check, shown
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, ConfigError

DISK = "disk"
_EXAMPLE = "{'embed': 'cuda:0', 'layers': 'cpu'}"
_EXAMPLES = {"device_map": _EXAMPLE, "max_memory": "{0: '20GiB', 'cpu': '60GiB'}"}


def device_in_map(where: str, device: Any, name: str = "device_map") -> torch.device | str:
    """Return a value of a device map: a device with its index, or `"disk"`.

    Args:
        where: Beginning of an error message.
        device: A number, a torch or anyaccel device, or text, which may be a number.
        name: Name of the argument that contains it.

    Raises:
        ConfigError: The value is not one of these.
    """
    if isinstance(device, str) and device == DISK:
        return DISK
    try:
        if isinstance(device, Device):
            return torch.device(_torch_words(str(device)))
        if isinstance(device, str) and device.isdecimal():
            device = int(device)
        if isinstance(device, int) and not isinstance(device, bool):
            current = torch.accelerator.current_accelerator(check_available=True)
            return torch.device("cuda" if current is None else current.type, device)
        if not isinstance(device, str | torch.device):
            raise TypeError
        found = torch.device(_torch_words(device) if isinstance(device, str) else device)
    except (RuntimeError, TypeError, AnyaccelError) as error:
        problem = f"{where}{name} has {shown(device)}, which is not a device"
        raise ConfigError(problem, hint=f"write {name}={_EXAMPLES.get(name, repr('cuda:0'))}") from error
    return found if found.index is not None or found.type in ("cpu", "meta") else torch.device(found.type, 0)


def _torch_words(text: str) -> str:
    kind, _, index = text.partition(":")
    return f"cuda:{index or 0}" if kind == "gpu" else text


def checked_map(where: str, model: nn.Module, device_map: Any) -> dict[str, torch.device | str]:
    """Return a checked device map: each name is a module, parameter or buffer, and each tensor has a device.

    Raises:
        ConfigError: A name is unknown, a tensor has no device, or a value is not a device.
    """
    fits = lambda it: isinstance(it, Mapping) and it and all(isinstance(key, str) for key in it)  # noqa: E731
    check(ConfigError, where, "device_map", device_map, fits, "a dict of names and devices", _EXAMPLE)
    found = {key: device_in_map(where, value) for key, value in device_map.items()}
    tensors = [
        *dict(model.named_parameters(remove_duplicate=False)),
        *dict(model.named_buffers(remove_duplicate=False)),
    ]
    names = {*tensors, *(name for name, _ in model.named_modules(remove_duplicate=False))}
    if unknown := [key for key in found if key not in names]:
        children = ", ".join(name for name, _ in model.named_children())
        problem = f"{where}device_map names {_listed(unknown)}, which the model does not have"
        raise ConfigError(problem, available=children, hint="use names of model.named_modules()")
    if without := [name for name in tensors if entry_for(name, found) is None]:
        problem = f"{where}device_map has no device for {_listed(without)}"
        raise ConfigError(problem, hint="add them or a module that contains them; '' means the whole model")
    return found


def check_is_there(where: str, device: torch.device | str) -> None:
    """Check that the device of a map entry exists on this machine.

    Raises:
        ConfigError: The device does not exist.
    """
    if isinstance(device, str) or device.type in ("cpu", "meta"):
        if device == torch.device("meta"):
            raise ConfigError(f"{where}device_map has 'meta', which cannot compute", hint="write 'cpu' or 'disk'")
        return
    try:
        count = torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError):
        count = 0
    if (device.index or 0) >= count:
        there = ", ".join(f"{device.type}:{i}" for i in range(count)) or "cpu, disk"
        raise ConfigError(
            f"{where}the device {device} does not exist", available=there, hint="name a device of this machine"
        )


def entry_for(name: str, device_map: Mapping[str, Any]) -> str | None:
    """Return the longest name in a map that is this name or a module around it, or None."""
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return name if name in device_map else None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
