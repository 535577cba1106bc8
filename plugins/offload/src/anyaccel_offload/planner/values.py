"""Inputs of the planner: blocks, the tensors between them, devices, and tiers for offloaded weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyaccel.arguments import check, integer, number, text
from anyaccel.errors import AnyaccelError, ConfigError

MOST_BYTES = 2**60


def nbytes(where: str, name: str, value: Any) -> int:
    """Return a number of bytes, at most an exbibyte."""
    result = integer(ConfigError, where, name, value, 0, 1024)
    return int(check(ConfigError, where, name, result, lambda it: it <= MOST_BYTES, "at most 2**60 bytes", 1024))


def positive(where: str, name: str, value: Any) -> float:
    """Return a finite number above zero."""
    return float(number(ConfigError, where, name, value, lambda it: it > 0, "a number above 0", 1.0))


def fraction(where: str, name: str, value: Any) -> float:
    """Return a number from 0 to less than 1."""
    return float(number(ConfigError, where, name, value, lambda it: 0 <= it < 1, "a number from 0 to below 1", 0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a model that is computed on one device.

    >>> from anyaccel_offload import Block, DeviceSpec, plan_blocks
    >>> blocks = [Block(name=f"layer{i}", parameter_bytes=4_000_000_000) for i in range(4)]
    >>> devices = [DeviceSpec(name=name, memory=10_000_000_000) for name in ("gpu:0", "gpu:1")]
    >>> plan_blocks(blocks, devices).device_map
    {'layer0': 'gpu:0', 'layer1': 'gpu:0', 'layer2': 'gpu:1', 'layer3': 'gpu:1'}

    Args:
        name: Name, unique among the blocks of a plan.
        parameter_bytes, buffer_bytes: Bytes of all its parameters and buffers, without those in `tied`.
        activation_bytes: Additional bytes while the block computes. In inference they are freed afterwards: a device
            needs the memory of its largest block. In training they are kept for the backward pass: a device needs the
            sum.
        cache_bytes_per_token: Bytes per token of a growing cache, such as keys and values of attention.
        seconds: Compute time of a step on a device of `rate` 1: a number, or one for each kind of device (`{"gpu":
            0.001, "cpu": 0.02}`); the block cannot be computed on a kind that is missing. None if unknown: see
            `plan_blocks`.
        output_bytes: Bytes of its output if the blocks are a chain; use `Edge` for other connections.
        tied: Bytes of shared parameters by name. Each device that computes with one holds it once.
        group: Name of a group, whose blocks are computed on one device; empty for a separate block.
        backward: Whether it belongs to the backward pass of a training graph.

    Raises:
        ConfigError: A value has another type, is negative, or is not finite.
    """

    name: str
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    activation_bytes: int = 0
    cache_bytes_per_token: int = 0
    seconds: float | Mapping[str, float] | None = None
    output_bytes: int = 0
    tied: Mapping[str, int] = field(default_factory=dict)
    group: str = ""
    backward: bool = False

    def __post_init__(self) -> None:
        text(ConfigError, "Block: ", "name", self.name)
        where = f"block {self.name!r}: "
        for name in ("parameter_bytes", "buffer_bytes", "activation_bytes", "cache_bytes_per_token", "output_bytes"):
            object.__setattr__(self, name, nbytes(where, name, getattr(self, name)))
        fits = lambda it: isinstance(it, Mapping) and all(isinstance(key, str) and key for key in it)  # noqa: E731
        tied = check(ConfigError, where, "tied", self.tied, fits, "names with bytes", "{'embedding': 1024}")
        object.__setattr__(self, "tied", {key: nbytes(where, f"tied {key!r}", tied[key]) for key in sorted(tied)})
        object.__setattr__(self, "seconds", _seconds(where, self.seconds))
        check(ConfigError, where, "group", self.group, lambda it: isinstance(it, str), "text", "'attention'")
        check(ConfigError, where, "backward", self.backward, lambda it: isinstance(it, bool), "True or False", True)

    def seconds_on(self, kind: str) -> float:
        """Return the compute time on a kind of device at rate 1, infinite if the block cannot be computed there."""
        if isinstance(self.seconds, Mapping):
            return self.seconds.get(kind, math.inf)
        return self.seconds or 0.0


