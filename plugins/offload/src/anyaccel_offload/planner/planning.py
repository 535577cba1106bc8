"""`plan_blocks`: returns a plan for blocks and devices, or raises an error that names the parts that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from anyaccel.arguments import check, flag, integer, number
from anyaccel.errors import ConfigError, OutOfMemoryError
from anyaccel.html import listing
from anyaccel.printable import size
from anyaccel_offload.planner.assignment import bottleneck, find_assignment
from anyaccel_offload.planner.offloading import Streamed, find_offload, least_copying
from anyaccel_offload.planner.problem import CATEGORIES, Problem, Settings
from anyaccel_offload.planner.values import Block, DeviceSpec, Edge, OffloadTier

WHERE = "plan_blocks: "
OBJECTIVES = ("throughput", "latency")
OFFLOADS = ("no", "cpu", "disk")
ESTIMATED = "times are estimated: weights read at 1 TB/s, because no block has seconds"


def plan_blocks(
    blocks: Sequence[Block],
    devices: Sequence[DeviceSpec],
    *,
    edges: Sequence[Edge] | None = None,
    objective: str = "throughput",
    training: bool = False,
    optimizer_ratio: float = 2.0,
    tokens: int = 0,
    offload: str = "no",
    offload_buffers: bool = True,
    tiers: Sequence[OffloadTier] = (),
) -> BlockPlan:
    """Plan which device computes each block of a model. Equal input returns an equal plan.

    Args:
        blocks: Blocks in order of computation. If no block has `seconds`, its time is estimated as
            reading its weights at 1 TB/s, a realistic rate for one request in decoding; the plan has a note about it.
        devices: Devices to compute on.
        edges: Tensors between blocks; None for a chain: each block passes `output_bytes` to the next.
        objective: `"throughput"` minimizes the time of the slowest device, as in a full pipeline; `"latency"` minimizes
            the sum of all times, as for one request that passes through all devices.
        training: Whether memory includes gradients, optimizer state and all activations.
        optimizer_ratio: Bytes of optimizer state, including master weights, for each byte of parameters.
        tokens: Number of tokens to plan caches for, over the whole batch.
        offload: `"cpu"` or `"disk"` allows offloading to host memory, or to both, if not all blocks fit.
        offload_buffers: Whether buffers are offloaded with weights; by default they stay on the devices.
        tiers: Host memory and disk; by default unlimited and as fast as the device's link.

    Raises:
        ConfigError: A value is wrong, or a name is unknown or occurs twice.
        OutOfMemoryError: Not all blocks fit, and `offload` does not allow offloading, or the tiers lack room.
    """
    settings = _settings(training, optimizer_ratio, tokens, offload_buffers)
    blocks = _named(blocks, Block, "blocks", "[Block(name='layer', parameter_bytes=1024)]")
    devices = _named(devices, DeviceSpec, "devices", "[DeviceSpec(name='gpu:0', memory=2**34)]")
    connections = _edges(edges, blocks)
    # Times are known for all blocks or for none, and each block can be computed somewhere
    unknown = [block.name for block in blocks if block.seconds is None]
    if unknown and len(unknown) < len(blocks):
        raise ConfigError(
            f"{WHERE}block {unknown[0]!r} has no seconds, others have", hint="set seconds for all blocks or for none"
        )
    kinds = {device.kind for device in devices}
    for block in blocks:
        if not any(np.isfinite(block.seconds_on(kind)) for kind in kinds):
            raise ConfigError(
                f"{WHERE}block {block.name!r} has seconds for {', '.join(sorted(block.seconds or ()))} only",
                available=", ".join(sorted(kinds)),
                hint="set its seconds for an available kind of device",
            )
    problem = Problem(blocks, connections, devices, settings)
    check(ConfigError, WHERE, "objective", objective, OBJECTIVES.__contains__, "'throughput' or 'latency'", "'latency'")
    check(ConfigError, WHERE, "offload", offload, OFFLOADS.__contains__, "'no', 'cpu' or 'disk'", "'cpu'")
    fits = lambda it: isinstance(it, list | tuple) and all(isinstance(tier, OffloadTier) for tier in it)  # noqa: E731
    example = "[OffloadTier(name='cpu', memory=2**36)]"
    listed = check(ConfigError, WHERE, "tiers", tiers, fits, "a list of OffloadTier", example)
    by_name = {tier.name: tier for tier in listed}
    if len(by_name) < len(listed):
        raise ConfigError(f"{WHERE}tiers has a tier several times", hint="describe each tier once")
    names = OFFLOADS[1 : OFFLOADS.index(offload) + 1]
    usable = [by_name.get(name, OffloadTier(name=name)) for name in names]
    found = find_assignment(problem, objective)
    if found is not None:
        streamed = Streamed(assignment=found.assignment, tier={}, slots={})
        return _plan(problem, streamed, objective, found.method, found.exact)
    away = find_offload(problem, usable, objective) if usable else None
    if away is None:
        need = problem.resident.min(axis=0)
        whole = float(need.sum()) + float(problem.ties.nbytes.sum())
        rooms = [
            f"{device.name} {size(int(device.usable))}" for device in problem.devices if np.isfinite(device.usable)
        ]
        largest = int(np.argmax(need + problem.transient.min(axis=0)))
        name = problem.blocks[problem.units[largest][0]].name
        others = " and others" if len(problem.units[largest]) > 1 else ""
        least = size(int(need[largest] + problem.transient[:, largest].min()))
        enough = whole <= sum(device.usable for device in problem.devices)
        divided = "; their total would fit, but no split was found" if enough else ""
        shown = rooms[:8] + ([f"and {len(rooms) - 8} more devices"] if len(rooms) > 8 else [])
        shown += [f"tier {tier.name} {size(tier.memory)}" for tier in usable if tier.memory is not None]
        hints = {"no": "write offload='cpu' to store weights in host memory, or use more or larger devices"}
        raise OutOfMemoryError(
            f"the model does not fit: its {len(problem.blocks):,} blocks need {size(int(whole))} plus memory "
            f"for computing{divided}; the largest that stays together, {name!r}{others}, needs {least}",
            available=", ".join(shown),
            hint=hints.get(offload, "smaller blocks, more devices, or larger tiers are needed"),
        )
    return _plan(problem, away, objective, "offload", False, least_copying(problem, usable, objective))


def _settings(training: Any, optimizer_ratio: Any, tokens: Any, offload_buffers: Any) -> Settings:
    fits = lambda it: 0 <= it < 1e6  # noqa: E731
    return Settings(
        training=flag(ConfigError, WHERE, "training", training),
        optimizer_ratio=float(
            number(ConfigError, WHERE, "optimizer_ratio", optimizer_ratio, fits, "a number of at least 0", 2.0)
        ),
        tokens=integer(ConfigError, WHERE, "tokens", tokens, 0, 4096),
        offload_buffers=flag(ConfigError, WHERE, "offload_buffers", offload_buffers),
    )


def _named(items: Any, kind: type, name: str, example: str) -> list[Any]:
    """Return a list of values with different names."""
    wanted = f"a list of {kind.__name__}"
    fits = lambda it: isinstance(it, Iterable) and not isinstance(it, str | bytes | dict)  # noqa: E731
    values = list(check(ConfigError, WHERE, name, items, fits, wanted, example))
    check(
        ConfigError,
        WHERE,
        name,
        values,
        lambda it: it and all(isinstance(value, kind) for value in it),
        wanted,
        example,
    )
    names = [value.name for value in values]
    twice = sorted({value for value in names if names.count(value) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ConfigError(f"{WHERE}{name} has {twice[0]!r} several times", hint="use unique names")
    return values


def _edges(value: Any, blocks: list[Block]) -> list[Edge]:
    if value is None:
        return [Edge(a.name, b.name, a.output_bytes) for a, b in pairwise(blocks)]
    example = "[Edge('a', 'b', 1024)]"
    fits = lambda it: isinstance(it, list | tuple) and all(isinstance(edge, Edge) for edge in it)  # noqa: E731
    edges = list(check(ConfigError, WHERE, "edges", value, fits, "a list of Edge", example))
    names = {block.name for block in blocks}
    for name in (name for edge in edges for name in (edge.source, edge.target)):
        if name not in names:
            raise ConfigError(f"{WHERE}an edge names {name!r}, which is not a block", hint="name a block of blocks=")
    return edges


def _plan(
    problem: Problem, made: Streamed, objective: str, method: str, exact: bool, copying: float = 0.0
) -> BlockPlan:
    seconds = made.seconds(problem)
    value = float(seconds.sum() if objective == "latency" else seconds.max())
    notes = [ESTIMATED] * problem.estimated
    if method == "packing":
        notes.append("no contiguous split fits: consecutive blocks are on different devices")
    if 1 in made.slots.values():
        notes.append("memory has room for only one staging slot, so copies are not hidden")
    return BlockPlan(
        devices=tuple(_share(problem, made, d, objective, seconds) for d in range(len(problem.devices))),
        objective=objective,
        seconds=value,
        lower_bound=min(max(problem.lower_bound(objective), copying), value),
        method=method,
        exact=exact,
        notes=tuple(notes),
    )


def _share(problem: Problem, made: Streamed, d: int, objective: str, seconds: Any) -> DeviceShare:
    device = problem.devices[d]
    units = np.flatnonzero(made.assignment == d).tolist()
    members = sorted(i for u in units for i in problem.units[u])
    away = {problem.blocks[i].name: made.tier[u].name for u in units if u in made.tier for i in problem.units[u]}
    total = float((problem.memory(made.assignment) - made.freed(problem) + made.staging(problem))[d])
    here = made.assignment[problem.unit_of] == d
    offloaded_units = np.isin(problem.unit_of, list(made.tier))
    totals: dict[str, int] = {}
    for name in CATEGORIES:
        if name == "tied":
            hits = problem.ties.hits(made.assignment, len(problem.devices))[:, d]
            totals[name] = int(problem.ties.nbytes @ hits)
            continue
        leaves = name in (*problem.streamed, "gradients", "optimizer")
        values = problem.block_bytes[name][here & ~offloaded_units if leaves else here]
        one = name == "activations" and not problem.settings.training
        totals[name] = int(values.max(initial=0) if one else values.sum())
    totals["staging"] = int(made.staging(problem)[d])
    totals["rounding"] = round(total) - sum(totals.values())
    return DeviceShare(
        device=device.name,
        blocks=tuple(problem.blocks[i].name for i in members),
        offloaded={
            problem.blocks[i].name: away[problem.blocks[i].name] for i in members if problem.blocks[i].name in away
        },
        nbytes=totals,
        usable=None if device.memory is None else int(device.usable),
        compute_seconds=float(problem.compute(made.assignment)[d]),
        transfer_seconds=float(problem.transfer(made.assignment)[d]),
        copy_seconds=float(made.copy(problem)[d]),
        seconds=float(seconds[d]),
        staging_slots=made.slots.get(d, 0),
        reason=_reason(problem, made, d, objective),
    )


def _reason(problem: Problem, made: Streamed, d: int, objective: str) -> str:
    units = np.flatnonzero(made.assignment == d)
    if len(units):
        away = sum(int(u) in made.tier for u in units)
        return f"It computes {len(units)} units" + (f", {away} of them offloaded." if away else ", all resident.")
    c = int(problem.device_class[d])
    can = (problem.resident[c] + problem.transient[c] <= problem.capacity[c]) & np.isfinite(problem.seconds[c])
    if not can.any():
        return "It is idle: it can hold no block."
    before = bottleneck(problem, made.assignment, objective)
    what = "the slowest device" if objective == "throughput" else "a request"
    return f"It is idle: no use of it was found that keeps the time of {what} at {before:.4g} s."


# -- The plan of blocks on devices: an immutable value with a table, reasons, and a round trip through JSON ------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """The part of one device in a plan.

    Attributes:
        device: Name of the device.
        blocks: Names of its blocks, in the order of the model.
        offloaded: Tier of each of these blocks with offloaded weights.
        nbytes: Required bytes by category, including `rounding` and `staging` (for copies of offloaded weights).
        usable: Available bytes without headroom; None for no limit.
        compute_seconds, transfer_seconds, copy_seconds: Seconds of a step for its blocks, for tensors from and to other
            devices, and for copies of offloaded weights. With two staging slots, copies overlap with the other two.
        seconds: Total seconds of a step.
        staging_slots: Number of staging slots; 0 if nothing is offloaded.
        reason: Why it has these blocks, or none.
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
        """Sum over all categories."""
        return sum(self.nbytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The device of each block, the place of its weights, and the cost of a step.

    Attributes:
        devices: `DeviceShare` of each device, in the given order.
        objective: `throughput` or `latency`.
        seconds: Value of the objective: time of the slowest device, or the sum over all.
        lower_bound: Lower bound of the objective for all assignments.
        method: `contiguous split`, `packing` or `offload`.
        exact: Whether no contiguous split of the blocks over the devices is better.
        notes: Notes about the figures.
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
        """Device that computes each block."""
        return {block: share.device for share in self.devices for block in share.blocks}

    @property
    def offloaded(self) -> dict[str, str]:
        """Tier of each offloaded block."""
        return {block: tier for share in self.devices for block, tier in share.offloaded.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as dicts, lists, text and numbers, for JSON."""
        made = asdict(self)
        made["notes"] = list(self.notes)
        made["devices"] = [{**share, "blocks": list(share["blocks"])} for share in made["devices"]]
        return made

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> BlockPlan:
        """Rebuild the plan from the output of `to_dict`.

        Raises:
            ConfigError: The data do not describe a plan.
        """
        values = _record(cls, "plan", given)
        listed = check(ConfigError, "plan: ", "devices", values["devices"], _is_list, "a list", [])
        shares = [_record(DeviceShare, f"plan: device {i}", entry) for i, entry in enumerate(listed)]
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
        """Return text with each device's bytes by category, and the reason for its blocks."""
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
    """Return whether a value has the type of an annotation."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind.startswith("tuple"):
        return isinstance(value, list) and ("Share" in kind or all(isinstance(item, str) for item in value))
    if kind.startswith("Mapping"):
        inner = str if kind.endswith("str]") else int
        fits = (isinstance(key, str) and isinstance(item, inner) for key, item in value.items())
        return isinstance(value, dict) and all(fits)
    plain = {"str": isinstance(value, str), "float": number, "int": whole, "bool": isinstance(value, bool)}
    return plain.get(kind, value is None or whole)


def _record(kind: type, where: str, values: Any) -> dict[str, Any]:
    """Return the fields of a record, after checking that all exist and have their types."""
    names = {attribute.name: str(attribute.type) for attribute in fields(kind)}
    wanted = f"a dict with {', '.join(names)}, as returned by to_dict"
    fits = lambda it: isinstance(it, Mapping) and set(it) == set(names)  # noqa: E731
    check(ConfigError, "", where, values, fits, wanted, "plan.to_dict()")
    for name, annotation in names.items():
        check(
            *(ConfigError, f"{where}: ", name, values[name]),
            *(lambda it, annotation=annotation: _is_field(annotation, it), f"of type {annotation}", "plan.to_dict()"),
        )
    return dict(values)
