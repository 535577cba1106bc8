"""Models dispatched over devices, host memory and disk, with the names that Accelerate has for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check, flag, integer
from anyaccel.errors import ConfigError, StateError
from anyaccel.host_memory import host_memory
from anyaccel_torch.big_models.checkpoint_files import SAFETENSORS, FileTensor, open_checkpoint
from anyaccel_torch.big_models.device_map import DISK, checked_map, device_in_map, entry_for
from anyaccel_torch.big_models.loading import load_checkpoint_in_model
from anyaccel_torch.big_models.model_blocks import find_blocks, places, shared_tensors
from anyaccel_torch.big_models.offload import BlockPlace, Offload, offload_of
from anyaccel_torch.big_models.offload_folder import checked_folder, is_unwritten, write_blocks

_CPU = torch.device("cpu")


def dispatch_model(
    model: nn.Module,
    device_map: Mapping[str, Any],
    main_device: Any = None,
    *,
    offload_dir: Any = None,
    offload_buffers: bool = False,
    skip_keys: str | Iterable[str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Let each block of a model compute on its device; weights that rest elsewhere are copied there ahead of their use.

    A block whose weights rest in host memory or on disk computes on the device of the block before it (the first
    ones on that of the first block on a device). Where a map has no device but the CPU, all compute on the CPU.

    Args:
        model: with values; it is changed in place.
        device_map: names of modules, `""` for all, each with a device, `"cpu"` or `"disk"`.
        main_device: computes all blocks whose weights rest elsewhere.
        offload_dir: an empty folder for weights on `"disk"` that are not in files of safetensors yet.
        offload_buffers: whether buffers rest with weights; they stay on the devices otherwise.
        skip_keys: names of arguments that are not moved to a device.
        no_split_module_classes: classes whose modules are copied as a whole.
        pinned_memory: bytes of page-locked host memory that each device may use; None for half of what is free now.

    Returns:
        the model.

    Raises:
        ConfigError: a wrong argument; a map that names what the model has not, or leaves something out; no such device.
        StateError: the model has tensors without values, or is offloaded already; the folder has files.
        OutOfMemoryError: a device is full.
    """
    where = "dispatch_model: "
    _check_model(where, model)
    devices = checked_map(where, model, device_map)
    main = None if main_device is None else _device(where, "main_device", main_device)
    for value in devices.values():
        _check_is_there(where, value)
    names = find_blocks(model, _names(where, "no_split_module_classes", no_split_module_classes), _divided(devices))
    blocks = _placed(names, _values(where, model, names, devices), main)
    _check_values(where, model)
    if all(block.device == blocks[0].device and not block.tier for block in blocks):
        return model.to(blocks[0].device)
    on_disk = [block.name for block in blocks if block.tier == DISK]
    _rest_on_disk(where, model, on_disk, names, offload_dir)
    _offload(where, model, blocks, offload_buffers, skip_keys, pinned_memory)
    return model


