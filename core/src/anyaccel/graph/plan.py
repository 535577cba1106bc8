"""Plan: which node goes where, and why; which values cross; what is loaded. Data, made before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anyaccel.data.roles import brief
from anyaccel.device import Device
from anyaccel.display import listing
from anyaccel.errors import GraphError
from anyaccel.html import text
from anyaccel.segment import TensorSpec

_ROUTES = {
    "move": "a move within the framework",
    "share": "shared memory",
    "copy": "shared memory and a copy, as the node may write to it",
    "host": "a copy through host memory",
}
_LONGEST = 400  # characters of a cell


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a node is computed. `reason` is node, phase, policy, default or fallback; `written` is what was asked.

    A ConcatNode has no say: its reason is neighbour, and `written` the node that it goes with.

    `native` is the framework's own name of the device; `parameters` counts the model's, `nbytes` their bytes.
    """

    node: str
    framework: str
    device: Device
    native: str
    reason: str
    written: str = ""
    pinned: bool = False
    frozen: bool = False
    parameters: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """Columns of a feature set joined to one value, as they are put on a device.

    `stored` is how the data are, `spec` how they arrive: floating numbers in the receiving model's dtype, class
    indices in the framework's index dtype, single axes aligned with the output that a target is compared with.
    `stream` is that of the sampler from which its rows come, `""` for the first. `joined` tells which of several
    columns had to change their dtype to be joined, as `b int64 as float64`.
    """

    name: str
    feature_set: str
    columns: tuple[str, ...]
    framework: str
    device: Device
    spec: TensorSpec
    stored: TensorSpec
    pinned: bool = False
    role: str = "features"
    stream: str = ""
    joined: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name for people: of many columns the first."""
        before, rest = f"{self.feature_set}.", self.name[len(self.feature_set) + 1 + len("+".join(self.columns)) :]
        return f"{before}{brief(self.columns)}{rest}"

    @property
    def change(self) -> str:
        """What is changed on the way, `""` for nothing."""
        parts = [listing(self.joined, 3)] if self.joined else []
        if self.stored.dtype != self.spec.dtype:
            parts.append(f"{self.stored.dtype} to {self.spec.dtype}")
        if self.stored.shape != self.spec.shape:
            parts.append(f"{list(self.stored.shape)} to {list(self.spec.shape)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that goes from one device or framework to another in every step. `nbytes` is of one sample.

    `target` is the first node that takes it there. Where `gradient` is true it is the value's cotangent that goes,
    back to the node that made the value. `route` is move, share, copy or host (see `anyaccel.graph.transfers`).
    """

    value: str
    source: str
    target: str
    origin: Device
    destination: Device
    route: str
    nbytes: int
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A segment, by its nodes: what one backend computes in one go."""

    label: str
    framework: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Everything decided about a phase before it runs."""

    phase: str
    graph: str
    assignments: tuple[Assignment, ...]
    columns: tuple[Column, ...]
    crossings: tuple[Crossing, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        devices = ", ".join(dict.fromkeys(str(one.device) for one in self.assignments))
        told = {"column": len(self.columns), "crossing": len(self.crossings)}
        counts = ", ".join(number_of(number, what) for what, number in told.items())
        where = f"{number_of(len(self.assignments), 'node')}{' on ' if devices else ''}{devices}"
        return f"Plan({self.phase!r} on {self.graph!r}: {where}, {counts})"

    def __getitem__(self, node: str) -> Assignment:
        """The assignment of a node.

        Raises:
            GraphError: the plan has no such node.
        """
        found = next((one for one in self.assignments if one.node == node), None)
        if found is None:
            raise GraphError(
                f"{node!r} is not in the plan of {self.phase!r}",
                available=", ".join(one.node for one in self.assignments),
            )
        return found

    def _place(self, node: str) -> str:
        return f"{self[node].framework} {self[node].device}"

    def device(self, node: str) -> Device:
        """Where a node is computed."""
        return self[node].device

    def explain(self, node: str) -> str:
        """Why a node is computed where it is, in one sentence."""
        one = self[node]
        why = {
            "node": f"its own accelerator says {one.written!r}",
            "phase": f"the phase asks for {one.written!r} and the node for nothing",
            "neighbour": f"it goes with {one.written!r}",
            "policy": f"the policy {one.written!r} chose it",
            "default": "neither the node nor the phase asks for a device",
            "fallback": f"the phase asks for {one.written!r}, on which {one.framework} is not served",
        }[one.reason]
        return f"{node} runs on {one.device} ({one.framework}: {one.native}) because {why}."

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, ready for JSON."""
        return {
            "phase": self.phase,
            "graph": self.graph,
            "assignments": [_flat(one) for one in self.assignments],
            "columns": [_flat(one) for one in self.columns],
            "crossings": [_flat(one) for one in self.crossings],
            "segments": [_flat(one) for one in self.parts],
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        from anyaccel.graph.drawing.notebook import plan_html  # which draws what this module says

        return plan_html(self)

    def __str__(self) -> str:
        rows = [("node", "device", "native name", "why", "parameters")]
        rows += [
            (a.node, str(a.device), f"{a.framework} {a.native}", a.reason, f"{a.parameters:,}")
            for a in self.assignments
        ]
        lines = [f"plan of {self.phase!r} on {self.graph!r}", *table(rows)]
        for column in self.columns:
            change = f" ({column.change})" if column.change else ""
            name, where = text(column.shown, _LONGEST), f"{column.framework} {column.device}"
            lines.append(f"load  {name} -> {where}: {column.spec}{change}")
        for crossing in self.crossings:
            what = f"gradient of {crossing.value}" if crossing.gradient else crossing.value
            lines.append(
                f"cross {what}: {self._place(crossing.source)} -> {self._place(crossing.target)} "
                f"by {_ROUTES[crossing.route]}, {crossing.nbytes} B a sample"
            )
        return "\n".join([*lines, *(f"note  {note}" for note in self.notes)])


def number_of(number: int, what: str) -> str:
    """How many there are: `1 node`, `2 nodes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text as aligned lines; what is in a cell stays in its line."""
    rows = [tuple(text(cell, _LONGEST) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _flat(value: Any) -> dict[str, Any]:
    return {key: _plain(item) for key, item in asdict(value).items()} | {
        key: str(getattr(value, key)) for key in ("device", "origin", "destination") if hasattr(value, key)
    }


def _plain(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _plain(value) for key, value in item.items()}
    return [_plain(value) for value in item] if isinstance(item, (list, tuple)) else item
