"""Dispatch models over devices, host memory and disk, with Accelerate's names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check, flag, integer
from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError
from anyaccel.host_memory import host_memory
from anyaccel_offload.torch.accelerate_words import takes_accelerates
from anyaccel_offload.torch.auto_device_map import infer_auto_device_map, plan_of
from anyaccel_offload.torch.block_placement import (
    check_model,
    checked_execution_device,
    checked_names,
    named_device,
    placed_blocks,
)
from anyaccel_offload.torch.checkpoint_files import SAFETENSORS, FileTensor, open_checkpoint
from anyaccel_offload.torch.device_map import DISK, check_is_there, checked_map
from anyaccel_offload.torch.loading import load_checkpoint_in_model, replace
from anyaccel_offload.torch.model_blocks import check_values, find_blocks, places, shared_tensors
from anyaccel_offload.torch.offload import BlockPlace, Offload, show_map
from anyaccel_offload.torch.offload_folder import checked_folder, is_unwritten, write_blocks
from anyaccel_offload.torch.stored_tensor import StoredTensor

_CPU = torch.device("cpu")


@takes_accelerates
@call_hints
def dispatch_model(  # noqa: PLR0913  (the arguments of Accelerate's)
    model: nn.Module,
    device_map: Mapping[str, Any],
    main_device: Any = None,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    offload_dir: Any = None,
    *,
    offload_buffers: bool = False,
    skip_keys: str | Iterable[str] | None = None,
    preload_module_classes: str | Iterable[str] | None = None,
    force_hooks: bool = False,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Place each block of a model on its device, and copy offloaded weights there before they are needed.

    A block whose weights are in host memory or on disk computes on the device in the plan of `infer_auto_device_map`.
    In your own map, it computes on the device of the previous block. The first blocks compute on the device of the
    first block that is on one. If the map has no device other than `"cpu"` and `"disk"`, all blocks compute on the CPU.

    >>> import torch
    >>> from anyaccel_offload.torch import dispatch_model
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> net = dispatch_model(net, {"": "cpu"})
    >>> net(torch.ones(3, 4)).shape
    torch.Size([3, 1])

    Args:
        model: Model with values; it is changed in place.
        device_map: Names of modules, `""` for all, each with a device, `"cpu"` or `"disk"`.
        main_device: Device that computes all blocks with offloaded weights.
        state_dict: Values by name, for parameters and buffers of the model without values, or to replace them.
        offload_dir: An empty folder for weights on `"disk"` that are not yet in safetensors files.
        offload_buffers: Whether buffers are offloaded with weights; by default they stay on the devices.
        skip_keys: Names of arguments that are not moved to a device.
        preload_module_classes, no_split_module_classes: Classes whose modules are copied as a whole.
        force_hooks: Whether modules get hooks even if all weights stay on one device.
        pinned_memory: Maximum pinned (page-locked) host memory for each device in bytes; None for half of the free
            memory.

    Returns:
        The model, with the map as its `hf_device_map`.

    Raises:
        ConfigError: An argument is wrong; the map names a part that the model does not have, or leaves one out; or a
            device does not exist.
        StateError: The model has tensors without values, or is offloaded already; or the folder has files.
        OutOfMemoryError: A device is full.
    """
    where = "dispatch_model: "
    check_model(where, model)
    devices = checked_map(where, model, device_map)
    main = None if main_device is None else named_device(where, "main_device", main_device)
    for value in devices.values():
        check_is_there(where, value)
    whole = _whole_classes(where, no_split_module_classes, preload_module_classes)
    flag(ConfigError, where, "force_hooks", force_hooks)
    _take_values(where, model, state_dict)
    planned = plan_of(model, device_map) if main is None else None
    blocks = placed_blocks(model, devices, main, whole, where=where, planned=planned)
    slots = {} if planned is None else planned.slots
    settings = {"slots": slots, "force_hooks": force_hooks}
    _put(where, model, blocks, offload_dir, offload_buffers, skip_keys, pinned_memory, **settings)
    show_map(model, device_map)
    return model


def _whole_classes(where: str, no_split: Any, preload: Any) -> tuple[str, ...]:
    """Return the classes whose modules are copied as a whole."""
    names = checked_names(where, "no_split_module_classes", no_split)
    return (*names, *checked_names(where, "preload_module_classes", preload))


