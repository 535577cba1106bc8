"""Offload: a model whose blocks compute on devices, while some weights stay in host memory or in files."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anyaccel.call_hints import call_hints
from anyaccel.errors import MoveError, OutOfMemoryError, StateError
from anyaccel.host_memory import host_memory
from anyaccel.printable import size
from anyaccel_offload.torch.copy_engine import CopyEngine
from anyaccel_offload.torch.device_map import DISK
from anyaccel_offload.torch.host_buffers import BufferPool, PinnedMemory
from anyaccel_offload.torch.model_blocks import Place, block_around, check_values, places
from anyaccel_offload.torch.offload_hooks import BlockHook, OffloadHook, Passes, ScopeHook
from anyaccel_offload.torch.staging import Staging
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_offload.torch.streamed_block import Member, StreamedBlock
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.placement import offloads

_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class BlockPlace:
    """The device that computes a block, and the place of its weights.

    Attributes:
        name: Name of its module.
        device: Device that computes it.
        tier: `"cpu"` or `"disk"` for offloaded weights; `""` for weights that stay on the device.
    """

    name: str
    device: torch.device
    tier: str = ""


@dataclass(kw_only=True)
class _Home:
    """A tensor, all its places, the blocks that use it in registration order, and whether it stays on the device."""

    tensor: Tensor
    where: list[Place] = field(default_factory=list)
    blocks: dict[str, BlockPlace] = field(default_factory=dict)
    stays: bool = False

    def settle(self) -> None:
        """Move the tensor to its place; a tensor of several blocks stays on the device of the first."""
        first = next(iter(self.blocks.values()))
        device = first.device if self.stays or len(self.blocks) > 1 else _CPU
        stays_in_file = isinstance(self.tensor, StoredTensor) and first.tier == DISK and len(self.blocks) == 1
        if stays_in_file or (self.tensor.device == device and not isinstance(self.tensor, StoredTensor)):
            return
        with torch.no_grad(), translate_errors(f"{self.where[0].name} on {device}"):
            tensor = self.tensor
            made: Tensor
            if isinstance(tensor, StoredTensor):
                made = nn.Parameter(tensor.read().to(device), requires_grad=tensor.requires_grad)
            elif isinstance(tensor, nn.Parameter):  # it stays the same object if torch supports that
                made = nn.ParameterList([tensor]).to(device)[0]
            else:
                made = tensor.to(device)
        for place in self.where:
            vars(place.module)[place.kind][place.key] = made


class Offload:
    """The hooks of an offloaded model.

    Args:
        model: Model with values.
        blocks: All its blocks, in execution order.
        pinned_memory: Pinned host memory in bytes for each device that streams.
        offload_buffers: Whether buffers of streamed blocks are offloaded with their weights; by default they stay on
            the device.
        skipped: Names of arguments that are not moved to a device.
        slots: Number of streamed blocks, 1 or 2, that each device has memory for; 2 for devices that are not named.
        attach: Whether modules get hooks; otherwise the caller enters the blocks.

    Attributes:
        blocks: All blocks.
        stagings: `Staging` of each device that streams.
        pinned: Pinned memory for each device.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[BlockPlace],
        *,
        pinned_memory: int,
        offload_buffers: bool = False,
        skipped: Collection[str] = (),
        slots: Mapping[torch.device, int] | None = None,
        attach: bool = True,
    ) -> None:
        self.blocks = tuple(blocks)
        for inner in model.modules():
            if inner in offloads:
                raise StateError(f"this {type(inner).__name__} is already offloaded", hint="call remove_offload first")
        check_values("", model)
        self._model = weakref.ref(model)
        self._offload_buffers = offload_buffers
        self.pinned: dict[torch.device, PinnedMemory] = {}
        self.stagings: dict[torch.device, Staging] = {}
        self._handles: list[RemovableHandle] = []
        self._place_tensors(model)
        # The blocks with tensors outside of their device.
        counts: dict[torch.device, int] = {}
        streamed = {}
        for place in self.blocks:
            members = [
                Member(module=held.module, kind=held.kind, key=held.key, name=held.name, rest=held.tensor)
                for held in places(model.get_submodule(place.name), place.name)
                if held.tensor.device != place.device or isinstance(held.tensor, StoredTensor)
            ]
            if members:
                streamed[place.name] = StreamedBlock(place.name, counts.get(place.device, 0), members)
                counts[place.device] = streamed[place.name].index + 1
        for device in {place.device: None for place in self.blocks if place.name in streamed}:
            here = [block for block in streamed.values() if self.device_of(block.name) == device]
            self._add_staging(device, here, pinned_memory, (slots or {}).get(device, 2))
        if attach:
            passes = Passes(tuple(self.stagings.values()))
            for place in self.blocks:
                module = model.get_submodule(place.name)
                hook = OffloadHook(passes, place.device, skipped)
                if place.name in streamed:
                    staging, of_block = self.stagings[place.device], streamed[place.name]
                    hook = BlockHook(passes, place.device, skipped, staging=staging, block=of_block)
                self._handles += hook.attach(module)
            found = {""}
            for scope in [place.name for place in self.blocks]:
                while scope:
                    scope = scope.rpartition(".")[0]
                    found.add(scope)
            for name in sorted(found, key=lambda name: (-name.count("."), not name, name)):
                prefix = f"{name}." if name else ""
                device = next(
                    place.device for place in self.blocks if place.name.startswith(prefix) or place.name == name
                )
                self._handles += ScopeHook(passes, device, skipped).attach(model.get_submodule(name))
        offloads[model] = self
        # Let the model refuse to be moved while its weights are copied, and save also the weights that are in files
        reference = weakref.ref(model)
        plain: Any = type(model)
        devices = {place.device for place in self.blocks}

        def apply(fn: Any, recurse: bool = True) -> Any:
            with torch.no_grad():
                is_moved = any(fn(torch.empty(0, device=device)).device != device for device in devices)
            if self.stagings or is_moved:
                raise MoveError(
                    f"this {plain.__name__} is offloaded, and can be neither moved nor converted",
                    hint="call remove_offload(model) first, change the model, and dispatch it again",
                )
            return plain._apply(reference(), fn, recurse)  # noqa: SLF001  (of torch, to override)

        def save_pretrained(*args: Any, **kwargs: Any) -> Any:
            saved: Any = reference()
            call = signature.bind(saved, *args, **kwargs)
            if "state_dict" in signature.parameters:
                if call.arguments.get("state_dict") is None:
                    call.arguments["state_dict"] = whole_state(saved)
            elif any(isinstance(place.tensor, StoredTensor) for place in places(saved)):
                raise MoveError(
                    f"{plain.__name__}.save_pretrained has no state_dict=, and cannot read weights that stay in files",
                    hint="save the values: save_file(get_state_dict_offloaded_model(model), 'model.safetensors')",
                )
            # transformers looks for the weights of a map with "cpu" or "disk" in hooks of Accelerate.
            shown = vars(saved).pop("hf_device_map", None)
            try:
                return plain.save_pretrained(*call.args, **call.kwargs)
            finally:
                if shown is not None:
                    vars(saved)["hf_device_map"] = shown

        vars(model)["_apply"] = apply
        if hasattr(plain, "save_pretrained"):
            signature = inspect.signature(plain.save_pretrained)
            vars(model)["save_pretrained"] = save_pretrained

    def _place_tensors(self, model: nn.Module) -> None:
        """Move each tensor to its place; tensors of several blocks, or of none, stay on a device.

        The old tensors end with this call, before memory is pinned.
        """
        homes: dict[int, _Home] = {}
        by_name = {place.name: place for place in self.blocks}
        for where in places(model):
            block, is_inside = self._block_of(where.name, by_name)
            home = homes.setdefault(id(where.tensor), _Home(tensor=where.tensor))
            home.where.append(where)
            home.blocks[block.name if is_inside else ""] = block
            follows = where.kind == "_parameters" or self._offload_buffers
            home.stays |= not (is_inside and block.tier and follows)
        for home in homes.values():
            home.settle()

    @property
    def device(self) -> torch.device:
        """The device of the first block, for inputs."""
        return self.blocks[0].device

    def device_of(self, name: str) -> torch.device:
        """Return the device that computes a block."""
        return next(place.device for place in self.blocks if place.name == name)

    def adopt(self, handles: Sequence[RemovableHandle]) -> None:
        """Add hooks that `remove` removes with the others."""
        self._handles += handles

    def remove(self) -> None:
        """Remove the hooks; weights stay in their places.

        Raises:
            StateError: A thread is calling the model.
        """
        for staging in self.stagings.values():
            staging.close()
        for handle in self._handles:
            handle.remove()
        model = self._model()
        if model is not None:
            offloads.pop(model, None)
            for name in ("_apply", "save_pretrained"):
                vars(model).pop(name, None)
            for module, name in _shown(model):
                vars(module).pop(name, None)

    # -- places of tensors ---------------------------------------------------------------------------------------------

    def _block_of(self, name: str, by_name: Mapping[str, BlockPlace]) -> tuple[BlockPlace, bool]:
        """Return the block of a tensor, and True; for a tensor outside of blocks the next in its module, and False."""
        block = block_around(name, by_name)
        if block is not None:
            return by_name[block], True
        module = name.rpartition(".")[0]
        prefix = f"{module}." if module else ""
        return next((place for place in self.blocks if place.name.startswith(prefix)), self.blocks[0]), False

    def _add_staging(
        self, device: torch.device, blocks: Sequence[StreamedBlock], pinned_memory: int, slots: int
    ) -> None:
        pinned, pool = PinnedMemory(device, pinned_memory), BufferPool()
        for block in blocks:
            block.pin(pinned)
        self.pinned[device] = pinned
        self.stagings[device] = Staging(CopyEngine(device, pinned, pool, slots), blocks, slots)
        pool.limit = self.stagings[device].capacity


