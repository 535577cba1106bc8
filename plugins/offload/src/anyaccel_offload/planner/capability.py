"""The capability of backends to run models that are larger than a device. Part of the plugin contract."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from anyaccel.capability import Capability
from anyaccel.device import Device

if TYPE_CHECKING:
    from anyaccel.graph.plan_entries import Section

TIERS = ("cpu", "disk")
"""Tiers for weights that do not stay on a device: host memory, and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRequest:
    """A node's request for the blocks of its model.

    Attributes:
        device_map: Names of parts of the model, each with a device (`"gpu:0"`), `"cpu"` or `"disk"`; None to plan it.
        max_memory: Bytes of each device and tier that a plan may use, as the user passed them. None for the free memory
            of the node's device, the free host memory, and disk.
        offload: `"no"`, `"cpu"` or `"disk"`: where a plan may offload weights that do not fit.
        training: Whether the model is trained.
        free: Bytes of each device and tier that are free now, None if unknown. The value changes all the time, and is
            not compared.
        inputs: Shape and dtype of each input of a call, with the batch: objects with `shape` and `dtype`. If they are
            set, blocks are in the order of such a call.
        arguments: Path of each input in the call, see `Operation.arguments`; empty for positional inputs.
        requires_order: Whether a failure of this call is an error. If not, a note of the plan reports it, and blocks
            are in the order of registration.
    """

    device_map: Mapping[str, str] | None = None
    max_memory: Mapping[str, int] | None = None
    offload: str = "no"
    training: bool = False
    free: Mapping[str, int | None] = field(default_factory=dict, compare=False)
    inputs: Sequence[Any] = field(default=(), compare=False)
    arguments: Sequence[tuple[str | int, ...]] = field(default=(), compare=False)
    requires_order: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBlock:
    """A block of a model: the device that computes it, and the place of its weights.

    Attributes:
        name: Name of the part of the model; `""` for the whole model.
        device: Device that computes it.
        tier: `"cpu"` or `"disk"` for offloaded weights; `""` for weights that stay on the device.
        nbytes: Bytes of its weights, without those shared with other blocks.
        step_bytes: Bytes copied in each step; in training to the device for forward and backward, and gradients back.
    """

    name: str
    device: Device
    tier: str = ""
    nbytes: int = 0
    step_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlan:
    """The places of a model's blocks, and the cost of a step.

    Attributes:
        blocks: Blocks in the expected order of computation.
        device_bytes: Bytes on each device, named as text: weights that stay, and the slots that others are copied
            through.
        slots: Number of these slots on each device; two for devices that are not named.
        copy_seconds, compute_seconds: Estimated seconds of a step; copies overlap with the computation. They depend on
            the machine and are not compared.
        notes: Notes about the figures.
    """

    blocks: tuple[PlacedBlock, ...]
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    copy_seconds: float = field(default=0.0, compare=False)
    compute_seconds: float = field(default=0.0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def step_bytes(self) -> int:
        """Number of bytes that are copied in each step."""
        return sum(block.step_bytes for block in self.blocks)

    @property
    def seconds(self) -> float:
        """Minimum time of a step: the maximum of copy and compute time."""
        return max(self.copy_seconds, self.compute_seconds)

    def section(self, node: str) -> Section:
        """Return the section of a phase's plan about the blocks of a node."""
        from anyaccel_offload.plan_section import section_of  # imports graphs, which the planner does without

        return section_of(node, self)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, with the sums."""
        blocks = [{**asdict(block), "device": str(block.device)} for block in self.blocks]
        plain = {"blocks": blocks, "device_bytes": dict(self.device_bytes), "notes": list(self.notes)}
        plain["slots"] = dict(self.slots)
        times = {name: getattr(self, name) for name in ("copy_seconds", "compute_seconds", "seconds", "step_bytes")}
        return {**plain, **times}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> OffloadPlan:
        """Rebuild the plan from the output of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: The data are malformed.
        """
        return cls(
            blocks=tuple(map(_block, given["blocks"])),
            device_bytes={_text(name): _count(value) for name, value in dict(given["device_bytes"]).items()},
            slots={_text(name): _count(value) for name, value in dict(given.get("slots", {})).items()},
            copy_seconds=_seconds(given["copy_seconds"]),
            compute_seconds=_seconds(given["compute_seconds"]),
            notes=tuple(map(_text, given["notes"])),
        )


class OffloadModels(Capability):
    """Capability `offload`: models with blocks on several devices, or weights in host memory or files.

    A node with a device map is refused if its backend lacks this capability.
    """

    def empty_weights(self) -> AbstractContextManager[Any]:
        """Return a context that builds models without memory for their weights; by default, with memory.

        Such a model can be planned but not computed.
        """
        return nullcontext()

    @abstractmethod
    def plan_offload(self, model: Any, device: Device, request: OffloadRequest) -> OffloadPlan:
        """Plan the places of a built model's blocks; nothing moves.

        For a model that is placed already, return its places.

        Args:
            model: Model of a node.
            device: Device of the node, for its inputs and outputs.
            request: Request of the node.

        Raises:
            CapabilityError: The model cannot be split, or cannot be trained with weights in files.
            ConfigError: The map names a part that the model does not have, or leaves one out.
            OutOfMemoryError: The model does not fit.
        """

    @abstractmethod
    def offload(self, model: Any, device: Device, plan: OffloadPlan) -> Any:
        """Place a model according to a plan; **use the result**. A second call changes nothing.

        Programs are built from the result as from any model on the device, and change its values in their places.
        """

    @abstractmethod
    def end_offload(self, model: Any) -> Any:
        """Return an ordinary model with its values in their places; **use the result**.

        A model that `offload` has not created is returned unchanged.
        """


def _block(entry: Mapping[str, Any]) -> PlacedBlock:
    tier = _text(entry["tier"])
    if tier not in ("", *TIERS):
        raise ValueError(f"{tier!r} is not a tier")
    return PlacedBlock(
        name=_text(entry["name"]),
        device=Device.parse(entry["device"]),
        tier=tier,
        nbytes=_count(entry["nbytes"]),
        step_bytes=_count(entry["step_bytes"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{str(value)[:40]!r} instead of a number of bytes")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TypeError(f"{str(value)[:40]!r} instead of seconds")
    return float(value)
