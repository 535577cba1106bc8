"""Models of graph nodes with blocks on several devices or offloaded weights: planned, placed, and restored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from anyaccel.device import Device
from anyaccel.errors import CapabilityError, ConfigError
from anyaccel.host_memory import host_memory
from anyaccel_offload.planner import OffloadModels, OffloadPlan, OffloadRequest, PlacedBlock
from anyaccel_offload.torch.auto_device_map import DeviceMap, planned_map
from anyaccel_offload.torch.block_placement import placed_blocks
from anyaccel_offload.torch.copy_rates import Rate, copy_rate, disk_rate, rates_note, weight_rate
from anyaccel_offload.torch.device_map import DISK, checked_map
from anyaccel_offload.torch.dispatch import put_blocks
from anyaccel_offload.torch.empty_modules import init_empty_weights
from anyaccel_offload.torch.execution_order import BlockOrder
from anyaccel_offload.torch.model_blocks import check_values, find_blocks, places, shared_tensors
from anyaccel_offload.torch.offload import BlockPlace, offload_of, remove_offload
from anyaccel_offload.torch.offload_folder import is_unwritten
from anyaccel_torch import keras
from anyaccel_torch.host_transfer import check_dtypes

WHERE = "device_map: "
_REMEMBERED = 8
Native = Callable[[Device], torch.device]
"""Function from a device to torch's device."""
_Known = tuple[Device, OffloadRequest, OffloadPlan]
_plans: weakref.WeakKeyDictionary[nn.Module, list[_Known]] = weakref.WeakKeyDictionary()