def _take_values(where: str, model: nn.Module, state_dict: Mapping[str, torch.Tensor] | None) -> None:
    """Set the tensors of a model to the values of a state dict; ties are kept.

    Raises:
        ConfigError: The model does not have a name, or has another shape.
    """
    if state_dict is None:
        return
    fits = lambda it: isinstance(it, Mapping) and all(isinstance(value, torch.Tensor) for value in it.values())  # noqa: E731
    check(ConfigError, where, "state_dict", state_dict, fits, "tensors by name", "net.state_dict()")
    names: dict[int, list[str]] = {}
    has = model.state_dict(keep_vars=True)
    for name, tensor in has.items():
        names.setdefault(id(tensor), []).append(name)
    if unknown := [name for name in state_dict if name not in has]:
        raise ConfigError(f"{where}state_dict has {unknown[0]!r}, which the model does not have", hint="leave it out")
    if other := [name for name, value in state_dict.items() if value.shape != has[name].shape]:
        problem = f"{where}{other[0]} of state_dict has a different shape in the model"
        raise ConfigError(problem, hint="pass a state dict of this model")
    for group in names.values():
        value = next((state_dict[name] for name in group if name in state_dict), None)
        if value is not None:
            old = has[group[0]]
            made = value.detach().to(old.dtype)
            replace(model, group, nn.Parameter(made, old.requires_grad) if isinstance(old, nn.Parameter) else made)