@call_hints
def offload_of(model: nn.Module) -> Offload | None:
    """Return the `Offload` of a model, or None if the model is not offloaded."""
    return offloads.get(model)


@call_hints
def remove_offload(model: nn.Module) -> nn.Module:
    """Remove the hooks of an offloaded model; its weights stay in their places.

    Raises:
        StateError: The model is not offloaded, or a thread is calling it.
    """
    offload = offloads.get(model)
    if offload is None:
        raise StateError(f"this {type(model).__name__} is not offloaded", hint="pass the dispatched model")
    offload.remove()
    return model


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the `state_dict` of a model in host memory; values in files are read, tied ones once.

    Raises:
        OutOfMemoryError: The host lacks memory for the values in files.
    """
    state = model.state_dict(keep_vars=True)
    stored = {id(value): value for value in state.values() if isinstance(value, StoredTensor)}
    need, free = sum(value.numel() * value.dtype.itemsize for value in stored.values()), host_memory()[1]
    if need > free:
        raise OutOfMemoryError(
            f"the weights in files need {size(need)}, and the host has {size(free)}",
            hint="copy the files, or read the weights one at a time: model.state_dict()[name].clone()",
        )
    read = {key: value.read() for key, value in stored.items()}
    return {name: read[id(value)] if id(value) in read else value.detach().to(_CPU) for name, value in state.items()}


def show_map(model: nn.Module, device_map: Mapping[str, Any]) -> None:
    """Show a map to transformers and other libraries, which look for what Accelerate leaves at a dispatched model."""
    values = {"hf_device_map": dict(device_map), "_hf_hook": SimpleNamespace(io_same_device=True)}
    for module, name in _shown(model):
        vars(module).setdefault(name, values[name])


def _shown(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the modules and the names of attributes that `show_map` sets.

    An encoder next to a decoder has `_hf_hook`: `generate` sets an attribute of it, or adds a missing hook.
    """
    get_encoder = getattr(model, "get_encoder", None)
    encoder = get_encoder() if callable(get_encoder) else None
    shown: list[tuple[nn.Module, str]] = [(model, "hf_device_map")]
    if isinstance(encoder, nn.Module) and encoder is not model:
        shown.append((encoder, "_hf_hook"))
    return shown
