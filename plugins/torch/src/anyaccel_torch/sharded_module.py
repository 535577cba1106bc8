"""A module whose parameters are sharded over replicas by FSDP2 (`fully_shard`); the user's own stays unchanged."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from anyaccel.errors import ENVIRONMENT_ERRORS, PhaseError
from anyaccel_torch.module_state import plain_names

_CONTAINERS = (nn.ModuleList, nn.Sequential)
_AUTOCAST = {
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}
"""Layers that do nothing with their parameters but what autocast does in 16 bits."""


def lacking_reason() -> str:
    """Return the missing feature of this torch's FSDP2; `""` if it can shard parameters as required here."""
    if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        return ""
    return f"torch {torch.__version__} cannot sum gradients of sharded parameters that only some replicas use"


class ShardedModule:
    """A copy of a module, with the same buffers and sharded parameters.

    `fully_shard` changes the class of a module, so it receives a copy. The parameters of the module itself stay the
    same objects, without values from `release` to `gather`.

    Args:
        module: The module, on its device.
        mesh: Mesh of the replicas.
        offload: Keep the shards in host memory.
        autocast: Autocast dtype of calls of the module; None without autocast. Layers whose
            parameters autocast would cast are gathered in it, each separately; gradients are summed in float32.

    Raises:
        PhaseError: it cannot be copied.
    """

    def __init__(
        self, module: nn.Module, mesh: DeviceMesh, *, offload: bool, autocast: torch.dtype | None = None
    ) -> None:
        self.module, self._named = module, dict(module.named_parameters())
        self._specs = {
            name: (parameter.shape, parameter.dtype, parameter.device) for name, parameter in self._named.items()
        }
        self.copy = _copy_of(module)
        parameters = list(self.copy.parameters())
        narrow = any(parameter.is_floating_point() and parameter.itemsize < 4 for parameter in parameters)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32) if narrow else MixedPrecisionPolicy()
        offloading = CPUOffloadPolicy() if offload else OffloadPolicy()
        cast = MixedPrecisionPolicy(param_dtype=autocast, reduce_dtype=torch.float32, cast_forward_inputs=False)
        layers = autocast_layers(self.copy) if autocast is not None else []
        blocks = [part for part in blocks_of(self.copy).values() if part not in layers]
        for part in dict.fromkeys((*layers, *blocks, self.copy)):
            own = cast if part in layers else policy
            fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=own, offload_policy=offloading)
        for part in self.copy.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)  # losses are scaled by the rows of all
                part.set_force_sum_reduction_for_comms(True)
                part.set_reduce_scatter_unused_params(True)  # others may have used them
        self._divided = dict(self.copy.named_parameters())
        self._is_whole = True
        self._used: set[str] = set()  # names of parameters that a backward pass has reached
        for prefix, part in self.copy.named_modules():
            if isinstance(part, FSDPModule):
                _before_first_call(part, partial(_watch, self._used, f"{prefix}." if prefix else ""))

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The sharded parameters by name: DTensors."""
        plain = plain_names(self.copy)
        return {plain(name): parameter for name, parameter in self._divided.items()}

    @property
    def is_whole(self) -> bool:
        """Whether the user's module has values."""
        return self._is_whole

    @torch.no_grad()
    def take_used(self) -> list[bool]:
        """Return, for each sharded parameter, whether this replica has had a gradient of it since the last call.

        FSDP2 returns zeros for the others, because other replicas may have used them.
        """
        used = self._used.copy()
        self._used.clear()  # which hooks add to
        are_used: list[bool] = []
        for name, parameter in self._divided.items():  # or this replica's part of its gradient is anything but zeros
            grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            are_used.append(name in used or (grad is not None and bool(grad.any())))
        return are_used

    @torch.no_grad()
    def release(self) -> None:
        """Release the values of the user's module."""
        if self._is_whole:
            self._is_whole = False
            for parameter in self._named.values():
                parameter.data = parameter.data.new_empty(0)

    @torch.no_grad()
    def gather(self) -> None:
        """Restore the values of the user's module from all replicas, which call this together."""
        self._is_whole = True
        for name, parameter in self._named.items():
            parameter.data = whole(self._divided[name]).to(self._specs[name][2])
        self._give_buffers()

    @torch.no_grad()
    def give_up(self) -> None:
        """Give the user's module parameters of NaN: the values cannot be gathered any more."""
        self._is_whole = True
        for name, parameter in self._named.items():
            shape, dtype, device = self._specs[name]
            value = torch.empty(shape, dtype=dtype, device=device)
            parameter.data = value.fill_(torch.nan) if dtype.is_floating_point or dtype.is_complex else value.zero_()
        self._give_buffers()

    def _give_buffers(self) -> None:
        """Copy buffers that a step has replaced; others are the same tensors."""
        buffers = dict(self.module.named_buffers())
        for name, buffer in self.copy.named_buffers():
            if buffers.get(name) is not buffer:
                path, _, last = name.rpartition(".")
                setattr(self.module.get_submodule(path), last, buffer)