@takes_accelerates
@call_hints
def cpu_offload(
    model: nn.Module,
    execution_device: Any = None,
    offload_buffers: bool = False,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    preload_module_classes: str | Iterable[str] | None = None,
    *,
    skip_keys: str | Iterable[str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Run all blocks of a model on one device, with their weights offloaded to host memory.

    >>> import torch
    >>> from anyaccel_offload.torch import cpu_offload
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> cpu_offload(net, "cpu")(torch.ones(3, 4)).shape
    torch.Size([3, 1])

    Args:
        model: Model with values; it is changed in place.
        execution_device: Device that computes; None for the device of the first parameter.
        offload_buffers, state_dict, preload_module_classes, skip_keys, no_split_module_classes, pinned_memory: See
            `dispatch_model`.

    Returns:
        The model.

    Raises:
        ConfigError, StateError, OutOfMemoryError: See `dispatch_model`.
    """
    where = "cpu_offload: "
    whole = _whole_classes(where, no_split_module_classes, preload_module_classes)
    blocks = _resting_blocks(where, model, execution_device, "cpu", whole)
    _take_values(where, model, state_dict)
    return _put(where, model, blocks, None, offload_buffers, skip_keys, pinned_memory)


@takes_accelerates
@call_hints
def disk_offload(
    model: nn.Module,
    offload_dir: Any,
    execution_device: Any = None,
    offload_buffers: bool = False,
    preload_module_classes: str | Iterable[str] | None = None,
    *,
    skip_keys: str | Iterable[str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Run all blocks of a model on one device, with their weights offloaded to disk.

    >>> import torch
    >>> from anyaccel_offload.torch import disk_offload
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> disk_offload(net, "weights", "cpu")(torch.ones(3, 4)).shape
    torch.Size([3, 1])

    Args:
        model: Model with values; it is changed in place. Parameters in safetensors files stay there.
        offload_dir: An empty folder for the other parameters.
        execution_device: Device that computes; None for the device of the first parameter.
        offload_buffers, preload_module_classes, skip_keys, no_split_module_classes, pinned_memory: See
            `dispatch_model`.

    Returns:
        The model.

    Raises:
        ConfigError, StateError, OutOfMemoryError: See `dispatch_model`.
    """
    where = "disk_offload: "
    whole = _whole_classes(where, no_split_module_classes, preload_module_classes)
    blocks = _resting_blocks(where, model, execution_device, DISK, whole)
    return _put(where, model, blocks, offload_dir, offload_buffers, skip_keys, pinned_memory)


@takes_accelerates
@call_hints
def load_checkpoint_and_dispatch(  # noqa: PLR0913  (the arguments of Accelerate's)
    model: nn.Module,
    checkpoint: Any,
    device_map: Mapping[str, Any] | str | None = None,
    max_memory: Mapping[Any, Any] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    *,
    offload_folder: Any = None,
    offload_buffers: bool = False,
    dtype: torch.dtype | str | None = None,
    keep_in_fp32: Iterable[str] = (),
    strict: bool = True,
    skip_keys: str | Iterable[str] | None = None,
    preload_module_classes: str | Iterable[str] | None = None,
    force_hooks: bool = False,
    pinned_memory: int | None = None,
) -> nn.Module:
    """Load a checkpoint into a model, each tensor directly to its final place, and dispatch the model.

    Args:
        model: Model, with or without values; it is changed in place.
        checkpoint: Checkpoint; see `load_checkpoint_in_model`.
        device_map: Map for `dispatch_model`; `"auto"`, `"balanced"` or `"sequential"` for a plan of
            `infer_auto_device_map`; None only loads the checkpoint.
        max_memory: Memory limits for a planned map; see `infer_auto_device_map`.
        no_split_module_classes: Classes whose modules are neither split over devices nor copied in parts.
        offload_folder: An empty folder for weights on `"disk"` that come from a file of `torch.save`.
        offload_buffers, skip_keys, preload_module_classes, force_hooks, pinned_memory: See `dispatch_model`.
        dtype, keep_in_fp32, strict: See `load_checkpoint_in_model`.

    Returns:
        The model.

    Raises:
        ConfigError: An argument is wrong, or the device map does not match the model.
        StateError: The checkpoint does not exist, is damaged, or, if `strict`, does not match the model.
        OutOfMemoryError: A device is full, or the model does not fit at all.
    """
    where = "load_checkpoint_and_dispatch: "
    check_model(where, model)
    if isinstance(device_map, str):
        how = (device_map, max_memory, no_split_module_classes, dtype, offload_buffers)
        device_map = _planned(where, model, *how)
    elif max_memory is not None:
        raise ConfigError(f"{where}max_memory needs a planned device_map", hint="write device_map='auto'")
    loaded_to = None if device_map is None else checked_map(where, model, device_map)
    for value in (loaded_to or {}).values():
        check_is_there(where, value)
    if loaded_to is not None:  # a map that splits a module is refused before anything is read
        whole = _whole_classes(where, no_split_module_classes, preload_module_classes)
        placed_blocks(model, loaded_to, None, whole, where=where)
    if (
        loaded_to is not None
        and offload_folder is not None
        and not all(isinstance(entry, FileTensor) for entry in open_checkpoint(where, checkpoint).values())
    ):
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
        preload_module_classes=preload_module_classes,
        force_hooks=force_hooks,
        no_split_module_classes=no_split_module_classes,
        pinned_memory=pinned_memory,
    )


def _planned(
    where: str,
    model: nn.Module,
    how: str,
    max_memory: Any,
    no_split: Any,
    dtype: torch.dtype | str | None,
    offload_buffers: Any,
) -> Mapping[str, Any]:
    fits = ("auto", "balanced", "balanced_low_0", "sequential").__contains__
    check(ConfigError, where, "device_map", how, fits, "a mapping, 'auto', 'balanced' or 'sequential'", "'auto'")
    return infer_auto_device_map(model, max_memory, no_split, dtype, offload_buffers=offload_buffers)


def put_blocks(
    model: nn.Module,
    blocks: Sequence[BlockPlace],
    *,
    pinned_memory: int,
    offload_buffers: bool = False,
    skipped: Collection[str] = (),
    slots: Mapping[torch.device, int] | None = None,
    force_hooks: bool = False,
) -> nn.Module:
    """Place the blocks of a model, all with values; without hooks if all stay on one device."""
    in_files = any(isinstance(place.tensor, StoredTensor) for place in places(model))
    if not (in_files or force_hooks) and all(block.device == blocks[0].device and not block.tier for block in blocks):
        return model.to(blocks[0].device)
    Offload(model, blocks, pinned_memory=pinned_memory, offload_buffers=offload_buffers, skipped=skipped, slots=slots)
    return model


def _resting_blocks(where: str, model: nn.Module, device: Any, tier: str, no_split: Any) -> list[BlockPlace]:
    """Return all blocks of a model, computed on one device and offloaded to one tier."""
    computing = checked_execution_device(where, model, device)
    names = find_blocks(model, checked_names(where, "no_split_module_classes", no_split))
    return [BlockPlace(name=name, device=computing, tier=tier) for name in names]


def _put(
    where: str,
    model: nn.Module,
    blocks: Sequence[BlockPlace],
    folder: Any,
    offload_buffers: Any,
    skip_keys: Any,
    pinned: Any,
    **settings: Any,
) -> nn.Module:
    """Check the other arguments, write the weights for disk, and place all blocks."""
    budget = host_memory()[1] // 2 if pinned is None else integer(ConfigError, where, "pinned_memory", pinned, 0, 2**30)
    buffers = flag(ConfigError, where, "offload_buffers", offload_buffers)
    skipped = checked_names(where, "skip_keys", skip_keys)
    check_values(where, model)
    on_disk = [block.name for block in blocks if block.tier == DISK]
    _rest_on_disk(where, model, on_disk, [block.name for block in blocks], folder)
    return put_blocks(model, blocks, pinned_memory=budget, offload_buffers=buffers, skipped=skipped, **settings)


def _rest_on_disk(where: str, model: nn.Module, blocks: Sequence[str], all_blocks: Sequence[str], folder: Any) -> None:
    shared = shared_tensors(model, all_blocks)
    unwritten = [
        place for block in blocks for place in places(model.get_submodule(block), block) if is_unwritten(place, shared)
    ]
    if not unwritten:
        return
    if folder is None:
        problem = f"{where}{unwritten[0].name} belongs on disk, but no folder is set for it"
        raise ConfigError(problem, hint=f"write offload_dir='FOLDER', or load the weights from {SAFETENSORS}")
    write_blocks(model, blocks, all_blocks, checked_folder(where, folder))
