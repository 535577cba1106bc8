"""The figures of a plan: memory of each device by category, and the decisions for the whole phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from anyaccel.device import Device

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "batches")
"""What a step needs memory for: parameters with buffers, their gradients, optimizer state, what is computed, and the
rows that are on the device with their order."""
NOT_COVERED = "not covered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory that a phase needs on a device, in bytes; None where that is not covered.

    Attributes:
        framework: Framework that has the memory: each framework allocates for itself.
        capacity: Memory of the device, None if unknown or without a limit.
        gaps: Why a category is not covered, by its name.
    """

    device: Device
    framework: str
    parameters: int | None = 0
    gradients: int | None = 0
    optimizer: int | None = 0
    activations: int | None = 0
    batches: int | None = 0
    capacity: int | None = None
    gaps: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int | None:
        """The sum of all categories, None if one of them is not covered."""
        values = [getattr(self, name) for name in CATEGORIES]
        return None if None in values else sum(values)

    @property
    def known(self) -> int:
        """The sum of those categories that are covered."""
        return sum(getattr(self, name) or 0 for name in CATEGORIES)

    @property
    def headroom(self) -> int | None:
        """The rest of the capacity, negative if the phase does not fit; None if that is not covered."""
        return None if self.total is None or self.capacity is None else self.capacity - self.total

    @property
    def fits(self) -> bool | None:
        """Whether it fits: False if the covered categories are too much already; None if that is not covered."""
        if self.capacity is not None and self.known > self.capacity:
            return False
        return None if self.headroom is None else True

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a category that is not covered is None, with the reason in `gaps`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain |= {"device": str(self.device), "gaps": dict(self.gaps)}
        return plain | {"total": self.total, "headroom": self.headroom, "fits": self.fits}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DeviceMemory:
        """Rebuild the object from the output of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: malformed.
        """
        numbers: dict[str, Any] = {name: _bytes(given[name]) for name in (*CATEGORIES, "capacity")}
        gaps = {str(name): checked_text(reason) for name, reason in dict(given["gaps"]).items()}
        return cls(
            device=Device.parse(given["device"]), framework=checked_text(given["framework"]), gaps=gaps, **numbers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeActivations:
    """The values that the forward pass of a node with `remat` keeps for its backward pass, with its outputs, in bytes.

    Attributes:
        rows: Rows that are computed together: those of a step or a micro-batch; None if unknown.
        kept: Bytes with `remat`; None if not covered.
        without_remat: Bytes without `remat`; None if not covered.
        gap: Why it is not covered.
    """

    node: str
    rows: int | None
    kept: int | None = None
    without_remat: int | None = None
    gap: str = ""

    @property
    def saved(self) -> int | None:
        """The bytes that `remat` saves; None if not covered."""
        return None if self.kept is None or self.without_remat is None else self.without_remat - self.kept

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a figure that is not covered is None, with the reason in `gap`."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"saved": self.saved}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> NodeActivations:
        """Rebuild the object from the output of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: malformed.
        """
        numbers: dict[str, Any] = {name: _bytes(given[name]) for name in ("rows", "kept", "without_remat")}
        return cls(node=checked_text(given["node"]), gap=checked_text(given["gap"]), **numbers)


@dataclass(frozen=True, slots=True)
class Decision:
    """A setting of the whole phase, with the decision and the reason."""

    what: str
    choice: str
    why: str


def step_bytes(nbytes: int, batch_size: int | None) -> int | None:
    """Return the bytes of a step, given the bytes of a sample; None if the batch size is unknown."""
    return None if batch_size is None else nbytes * batch_size


def _bytes(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63):
        return value
    raise ValueError(f"{str(value)[:60]!r} is not a number of bytes")


def checked_text(value: Any) -> str:
    """Return text of a saved plan; raise TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value
