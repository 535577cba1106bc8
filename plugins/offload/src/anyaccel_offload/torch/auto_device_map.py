"""Device maps from the planner: the device that computes each block of a model, and which weights are offloaded."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from anyaccel.arguments import check, flag, number, shown
from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError, OutOfMemoryError
from anyaccel.host_memory import host_memory
from anyaccel_offload.planner import Block, BlockPlan, DeviceSpec, OffloadTier, memory_size, plan_blocks
from anyaccel_offload.planner.planning import ESTIMATED
from anyaccel_offload.torch.accelerate_words import takes_accelerates
from anyaccel_offload.torch.copy_rates import are_here, copy_rate, disk_rate, rates_note, weight_rate
from anyaccel_offload.torch.device_map import DISK, device_in_map, entry_for
from anyaccel_offload.torch.dtype_names import named_dtype
from anyaccel_offload.torch.execution_order import execution_order
from anyaccel_offload.torch.model_blocks import block_around, find_blocks, places

WHERE = "infer_auto_device_map: "
_REFERENCE = 1e12  # bytes of weights per second of a device of rate 1
_TIMES = "times are estimated from reading all weights once, which is about right for few rows"
_WHOLE = "(model)"
"""Name of a block that is the whole model, in a plan."""


class DeviceMap(dict[str, Any]):
    """Names of blocks with their device, `"cpu"` or `"disk"`.

    Attributes:
        plan: Plan that the map was created from, which explains it.
    """

    def __init__(self, entries: Mapping[str, Any], plan: BlockPlan) -> None:
        super().__init__(entries)
        self.plan = plan

    def name_of(self, block: str) -> str:
        """Return the name of a block in the plan."""
        return block or _WHOLE

    @property
    def slots(self) -> dict[torch.device, int]:
        """Number of streamed blocks that each device has memory for."""
        return {torch.device(share.device): share.staging_slots for share in self.plan.devices if share.staging_slots}

    def device_of(self, model: nn.Module, block: str) -> torch.device:
        """Return the device that computes a module of the model according to the plan.

        Raises:
            ConfigError: The plan does not contain this module, or splits it.
        """
        computes = self.plan.device_map
        entries = {entry_for(place.name, self) for place in places(model.get_submodule(block), block)}
        found = {computes[name] for entry in entries if (name := self.name_of(entry or "")) in computes}
        if len(found) != 1:
            problem = f"device_map was planned for other blocks: its plan has {len(found)} devices for {block!r}"
            raise ConfigError(problem, hint="plan the map again: infer_auto_device_map(model, max_memory)")
        return torch.device(found.pop())

    def copy(self) -> DeviceMap:
        """Return a copy with the same plan."""
        return DeviceMap(self, self.plan)


_planned: weakref.WeakKeyDictionary[nn.Module, DeviceMap] = weakref.WeakKeyDictionary()


def plan_of(model: nn.Module, device_map: Mapping[str, Any]) -> DeviceMap | None:
    """Return the plan of a map: its own, or the last one of this model if the entries are equal.

    A map loses its plan when it is converted to a `dict` or to JSON, and then lacks the devices that compute offloaded
    blocks.
    """
    if isinstance(device_map, DeviceMap):
        return device_map
    last = _planned.get(model)
    return last if last == device_map else None


@takes_accelerates
@call_hints
def infer_auto_device_map(
    model: nn.Module,
    max_memory: Mapping[Any, Any] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: torch.dtype | str | None = None,
    special_dtypes: Mapping[str, torch.dtype | str] | None = None,
    *,
    offload: str = "disk",
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    training: bool = False,
    headroom: float = 0.1,
    offload_buffers: bool = False,
) -> DeviceMap:
    """Plan the device of each block of a model, which may be empty: as many blocks as possible stay on devices.

    >>> from torch import nn
    >>> from anyaccel_offload.torch import infer_auto_device_map, init_empty_weights
    >>> with init_empty_weights():
    ...     net = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    >>> dict(infer_auto_device_map(net, {"cpu": "1GB"}))
    {'0': 'cpu', '2': 'cpu'}

    Args:
        model: Model to place.
        max_memory: Memory limit of each device, `"cpu"` and `"disk"`, in bytes or as text such as `"20GiB"`; a limit of
            None means no limit. By default all devices of torch's accelerator with their free memory, half of the free
            host memory, and disk.
        no_split_module_classes: Classes whose modules are not split.
        dtype: Dtype that floating weights will be cast to when they are loaded.
        special_dtypes: Dtypes of single tensors by name, or by a module around them; they override `dtype`.
        offload: `"no"` refuses a model that does not fit on the devices; `"cpu"` and `"disk"` allow offloading.
        inputs: Positional or keyword arguments of a call on torch's `meta` device, which finds the execution
            order of blocks; None uses the order of registration.
        training: Whether memory includes gradients, optimizer state and all activations.
        headroom: Fraction of each device's memory that stays free, for activations and workspace.
        offload_buffers: Whether buffers are offloaded with weights; by default they stay on the devices, as in
            `dispatch_model`.

    Raises:
        ConfigError: An argument is wrong.
        OutOfMemoryError: The model does not fit.
    """
    check(ConfigError, WHERE, "model", model, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    classes = (no_split_module_classes,) if isinstance(no_split_module_classes, str) else no_split_module_classes or ()
    check(ConfigError, WHERE, "offload", offload, ("no", "cpu", "disk").__contains__, "'no', 'cpu' or 'disk'", "'cpu'")
    wanted = named_dtype(WHERE, dtype)
    is_mapping = lambda it: it is None or isinstance(it, Mapping)  # noqa: E731
    example = "{'head.weight': torch.float32}"
    check(ConfigError, WHERE, "special_dtypes", special_dtypes, is_mapping, "dtypes by name", example)
    special = {key: named_dtype(WHERE, value, "special_dtypes") for key, value in (special_dtypes or {}).items()}
    number(ConfigError, WHERE, "headroom", headroom, lambda it: 0 <= it < 1, "a number from 0 to below 1", 0.1)
    names = find_blocks(model, check_names("no_split_module_classes", classes))
    if not names:
        raise ConfigError(f"{WHERE}this {type(model).__name__} has no weights", hint="pass a module with parameters")
    if inputs is not None:
        names = _in_order(model, names, inputs)
    flag(ConfigError, WHERE, "offload_buffers", offload_buffers)
    settings: dict[str, Any] = {
        "offload": offload,
        "training": training,
        "headroom": headroom,
        "offload_buffers": offload_buffers,
    }
    try:
        made = planned_map(model, names, max_memory, wanted, special, **settings)
    except OutOfMemoryError as error:
        if max_memory is None:
            raise
        raise OutOfMemoryError(
            f"{WHERE}max_memory={shown(dict(max_memory))} is too small: {error.problem}",
            available=error.available,
            hint="allow more in max_memory",
        ) from error
    _planned[model] = made
    return made


def planned_map(
    model: nn.Module,
    names: Sequence[str],
    max_memory: Mapping[Any, Any] | None,
    dtype: torch.dtype | None = None,
    special: Mapping[str, torch.dtype | None] | None = None,
    *,
    offload: str,
    training: bool,
    headroom: float = 0.1,
    offload_buffers: bool = False,
) -> DeviceMap:
    """Plan a device map for blocks in order of computation; see `infer_auto_device_map`.

    Raises:
        ConfigError: Sizes are wrong.
        OutOfMemoryError: The model does not fit.
    """
    memory: dict[str, int | None] = {}
    if max_memory is None:
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is not None and hasattr(module := torch.get_device_module(found), "mem_get_info"):
            for i in range(module.device_count()):
                free, total = module.mem_get_info(i)
                memory[f"{found.type}:{i}"] = free if total else None
        memory["cpu"] = host_memory()[1] // 2
    else:
        fits = lambda it: isinstance(it, Mapping) and bool(it)  # noqa: E731
        check(
            ConfigError, WHERE, "max_memory", max_memory, fits, "bytes for each device", "{0: '20GiB', 'cpu': '60GiB'}"
        )
        for key, value in max_memory.items():
            device = device_in_map(WHERE, key, "max_memory")
            if device == torch.device("meta"):
                raise ConfigError(
                    f"{WHERE}max_memory has 'meta', which cannot compute", hint="name a device, such as 0"
                )
            name = device if isinstance(device, str) else str(device)
            if name in memory:
                raise ConfigError(f"{WHERE}max_memory has {name} twice", hint="name each device once")
            memory[name] = None if value is None else memory_size(ConfigError, WHERE, f"max_memory[{key!r}]", value)
    cpu, disk = memory.pop("cpu", 0), memory.pop(DISK, None)
    blocks = _blocks(model, names, dtype, special or {})
    if not memory:  # all blocks compute on the CPU
        memory, cpu = {"cpu": cpu}, 0
    there = [torch.device(key) for key in memory]
    measure = are_here(there)
    # Devices for the planner, with rates measured on this machine or known by their names.
    devices = [
        DeviceSpec(
            name=name,
            memory=size,
            headroom=headroom,
            rate=weight_rate(device, measure=measure).value / _REFERENCE,
            offload_link=copy_rate(device, measure=measure).value,
        )
        for device, (name, size) in zip(there, memory.items(), strict=True)
    ]
    reading = disk_rate(model)
    tiers = [OffloadTier(name="cpu", memory=cpu), OffloadTier(name="disk", memory=disk, bandwidth=reading.value)]
    used = tiers if offload == "disk" else tiers[:1] if offload == "cpu" else []
    rests: dict[str, Any] = {"offload": offload, "tiers": used, "offload_buffers": offload_buffers}
    plan = plan_blocks(blocks, devices, training=training, **rests)
    notes = [note for note in plan.notes if note != ESTIMATED]  # at the rates of these devices
    copied = [torch.device(share.device) for share in plan.devices if share.offloaded]
    computing = [torch.device(share.device) for share in plan.devices if share.blocks]
    times = rates_note(computing, copied, reading if DISK in plan.offloaded.values() else None, measure=measure)
    plan = replace(plan, notes=(*notes, _TIMES, times))
    entries = {**plan.device_map, **plan.offloaded}
    made: dict[str, Any] = {name: entries[name or _WHOLE] for name in names}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    block_of_tensor = {
        id(tensor): made[block] for name, tensor in named if (block := block_around(name, made)) is not None
    }
    # Tensors outside of blocks, with their devices: of the same tensor in a block, or of the next block.
    outside = {}
    for name, tensor in named:
        if block_around(name, made) is None:
            prefix = name.rpartition(".")[0]
            inside = next((name for name in made if name.startswith(f"{prefix}." if prefix else "")), next(iter(made)))
            outside[name] = block_of_tensor.get(id(tensor), plan.device_map[inside])
    return DeviceMap({**made, **outside}, plan)


def _in_order(model: nn.Module, names: Sequence[str], inputs: Sequence[Any] | Mapping[str, Any]) -> list[str]:
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    try:
        return execution_order(model, names, args, kwargs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        problem = f"{WHERE}{type(model).__name__} cannot be called with inputs={type(inputs).__name__}: {error}"
        raise ConfigError(problem, hint="leave inputs out to use blocks in registration order") from error


def check_names(name: str, names: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple.

    Raises:
        ConfigError: The value is not a list of names.
    """
    fits = lambda it: not isinstance(it, str) and all(isinstance(name, str) and name for name in it)  # noqa: E731
    return tuple(check(ConfigError, WHERE, name, names, fits, "a list of names", "['Layer']"))


