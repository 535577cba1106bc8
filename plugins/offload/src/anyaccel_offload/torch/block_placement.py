"""The placement of a model's blocks according to a device map, and the checks before anything moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check
from anyaccel.errors import ConfigError, StateError
from anyaccel_offload.torch.auto_device_map import DeviceMap
from anyaccel_offload.torch.device_map import DISK, check_is_there, device_in_map, entry_for
from anyaccel_offload.torch.model_blocks import find_blocks, places
from anyaccel_offload.torch.offload import BlockPlace, offload_of

_CPU = torch.device("cpu")


def placed_blocks(
    model: nn.Module,
    devices: Mapping[str, torch.device | str],
    main: torch.device | None,
    no_split: Collection[str] = (),
    *,
    where: str,
    order: Callable[[list[str]], list[str]] | None = None,
    planned: DeviceMap | None = None,
) -> list[BlockPlace]:
    """Return the blocks of a model, each with the device that computes it and the place of its weights.

    Args:
        model: Model to split into blocks.
        devices: A checked device map.
        main: Device that computes all blocks with offloaded weights; None for the device of the previous block.
        no_split: Names of classes whose modules are one block.
        where: Beginning of an error message.
        order: Function that returns the execution order of blocks; None for the order of a planned map, or of
            registration.
        planned: Map of a plan, with the devices that compute offloaded blocks.

    Raises:
        ConfigError: The map splits a module that computes as a whole.
    """
    found = set()
    for name, value in devices.items():
        while name:
            name = name.rpartition(".")[0]
            entry = entry_for(name, devices)
            if entry is None or devices[entry] != value:
                found.add(name)
    names = find_blocks(model, no_split, found)
    if order is not None:
        names = order(names)
    elif all(name in devices for name in names):  # a planned map, which is in the order of computation
        names = [name for name in devices if name in set(names)]
    # The devices and places of blocks.
    values = []
    for block in names:
        held = [place.name for place in places(model.get_submodule(block), block)]
        entries = {devices[entry_for(name, devices) or ""]: name for name in held}
        if len(entries) > 1:
            problem = f"{where}device_map splits {block!r}, which has no submodules: {', '.join(entries.values())}"
            raise ConfigError(problem, hint=f"use one device for {block!r}")
        values.append(next(iter(entries)))
    computing = [value for value in values if isinstance(value, torch.device) and value != _CPU]
    current = computing[0] if computing else _CPU
    made = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.device) and value != _CPU:
            current = value
            made.append(BlockPlace(name=name, device=value))
            continue
        device = planned.device_of(model, name) if planned is not None else main or current
        tier = DISK if value == DISK else "cpu"
        made.append(BlockPlace(name=name, device=device, tier="" if device == _CPU and tier == "cpu" else tier))
    return made


def check_model(where: str, model: Any) -> None:
    """Check that a value is a model that can be offloaded.

    Raises:
        ConfigError: It is not a module, or has no weights.
        StateError: It is offloaded already.
    """
    check(ConfigError, where, "model", model, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    if next(places(model), None) is None:
        raise ConfigError(f"{where}this {type(model).__name__} has no weights", hint="pass a module with parameters")
    if offload_of(model) is not None:
        raise StateError(f"{where}this model is already offloaded", hint="call remove_offload(model) first")


def checked_execution_device(where: str, model: Any, device: Any) -> torch.device:
    """Return the device that computes a model; None for the device of its first parameter.

    Raises:
        ConfigError: The value is not a device, or not a model.
        StateError: The model is offloaded already.
    """
    check_model(where, model)
    if device is None:
        found = next(places(model)).tensor.device
        return _CPU if found.type == "meta" else found
    return named_device(where, "execution_device", device)


def named_device(where: str, name: str, device: Any) -> torch.device:
    """Return the device of this machine that an argument names.

    Raises:
        ConfigError: It does not name a device that computes.
    """
    found = device_in_map(where, device)
    if isinstance(found, str) or found.type == "meta":
        raise ConfigError(f"{where}{name}={device!r} cannot compute", hint=f"write {name}='cuda:0'")
    check_is_there(where, found)
    return found


def checked_names(where: str, name: str, names: Any) -> tuple[str, ...]:
    """Return names from a list, a single name, or None.

    Raises:
        ConfigError: The values are not names.
    """
    names = (names,) if isinstance(names, str) and names else names
    fits = lambda it: not isinstance(it, str) and all(isinstance(name, str) and name for name in it)  # noqa: E731
    return tuple(check(ConfigError, where, name, () if names is None else names, fits, "a list of names", "['mask']"))