def _seconds(where: str, seconds: Any) -> float | dict[str, float] | None:
    if seconds is None:
        return None
    least = lambda it: it >= 0  # noqa: E731
    wanted = "a number of at least 0, or one for each kind of device"
    if not isinstance(seconds, Mapping):
        return float(number(ConfigError, where, "seconds", seconds, least, wanted, 0.001))
    example = "{'gpu': 0.001}"
    check(
        ConfigError, where, "seconds", seconds, lambda it: it and all(isinstance(k, str) for k in it), wanted, example
    )
    return {
        key: float(number(ConfigError, where, f"seconds[{key!r}]", seconds[key], least, wanted, 0.001))
        for key in sorted(seconds)
    }


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that one block passes to another.

    Edges of one source with the same `tensor` are one tensor, which a device sends once, even if many blocks read it.

    Args:
        source, target: Names of blocks.
        nbytes: Size of the tensor in bytes.
        tensor: Name that distinguishes several outputs of one block.

    Raises:
        ConfigError: A value has another type, or is negative.
    """

    source: str
    target: str
    nbytes: int = 0
    tensor: str = ""

    def __post_init__(self) -> None:
        text(ConfigError, "Edge: ", "source", self.source)
        text(ConfigError, "Edge: ", "target", self.target)
        where = f"edge {self.source!r} to {self.target!r}: "
        object.__setattr__(self, "nbytes", nbytes(where, "nbytes", self.nbytes))
        check(ConfigError, where, "tensor", self.tensor, lambda it: isinstance(it, str), "text", "'hidden'")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that computes blocks.

    Args:
        name: Name, unique among the devices of a plan, such as `"gpu:0"`.
        memory: Memory in bytes; None for no limit.
        kind: Kind of device, which selects one of a block's `seconds`.
        rate: Speed relative to these seconds.
        link: Transfer rate between this device and others, in bytes per second; None if copies take no time.
        offload_link: Transfer rate from the tiers of offloaded weights, in bytes per second; None uses `link`.
        headroom: Fraction of the memory that stays free.
        rounding: Number of bytes; allocations are rounded up to a multiple of it, for each category of each block.

    Raises:
        ConfigError: A value has another type or is out of range.
    """

    name: str
    memory: int | None = None
    kind: str = "gpu"
    rate: float = 1.0
    link: float | None = None
    offload_link: float | None = None
    headroom: float = 0.0
    rounding: int = 512

    def __post_init__(self) -> None:
        text(ConfigError, "DeviceSpec: ", "name", self.name)
        where = f"device {self.name!r}: "
        if self.memory is not None:
            object.__setattr__(self, "memory", nbytes(where, "memory", self.memory))
        text(ConfigError, where, "kind", self.kind)
        object.__setattr__(self, "rate", positive(where, "rate", self.rate))
        for name in ("link", "offload_link"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive(where, name, getattr(self, name)))
        object.__setattr__(self, "headroom", fraction(where, "headroom", self.headroom))
        rounding = integer(ConfigError, where, "rounding", self.rounding, 1, 512)
        object.__setattr__(self, "rounding", nbytes(where, "rounding", rounding))

    @property
    def usable(self) -> float:
        """Bytes of memory without the headroom, infinite for no limit."""
        return math.inf if self.memory is None else math.floor(self.memory * (1 - self.headroom))

    @property
    def model(self) -> tuple[Any, ...]:
        """All fields except the name: devices with equal models are interchangeable."""
        return (self.kind, self.usable, self.rate, self.link, self.offload_link, self.rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTier:
    """Memory for offloaded weights, which are copied from it in each step.

    Args:
        name: `"cpu"` for host memory, or `"disk"`.
        memory: Memory in bytes; None for no limit.
        bandwidth: Read rate in bytes per second; None if only the link of the device limits it.

    Raises:
        ConfigError: The name is unknown, or a value has another type or is out of range.
    """

    name: str
    memory: int | None = None
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        check(ConfigError, "OffloadTier: ", "name", self.name, lambda it: it in ("cpu", "disk"), "a tier", "'cpu'")
        where = f"tier {self.name!r}: "
        if self.memory is not None:
            object.__setattr__(self, "memory", nbytes(where, "memory", self.memory))
        if self.bandwidth is not None:
            object.__setattr__(self, "bandwidth", positive(where, "bandwidth", self.bandwidth))


# -- amounts of memory as users write them: bytes, or text such as "20GiB" ---------------------------------------------


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def memory_size(error: type[AnyaccelError], where: str, name: str, value: Any) -> int:
    """Return the bytes of a number, or of text such as "20GiB" or "500MB".

    Raises:
        AnyaccelError: The value is neither; its class is `error`.
    """
    if not isinstance(value, str):
        return integer(error, where, name, value, 0, 2**34)
    digits = value.strip().rstrip("abikmgtABIKMGT").strip()
    unit = _UNITS.get(value.strip()[len(digits) :].strip().upper())
    try:
        result = int(float(digits) * unit)  # type: ignore[operator]
    except (TypeError, ValueError, OverflowError):
        result = -1
    if result < 0:
        raise error(f"{where}{name}={value!r} is not a size", hint="write bytes, or '20GiB' or '500MB'")
    return result
