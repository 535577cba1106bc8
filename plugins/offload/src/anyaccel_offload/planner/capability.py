"""What a backend can do about models that are larger than a device. Part of the plugin contract."""

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
"""Where weights may rest that do not stay on a device: host memory, and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRequest:
    """What a node asks of the blocks of its model.

    Attributes:
        device_map: names of parts of the model, each with a device (`"gpu:0"`), `"cpu"` or `"disk"`; None to plan it.
        max_memory: bytes of each device and tier that a plan may use, as the user gave them; None for the device of the
            node with what is free there, the free host memory, and disk.
        offload: `"no"`, `"cpu"` or `"disk"`: where a plan may let weights rest that do not fit.
        training: whether the model is trained.
        free: bytes of each device and tier that are free now, None where that is unknown. It changes all the time, and
            is not compared.
        inputs: shape and dtype of each input of a call, with the batch: objects with `shape` and `dtype`. Where they
            are given, blocks are in the order in which such a call computes them.
        arguments: the path of each input in the call, as of `Operation.arguments`; empty where they are positional.
        requires_order: whether it is an error that such a call fails. If not, a note of the plan says so, and blocks
            are in the order in which they are registered.
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
    """A block of a model: the device that computes it, and where its weights rest.

    Attributes:
        name: of the part of the model; `""` for all of it.
        device: that computes it.
        tier: `"cpu"` or `"disk"` for weights that rest there; `""` for those that stay on the device.
        nbytes: of its weights, without those that other blocks use too.
        step_bytes: copied in each step; in training down for forward and backward, and gradients up.
    """

    name: str
    device: Device
    tier: str = ""
    nbytes: int = 0
    step_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlan:
    """Where the blocks of a model are, and what a step costs.

    Attributes:
        blocks: in the order in which they are expected to compute.
        device_bytes: of each device, as text: weights that stay, and the slots that others are copied through.
        slots: how many of these a device has; two where it is not named.
        copy_seconds, compute_seconds: of a step, estimated; copies run beside the compute. They depend on the machine
            and are not compared.
        notes: what to know about the figures.
    """

    blocks: tuple[PlacedBlock, ...]
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    copy_seconds: float = field(default=0.0, compare=False)
    compute_seconds: float = field(default=0.0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def step_bytes(self) -> int:
        """Bytes that are copied in each step."""
        return sum(block.step_bytes for block in self.blocks)

    @property
    def seconds(self) -> float:
        """The least time of a step: the larger of copy and compute."""
        return max(self.copy_seconds, self.compute_seconds)

    def section(self, node: str) -> Section:
        """What the plan of a phase shows of the blocks of a node."""
        from anyaccel_offload.plan_section import section_of  # imports graphs, which the planner does without

        return section_of(node, self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, with the sums."""
        blocks = [{**asdict(block), "device": str(block.device)} for block in self.blocks]
        plain = {"blocks": blocks, "device_bytes": dict(self.device_bytes), "notes": list(self.notes)}
        plain["slots"] = dict(self.slots)
        times = {name: getattr(self, name) for name in ("copy_seconds", "compute_seconds", "seconds", "step_bytes")}
        return {**plain, **times}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> OffloadPlan:
        """The plan that `to_dict` described.

        Raises:
            KeyError, TypeError, ValueError: malformed.
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
    """Capability `offload`: models whose blocks are on several devices, or whose weights rest in host memory or files.

    A backend without it is refused where a node has a device map.
    """

    def empty_weights(self) -> AbstractContextManager[Any]:
        """A context in which models are built without memory for their weights; the default builds them as ever.

        Such a model can be planned and not computed.
        """
        return nullcontext()

    @abstractmethod
    def plan_offload(self, model: Any, device: Device, request: OffloadRequest) -> OffloadPlan:
        """Where the blocks of a built model go; nothing moves. Of a model that is there already, where they are.

        Args:
            model: of a node.
            device: of the node: inputs come there, and outputs leave from there.
            request: of the node.

        Raises:
            CapabilityError: the model cannot be divided, or not trained with weights in files.
            ConfigError: a map that names what the model has not, or leaves something out.
            OutOfMemoryError: it does not fit.
        """

    @abstractmethod
    def offload(self, model: Any, device: Device, plan: OffloadPlan) -> Any:
        """Put a model where a plan says; **use the result**. A second call changes nothing.

        Programs are built of the result as of any model on the device, and change its values where they rest.
        """

    @abstractmethod
    def end_offload(self, model: Any) -> Any:
        """Make a model an ordinary one again, whose values are where they rest; **use the result**.

        Of a model that `offload` has not made, it is the model.
        """


def _block(given: Mapping[str, Any]) -> PlacedBlock:
    tier = _text(given["tier"])
    if tier not in ("", *TIERS):
        raise ValueError(f"{tier!r} is no tier")
    return PlacedBlock(
        name=_text(given["name"]),
        device=Device.parse(given["device"]),
        tier=tier,
        nbytes=_count(given["nbytes"]),
        step_bytes=_count(given["step_bytes"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text is wanted")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{str(value)[:40]!r} where a number of bytes is wanted")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TypeError(f"{str(value)[:40]!r} where seconds are wanted")
    return float(value)
