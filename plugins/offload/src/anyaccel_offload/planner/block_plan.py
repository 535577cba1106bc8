"""The plan of blocks on devices: an immutable value with a table, reasons, and a round trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from anyaccel.arguments import check
from anyaccel.errors import ConfigError
from anyaccel.html import listing, size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What one device gets.

    Attributes:
        device: its name.
        blocks: names of the blocks that it computes, in the order of the model.
        offloaded: those of them whose weights rest in a tier, each with the tier's name.
        nbytes: bytes that it needs by category, `rounding` and `staging` (for copies of offloaded weights) among them.
        usable: bytes that it has without headroom; None for no limit.
        compute_seconds, transfer_seconds, copy_seconds: of a step: its blocks, tensors from and to other devices, and
            copies of offloaded weights, which run beside the other two where there are two staging slots.
        seconds: in all.
        staging_slots: 0 where nothing is offloaded.
        reason: why it has these blocks, or none.
    """

    device: str
    blocks: tuple[str, ...]
    offloaded: Mapping[str, str]
    nbytes: Mapping[str, int]
    usable: int | None
    compute_seconds: float
    transfer_seconds: float
    copy_seconds: float
    seconds: float
    staging_slots: int
    reason: str

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return sum(self.nbytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Which device computes each block, where its weights rest, and what a step costs.

    Attributes:
        devices: a share for each device, in the order given.
        objective: `throughput` or `latency`.
        seconds: the value of the objective: of the slowest device, or the sum over all.
        lower_bound: no assignment is faster than this.
        method: `contiguous split`, `packing` or `offload`.
        exact: whether no contiguous split of the blocks over the devices is better.
        notes: what to know about the figures.
    """

    devices: tuple[DeviceShare, ...]
    objective: str
    seconds: float
    lower_bound: float
    method: str
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def device_map(self) -> dict[str, str]:
        """The device that computes each block."""
        return {block: share.device for share in self.devices for block in share.blocks}

    @property
    def offloaded(self) -> dict[str, str]:
        """The tier of each offloaded block."""
        return {block: tier for share in self.devices for block, tier in share.offloaded.items()}

    def to_dict(self) -> dict[str, Any]:
        """The plan as dicts, lists, text and numbers, for JSON."""
        made = asdict(self)
        made["notes"] = list(self.notes)
        made["devices"] = [{**share, "blocks": list(share["blocks"])} for share in made["devices"]]
        return made

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> BlockPlan:
        """The plan that `to_dict` described.

        Raises:
            ConfigError: it is no such description.
        """
        values = _record(cls, "plan", given)
        listed = check(ConfigError, "plan: ", "devices", values["devices"], _is_list, "a list", [])
        shares = [_record(DeviceShare, f"plan: device {i}", each) for i, each in enumerate(listed)]
        made = [DeviceShare(**{**share, "blocks": tuple(share["blocks"])}) for share in shares]
        return cls(**{**values, "devices": tuple(made), "notes": tuple(values["notes"])})

    def __str__(self) -> str:
        head = ("device", "blocks", "offloaded", "memory", "of", "seconds")
        rows = [head, *(_row(share) for share in self.devices)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        word = "slowest device" if self.objective == "throughput" else "one request"
        proven = ", best contiguous split" if self.exact else ""
        lines.append(f"{word}: {self.seconds:.4g} s (no plan is below {self.lower_bound:.4g} s{proven})")
        return "\n".join([*lines, *self.notes])

    def explain(self) -> str:
        """For each device its bytes by category, and why it has these blocks."""
        lines = []
        for share in self.devices:
            parts = [f"{name} {size(value)}" for name, value in share.nbytes.items() if value]
            lines.append(f"{share.device}: {', '.join(parts) or 'nothing'}. {share.reason}")
        return "\n".join(lines)


def _row(share: DeviceShare) -> tuple[str, ...]:
    usable = "no limit" if share.usable is None else size(share.usable)
    names = listing([share.blocks[0], "...", share.blocks[-1]] if len(share.blocks) > 3 else share.blocks)
    shown = f"{len(share.blocks)}: {names}" if share.blocks else "0"
    return (
        *(share.device, shown, str(len(share.offloaded)), size(share.total_bytes), usable),
        f"{share.seconds:.4g}",
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_field(kind: str, value: Any) -> bool:
    """Whether a value is of the type that an annotation says."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind.startswith("tuple"):
        return isinstance(value, list) and ("Share" in kind or all(isinstance(each, str) for each in value))
    if kind.startswith("Mapping"):
        inner = str if kind.endswith("str]") else int
        fits = (isinstance(key, str) and isinstance(each, inner) for key, each in value.items())
        return isinstance(value, dict) and all(fits)
    plain = {"str": isinstance(value, str), "float": number, "int": whole, "bool": isinstance(value, bool)}
    return plain.get(kind, value is None or whole)


def _record(kind: type, where: str, given: Any) -> dict[str, Any]:
    """The fields of a record, all there and of their types."""
    names = {each.name: str(each.type) for each in fields(kind)}
    wanted = f"a dict with {', '.join(names)}, as to_dict gives it"
    fits = lambda it: isinstance(it, Mapping) and set(it) == set(names)  # noqa: E731
    check(ConfigError, "", where, given, fits, wanted, "plan.to_dict()")
    for name, annotation in names.items():
        check(
            *(ConfigError, f"{where}: ", name, given[name]),
            *(lambda it, annotation=annotation: _is_field(annotation, it), f"of type {annotation}", "plan.to_dict()"),
        )
    return dict(given)