def _blocks(
    model: nn.Module, names: Sequence[str], dtype: torch.dtype | None, special: Mapping[str, torch.dtype | None]
) -> list[Block]:
    """Return the blocks with their bytes.

    A tensor that several blocks use is tied. A tensor outside of all blocks belongs to the next block in its module.
    Both stay on devices, and are counted as tied.
    """
    users: dict[int, dict[str, None]] = {}
    loose: set[int] = set()
    bytes_of: dict[int, tuple[str, int, bool]] = {}
    block_names = set(names)
    for place in places(model):
        prefix = place.name.rpartition(".")[0]
        inside = (name for name in names if name.startswith(f"{prefix}." if prefix else ""))
        block = block_around(place.name, block_names)
        users.setdefault(id(place.tensor), {})[next(inside, names[0]) if block is None else block] = None
        loose |= {id(place.tensor)} if block is None else set()
        entry = entry_for(place.name, special)
        wanted_dtype = dtype if entry is None else special[entry]
        kept = wanted_dtype if wanted_dtype is not None and place.tensor.dtype.is_floating_point else place.tensor.dtype
        size = place.tensor.numel() * kept.itemsize
        bytes_of[id(place.tensor)] = (place.name, size, place.kind == "_buffers")
    parameters, buffers = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    tied: dict[str, dict[str, int]] = {name: {} for name in names}
    for key, used in users.items():
        full_name, size, is_buffer = bytes_of[key]
        if len(used) > 1 or key in loose:
            for name in used:
                tied[name][full_name] = size
        else:
            (buffers if is_buffer else parameters)[next(iter(used))] += size
    return [
        Block(
            name=name or _WHOLE,
            tied=tied[name],
            parameter_bytes=parameters[name],
            buffer_bytes=buffers[name],
        )
        for name in names
    ]