def _watch(used: set[str], prefix: str, part: nn.Module) -> None:
    """Add the name of each parameter of a part that a backward pass reaches; gathered, they stay the same objects.

    Their hooks hold the set alone: the module would be in a circle through autograd, and keep the group for ever.
    """
    for name, parameter in part.named_parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            hook: Any = parameter.register_post_accumulate_grad_hook  # which has no types
            hook(partial(_note, used, f"{prefix}{name}"))


def _note(used: set[str], name: str, _: Tensor) -> None:
    used.add(name)


def _before_first_call(part: Any, call: Callable[[nn.Module], None]) -> None:
    """Call `call` when a part is called first, its parameters being gathered."""

    def once(module: nn.Module, _: object) -> None:
        handle.remove()
        call(module)

    handle = part.register_forward_pre_hook(once)


def whole(value: Tensor) -> Tensor:
    """Return a sharded tensor gathered from all replicas, a plain one unchanged; all replicas call this together."""
    return value.full_tensor() if isinstance(value, DTensor) else value.detach()


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost children of lists and sequences, by name, whose parameters belong to no other part."""
    blocks = dict(_candidates("", module))
    owners: dict[int, set[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        block = next((key for key in blocks if name == key or name.startswith(f"{key}.")), "")
        for parameter in part.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(block)
    return {
        name: block
        for name, block in blocks.items()
        if all(owners[id(parameter)] == {name} for parameter in block.parameters())
    }


def autocast_layers(module: nn.Module) -> list[nn.Module]:
    """Return layers of float32 whose parameters autocast casts, and which no other part holds or reads.

    Those of torch's own layers (attention, transformers) are read by these.
    """
    parts = list(module.named_modules())
    owners = Counter(id(parameter) for _, part in parts for parameter in part.parameters(recurse=False))
    read: set[int] = set()
    for _, part in parts:
        is_container = isinstance(part, (*_CONTAINERS, nn.ModuleDict))
        if type(part).__module__.startswith("torch.nn.") and not is_container:
            read.update(map(id, part.children()))
    return [
        part
        for _, part in parts
        if type(part) in _AUTOCAST
        and id(part) not in read
        and all(owners[id(parameter)] == 1 and parameter.dtype is torch.float32 for parameter in part.parameters())
    ]


def _candidates(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_called = type(child).forward is not nn.Module.forward
        if isinstance(module, _CONTAINERS) and is_called and next(child.parameters(), None) is not None:
            yield path, child
        else:
            yield from _candidates(f"{path}.", child)


def _copy_of(module: nn.Module) -> nn.Module:
    """Return a copy with parameters that read the same memory, and with the very buffers."""
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer for buffer in module.buffers()}
    try:
        return copy.deepcopy(module, memo)
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:
        raise PhaseError(
            f"the parameters of {type(module).__name__} cannot be sharded over replicas, because it cannot "
            f"be copied: {type(error).__name__}: {error}",
            hint="make copy.deepcopy(module) work, or leave sharding out",
        ) from error