def cpu_offload(
    model: nn.Module,
    execution_device: Any = None,
    *,
    offload_buffers: bool = False,
    skip_keys: str | Iterable[str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Let all blocks of a model compute on one device while their weights rest in host memory.

    Args:
        model: with values; it is changed in place.
        execution_device: that computes; None for the device of the first parameter.
        offload_buffers, skip_keys, no_split_module_classes, pinned_memory: as of `dispatch_model`.

    Returns:
        the model.

    Raises:
        ConfigError, StateError, OutOfMemoryError: as `dispatch_model`.
    """
    where = "cpu_offload: "
    device = checked_execution_device(where, model, execution_device)
    names = find_blocks(model, _names(where, "no_split_module_classes", no_split_module_classes))
    blocks = [BlockPlace(name=name, device=device, tier="cpu") for name in names]
    _offload(where, model, blocks, offload_buffers, skip_keys, pinned_memory)
    return model


def disk_offload(
    model: nn.Module,
    offload_dir: Any,
    execution_device: Any = None,
    *,
    offload_buffers: bool = False,
    skip_keys: str | Iterable[str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Let all blocks of a model compute on one device while their weights rest on disk.

    Args:
        model: with values; it is changed in place. Parameters that are in files of safetensors stay there.
        offload_dir: an empty folder for the others.
        execution_device: that computes; None for the device of the first parameter.
        offload_buffers, skip_keys, no_split_module_classes, pinned_memory: as of `dispatch_model`.

    Returns:
        the model.

    Raises:
        ConfigError, StateError, OutOfMemoryError: as `dispatch_model`.
    """
    where = "disk_offload: "
    device = checked_execution_device(where, model, execution_device)
    _check_values(where, model)
    names = find_blocks(model, _names(where, "no_split_module_classes", no_split_module_classes))
    _rest_on_disk(where, model, names, names, offload_dir)
    blocks = [BlockPlace(name=name, device=device, tier=DISK) for name in names]
    _offload(where, model, blocks, offload_buffers, skip_keys, pinned_memory)
    return model


def load_checkpoint_and_dispatch(  # noqa: PLR0913  (the arguments of Accelerate's)
    model: nn.Module,
    checkpoint: Any,
    device_map: Mapping[str, Any] | str | None = None,
    max_memory: Mapping[Any, Any] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    *,
    offload_folder: Any = None,
    offload_buffers: bool = False,
    dtype: torch.dtype | None = None,
    keep_in_fp32: Iterable[str] = (),
    strict: bool = True,
    skip_keys: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Load a checkpoint into a model, which may be empty, each tensor to where it rests; then dispatch it.

    Args:
        model: it is changed in place.
        checkpoint: as of `load_checkpoint_in_model`.
        device_map: as of `dispatch_model`; `"auto"`, `"balanced"` or `"sequential"` for what `infer_auto_device_map`
            plans; None to load only.
        max_memory: as of `infer_auto_device_map`, for a map that is planned.
        no_split_module_classes: classes whose modules are neither divided between devices nor copied in parts.
        offload_folder: an empty folder for weights on `"disk"` that a file of `torch.save` has.
        offload_buffers, skip_keys, pinned_memory: as of `dispatch_model`.
        dtype, keep_in_fp32, strict: as of `load_checkpoint_in_model`.

    Returns:
        the model.

    Raises:
        ConfigError: a wrong argument, or a device map that does not fit the model.
        StateError: no checkpoint, a damaged one, or, where strict, one that does not fit.
        OutOfMemoryError: a device is full, or the model fits nowhere.
    """
    where = "load_checkpoint_and_dispatch: "
    _check_model(where, model)
    if isinstance(device_map, str):
        device_map = _planned(where, model, device_map, max_memory, no_split_module_classes, dtype)
    elif max_memory is not None:
        raise ConfigError(f"{where}max_memory needs a device_map to be planned", hint="write device_map='auto'")
    loaded_to = None if device_map is None else checked_map(where, model, device_map)
    if loaded_to is not None and offload_folder is not None and not _is_safetensors(where, checkpoint):
        checked_folder(where, offload_folder)
        loaded_to = {name: _CPU if value == DISK else value for name, value in loaded_to.items()}
    load_checkpoint_in_model(model, checkpoint, loaded_to, dtype=dtype, keep_in_fp32=keep_in_fp32, strict=strict)
    if device_map is None:
        return model
    return dispatch_model(
        model,
        device_map,
        offload_dir=offload_folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        no_split_module_classes=no_split_module_classes,
        pinned_memory=pinned_memory,
    )


def _planned(
    where: str, model: nn.Module, how: str, max_memory: Any, no_split: Any, dtype: torch.dtype | None
) -> Mapping[str, Any]:
    from anyaccel_torch.big_models.auto_device_map import infer_auto_device_map

    fits = ("auto", "balanced", "balanced_low_0", "sequential").__contains__
    check(ConfigError, where, "device_map", how, fits, "a mapping, 'auto', 'balanced' or 'sequential'", "'auto'")
    return infer_auto_device_map(model, max_memory, no_split, dtype)


def _is_safetensors(where: str, checkpoint: Any) -> bool:
    return all(isinstance(each, FileTensor) for each in open_checkpoint(where, checkpoint).values())


def _offload(
    where: str, model: nn.Module, blocks: Sequence[BlockPlace], offload_buffers: Any, skip_keys: Any, pinned: Any
) -> None:
    budget = host_memory()[1] // 2 if pinned is None else integer(ConfigError, where, "pinned_memory", pinned, 0, 2**30)
    Offload(
        model,
        blocks,
        pinned_memory=budget,
        offload_buffers=flag(ConfigError, where, "offload_buffers", offload_buffers),
        skipped=_names(where, "skip_keys", skip_keys),
    )


def _check_values(where: str, model: nn.Module) -> None:
    for place in places(model):
        if place.tensor.device.type == "meta":
            raise StateError(f"{where}{place.name} has no values", hint="load them with load_checkpoint_and_dispatch")


def _check_model(where: str, model: Any) -> None:
    check(ConfigError, where, "model", model, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    if next(places(model), None) is None:
        raise ConfigError(f"{where}this {type(model).__name__} has no weights", hint="give a module with parameters")
    if offload_of(model) is not None:
        raise StateError(f"{where}this model is offloaded already", hint="call remove_offload(model) first")


def checked_execution_device(where: str, model: Any, given: Any) -> torch.device:
    """The device that computes a model; None for that of its first parameter.

    Raises:
        ConfigError: no device, or no model.
        StateError: the model is offloaded already.
    """
    _check_model(where, model)
    if given is None:
        found = next(places(model)).tensor.device
        return _CPU if found.type == "meta" else found
    return _device(where, "execution_device", given)


def _device(where: str, name: str, given: Any) -> torch.device:
    found = device_in_map(where, given)
    if isinstance(found, str) or found.type == "meta":
        raise ConfigError(f"{where}{name}={given!r} computes nothing", hint=f"write {name}='cuda:0'")
    _check_is_there(where, found)
    return found


def _check_is_there(where: str, device: torch.device | str) -> None:
    if isinstance(device, str) or device.type in ("cpu", "meta"):
        if device == torch.device("meta"):
            raise ConfigError(f"{where}device_map has 'meta', which computes nothing", hint="write 'cpu' or 'disk'")
        return
    try:
        count = torch.get_device_module(device).device_count()
    except (RuntimeError, AttributeError):
        count = 0
    if (device.index or 0) >= count:
        there = ", ".join(f"{device.type}:{i}" for i in range(count)) or "cpu, disk"
        raise ConfigError(f"{where}there is no device {device}", available=there, hint="name a device of this machine")


def _names(where: str, name: str, given: Any) -> tuple[str, ...]:
    given = (given,) if isinstance(given, str) and given else given
    fits = lambda it: not isinstance(it, str) and all(isinstance(each, str) and each for each in it)  # noqa: E731
    return tuple(check(ConfigError, where, name, () if given is None else given, fits, "a list of names", "['mask']"))


def _divided(devices: Mapping[str, Any]) -> set[str]:
    """Names of modules whose parts have different entries in a map."""
    found = set()
    for name, value in devices.items():
        while name:
            name = name.rpartition(".")[0]
            entry = entry_for(name, devices)
            if entry is None or devices[entry] != value:
                found.add(name)
    return found


def _values(
    where: str, model: nn.Module, blocks: Sequence[str], devices: Mapping[str, torch.device | str]
) -> list[torch.device | str]:
    """What a map says of each block.

    Raises:
        ConfigError: it divides a module that computes as a whole.
    """
    made = []
    for block in blocks:
        names = [place.name for place in places(model.get_submodule(block), block)]
        entries = {devices[entry_for(name, devices) or ""]: name for name in names}
        if len(entries) > 1:
            problem = f"{where}device_map divides {block!r}, which has no modules inside: {', '.join(entries.values())}"
            raise ConfigError(problem, hint=f"give {block!r} one device")
        made.append(next(iter(entries)))
    return made


def _placed(names: Sequence[str], values: Sequence[torch.device | str], main: torch.device | None) -> list[BlockPlace]:
    """Where blocks compute and rest."""
    computing = [value for value in values if isinstance(value, torch.device) and value != _CPU]
    current = computing[0] if computing else _CPU
    made = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.device) and value != _CPU:
            current = value
            made.append(BlockPlace(name=name, device=value))
            continue
        device = main or current
        tier = DISK if value == DISK else "cpu"
        made.append(BlockPlace(name=name, device=device, tier="" if device == _CPU and tier == "cpu" else tier))
    return made


def _rest_on_disk(where: str, model: nn.Module, blocks: Sequence[str], all_blocks: Sequence[str], folder: Any) -> None:
    shared = shared_tensors(model, all_blocks)
    unwritten = [
        place for block in blocks for place in places(model.get_submodule(block), block) if is_unwritten(place, shared)
    ]
    if not unwritten:
        return
    if folder is None:
        problem = f"{where}{unwritten[0].name} rests on disk, and no folder was given for it"
        raise ConfigError(problem, hint=f"write offload_dir='FOLDER', or load the weights from {SAFETENSORS}")
    write_blocks(model, blocks, all_blocks, checked_folder(where, folder))