class TorchOffload(OffloadModels):
    """Modules with blocks on several devices, or with weights in host memory or files."""

    def empty_weights(self) -> AbstractContextManager[Any]:
        """Return a context with parameters on torch's `meta` device."""
        return init_empty_weights()

    def plan_offload(self, model: nn.Module, device: Device, request: OffloadRequest) -> OffloadPlan:
        """Plan the places of a module's blocks: the elements of module lists, and modules without submodules.

        Weights on disk stay in the safetensors files that they were loaded from. A model that was placed by an equal
        request stays there, even if less memory is free now.

        Raises:
            CapabilityError: The model was dispatched already, or is a Keras model.
        """
        if keras.outermost(model):
            raise CapabilityError(
                f"this {type(model).__name__} is a Keras model, which stores parameters separately from its "
                "layers, so its blocks cannot be placed on several devices or offloaded",
                hint="leave device_map, max_memory and offload out of the node",
            )
        before = _current(model, self.backend.native_device)
        if before is not None and before[:2] == (device, request):
            return before[2]
        if before is None and offload_of(model) is not None:
            raise CapabilityError(
                f"this {type(model).__name__} is already dispatched, but its node also has a device_map",
                hint="leave device_map, max_memory and offload out of the node, or call remove_offload(model)",
            )
        order = BlockOrder(model, request)
        if request.device_map is not None:
            entries = {
                name: _native_text(value, self.backend.native_device) for name, value in request.device_map.items()
            }
        else:
            free = {str(device): request.free.get(str(device))}
            wanted: Mapping[str, int | None] = free if request.max_memory is None else request.max_memory
            tiers = {tier: request.free.get(tier) for tier in ("cpu", DISK) if tier not in wanted}
            memory = {
                _native_text(name, self.backend.native_device): size for name, size in {**wanted, **tiers}.items()
            }
            names = find_blocks(model)
            if not names:
                raise ConfigError(
                    f"{WHERE}this {type(model).__name__} has no weights", hint="pass a module with parameters"
                )
            entries = planned_map(model, order(names), memory, offload=request.offload, training=request.training)
        blocks = _blocks(model, entries, self.backend.native_device(device), order)
        # Weights on disk are already in safetensors files, and are not trained.
        on_disk = [block.name for block in blocks if block.tier == DISK]
        shared = shared_tensors(model, [block.name for block in blocks])
        for name in on_disk:
            for place in places(model.get_submodule(name), name):
                if is_unwritten(place, shared):
                    raise CapabilityError(
                        f"{place.name} belongs on disk, but is not in a safetensors file",
                        hint="load the model from its files, load_checkpoint_in_model(model, FOLDER, {'': 'disk'}), or "
                        "write offload='cpu'",
                    )
                if request.training and place.tensor.requires_grad:
                    raise CapabilityError(
                        f"{place.name} stays on disk, but weights in files cannot be trained",
                        hint="write offload='cpu', or freeze the node: graph.freeze('NODE')",
                    )
        slots = {device: n for device, n in entries.slots.items() if n == 1} if isinstance(entries, DeviceMap) else {}
        slots_by_name = {str(Device.parse(device)): n for device, n in slots.items()}
        sizes = [_nbytes(model, block.name, shared) for block in blocks]
        passes = 3 if request.training else 1
        made = [
            PlacedBlock(
                name=block.name,
                device=Device.parse(block.device),
                tier=block.tier,
                nbytes=size,
                step_bytes=passes * size if block.tier else 0,
            )
            for block, size in zip(blocks, sizes, strict=True)
        ]
        copy: dict[torch.device, float] = {}
        disk = disk_rate(model)
        for block, size in zip(blocks, sizes, strict=True):
            seconds = passes * size / _tier_rate(block, disk) if block.tier else 0.0
            copy[block.device] = copy.get(block.device, 0.0) + seconds
        stays, staging = dict.fromkeys((str(block.device) for block in made), 0), dict[str, int]()
        for placed in made:
            name = str(placed.device)
            if placed.tier:
                staging[name] = max(staging.get(name, 0), slots_by_name.get(name, 2) * placed.nbytes)
            else:
                stays[name] += placed.nbytes
        tied = {id(place.tensor): place.tensor for place in places(model) if id(place.tensor) in shared}
        stays[str(made[0].device)] += sum(tensor.numel() * tensor.dtype.itemsize for tensor in tied.values())
        plan = OffloadPlan(
            blocks=tuple(made),
            device_bytes={name: size + staging.get(name, 0) for name, size in stays.items()},
            slots=slots_by_name,
            copy_seconds=max(copy.values()),
            compute_seconds=sum(
                passes * size / weight_rate(block.device).value for block, size in zip(blocks, sizes, strict=True)
            ),
            notes=(*_notes(blocks, disk), *order.notes),
        )
        remembered = _plans.setdefault(model, [])
        remembered[:] = [*remembered[1 - _REMEMBERED :], (device, request, plan)]
        return plan

    def offload(self, model: nn.Module, device: Device, plan: OffloadPlan) -> nn.Module:
        """Place the module in place."""
        check_dtypes(model, device, self.backend.unsupported_dtypes)
        blocks = _places(plan, self.backend.native_device)
        current = offload_of(model)
        if current is not None and list(current.blocks) == blocks:
            return model
        check_values(WHERE, model)
        if current is not None:
            remove_offload(model)
        slots = {self.backend.native_device(Device.parse(name)): n for name, n in plan.slots.items()}
        return put_blocks(model, blocks, pinned_memory=host_memory()[1] // 2, slots=slots)

    def end_offload(self, model: nn.Module) -> nn.Module:
        """Restore a module, including one that its user has dispatched."""
        return model if offload_of(model) is None else remove_offload(model)


def _current(model: nn.Module, native: Native) -> _Known | None:
    """Return the plan of an offloaded model, or None."""
    current = offload_of(model)
    if current is None:
        return None
    blocks = list(current.blocks)
    return next((entry for entry in reversed(_plans.get(model, [])) if _places(entry[2], native) == blocks), None)


def _places(plan: OffloadPlan, native: Native) -> list[BlockPlace]:
    return [BlockPlace(name=block.name, device=native(block.device), tier=block.tier) for block in plan.blocks]


def _blocks(
    model: nn.Module, device_map: Mapping[str, str], device: torch.device, order: BlockOrder
) -> list[BlockPlace]:
    """Return the blocks of a map.

    Offloaded blocks compute on the plan's device, or on the device of the previous block.
    """
    entries = checked_map(WHERE, model, device_map)
    computes = any(isinstance(value, torch.device) and value.type != "cpu" for value in entries.values())
    main = None if computes or device.type == "cpu" else device
    planned = device_map if isinstance(device_map, DeviceMap) else None
    return placed_blocks(model, entries, main, where=WHERE, order=order, planned=planned)


def _native_text(text: str, native: Native) -> str:
    return text if text in ("cpu", DISK) else str(native(Device.parse(text)))


def _nbytes(model: nn.Module, block: str, shared: set[int]) -> int:
    """Return the bytes of the parameters that only this block uses."""
    weights = {
        id(place.tensor): place.tensor
        for place in places(model.get_submodule(block), block)
        if place.kind == "_parameters" and id(place.tensor) not in shared
    }
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in weights.values())


def _tier_rate(block: BlockPlace, disk: Rate) -> float:
    """Return the bytes per second from the place of a block's weights to its device; a CPU reads files directly."""
    if block.tier != DISK:
        return copy_rate(block.device).value
    return disk.value if block.device.type == "cpu" else min(disk.value, copy_rate(block.device).value)


def _notes(blocks: Sequence[BlockPlace], disk: Rate) -> Iterator[str]:
    yield "compute time is estimated from reading all weights once, which is about right for few rows"
    copied = [block.device for block in blocks if block.tier]
    on_disk = any(block.tier == DISK for block in blocks)
    yield rates_note([block.device for block in blocks], copied, disk if on_disk else None)
