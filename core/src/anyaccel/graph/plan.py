"""Plan: everything decided about a phase before anything moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from anyaccel.arguments import shown
from anyaccel.call_hints import class_hints
from anyaccel.device import Device
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ConfigError, GraphError, MissingDistributionError
from anyaccel.graph.plan_entries import (
    CATEGORIES,
    LEFT_OUT,
    NOT_COVERED,
    OPTIONAL_COLUMNS,
    Assignment,
    Column,
    Crossing,
    Decision,
    DeviceMemory,
    NodeActivations,
    Part,
    Rejection,
    checked_text,
    described,
    number_of,
    read_entry,
    step_bytes,
)
from anyaccel.html import Markup, element, escaped, faint, guarded, line, page, text
from anyaccel.printable import size
from anyaccel.saved_folder import strict_json
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean

_ROUTES = {
    "move": "a move within the framework",
    "share": "shared memory",
    "copy": "shared memory and a copy, because the node may write to it",
    "host": "a copy through host memory",
}
_ENTRIES: dict[str, tuple[str, type]] = {
    "assignments": ("assignments", Assignment),
    "columns": ("columns", Column),
    "crossings": ("crossings", Crossing),
    "parts": ("segments", Part),
}
"""The lists of a plan: the key in `to_dict`, and the class of the entries."""
_WHOSE = {"node": "The node's", "phase": "The phase's", "policy": "The policy", "environment": "The environment's"}
_LONGEST = 400  # characters of a cell


@class_hints
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Plan:
    """The plan of a phase: the device of each node and why, the data to load, and the values copied in every step.

    Attributes:
        phase, graph: Labels of the phase and of the graph.
        assignments: Assignments of the nodes in topological order.
        parts: The segments in the order of computation.
        notes: More to know, such as fallbacks and idle nodes.
        replicas: The devices of this process that train replicas of all nodes, each on its part of every batch; the
            first is the device of the assignments. Empty if each node is on one device.
        memory: Memory of each device by category. Like the following attributes it depends on the machine and is not
            compared by `==` (`diff` shows it). The plan of a run does not have it; the plans of `Experiment.plan` and
            `Phase.plan` do.
        activations: The memory that `remat` saves in each trained node that has it. Like `memory` it is not compared.
        decisions: Residency, compilation and other decisions for the whole phase, with reasons.
        batch_size: Largest number of rows in a step; None if unknown.
        machine: The machine that the plan is for; `""` for the machine that made it.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.zeros((8, 1), "float32")
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
        >>> plan = aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse"), accelerator="cpu").plan(graph)
        >>> plan.device("net"), plan.fits
        (Device(kind='cpu', index=0), True)
    """

    phase: str
    graph: str
    assignments: tuple[Assignment, ...]
    columns: tuple[Column, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    replicas: tuple[Device, ...] = ()
    memory: tuple[DeviceMemory, ...] = field(default=(), compare=False)
    activations: tuple[NodeActivations, ...] = field(default=(), compare=False)
    decisions: tuple[Decision, ...] = field(default=(), compare=False)
    batch_size: int | None = field(default=None, compare=False)
    machine: str = field(default="", compare=False)

    def __repr__(self) -> str:
        devices = ", ".join(dict.fromkeys(self._where(assignment.device) for assignment in self.assignments))
        where = f"{number_of(len(self.assignments), 'node')}{' on ' if devices else ''}{devices}"
        columns, crossings = number_of(len(self.columns), "column"), number_of(len(self.crossings), "crossing")
        return f"Plan({self.phase!r} on {self.graph!r}: {where}, {columns}, {crossings})"

    def __getitem__(self, node: str) -> Assignment:
        """Return the assignment of a node.

        Raises:
            GraphError: the plan has no such node.
        """
        for assignment in self.assignments:
            if assignment.node == node:
                return assignment
        raise GraphError(
            f"the plan of {self.phase!r} has no node {node!r}",
            available=", ".join(assignment.node for assignment in self.assignments),
            hint=did_you_mean(node, [assignment.node for assignment in self.assignments], "use one of these labels"),
        )

    def device(self, node: str) -> Device:
        """Return the device of a node.

        Raises:
            GraphError: the plan has no such node.
        """
        return self[node].device

    def _where(self, device: Device) -> str:
        """Return a device, or those of all replicas."""
        return ", ".join(map(str, self.replicas or (device,)))

    def explain(self, node: str) -> str:
        """Explain why a node is computed on its device: one sentence, and one for each device that was rejected.

        Raises:
            GraphError: the plan has no such node.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
            >>> plan = aa.EvalPhase("eval", data=data, accelerator="cpu").plan(graph)
            >>> print(plan.explain("net"))
            net runs on cpu:0 (numpy: cpu) because the phase requests 'cpu', and the node requests no device.
        """
        assignment = self[node]
        where = f"{self._where(assignment.device)} ({assignment.framework}: {assignment.native_name})"
        refused = [
            f"{_WHOSE[rejection.level]} {rejection.wish!r} was not taken: {rejection.why}."
            for rejection in assignment.rejected
        ]
        return " ".join([f"{node} runs on {where} because {described(assignment)}.", *refused])

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The figures that the plan does not have, each with the reason."""
        if not self.memory:
            return ("memory: a plan of a run has no figures; use experiment.plan(phase)",)
        figures = [
            f"{name} of {device_memory.framework} on {device_memory.device}: {why}"
            for device_memory in self.memory
            for name, why in device_memory.gaps.items()
        ]
        return (
            *figures,
            *(
                f"memory saved by remat of {activations.node}: {activations.gap}"
                for activations in self.activations
                if activations.gap
            ),
        )

    @property
    def fits(self) -> bool | None:
        """Whether the phase fits into the memory of each device: False if one is too small; None if unknown."""
        used: dict[Device, int] = {}
        for device_memory in self.memory:  # frameworks share a device
            used[device_memory.device] = used.get(device_memory.device, 0) + device_memory.known
        if any(
            device_memory.capacity is not None and used[device_memory.device] > device_memory.capacity
            for device_memory in self.memory
        ):
            return False
        return True if self.memory and all(device_memory.fits for device_memory in self.memory) else None

    def diff(self, other: Plan) -> PlanDiff:
        """Compare this plan with another one, for example of the same phase on another machine.

        Raises:
            ConfigError: not a plan.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
            >>> plan = aa.EvalPhase("eval", data=data, accelerator="cpu").plan(graph)
            >>> bool(plan.diff(plan))
            False
        """
        if not isinstance(other, Plan):
            raise ConfigError(
                f"{shown(other)} is not a plan", hint="pass experiment.plan(phase), or Plan.from_json(text)"
            )
        return diff(self.to_dict(), other.to_dict())

    def to_json(self) -> str:
        """Return the plan as JSON text, in a format that later versions read."""
        return json.dumps({"format": FORMAT, "version": VERSION, **self.to_dict()}, indent=2, allow_nan=False) + "\n"

    def to_html(self, picture: str | None = None) -> str:
        """Return the plan as one HTML file without scripts or external files: memory bars, edges, nodes and the JSON.

        Args:
            picture: A drawing of the graph: `graph.visualize("svg", plan=plan)`.

        Raises:
            ConfigError: `picture` is not markup, and would be shown as text.
            MissingDistributionError: what writes the report is not installed.
        """
        report: str = load(SETTINGS, "Plan.to_html").plan_report(self, picture)
        return report

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Rebuild a plan from the output of `to_json`. Untrusted files are safe: no code is run, and size and depth are
        bounded.

        Raises:
            ConfigError: not such text.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
            >>> plan = aa.EvalPhase("eval", data=data, accelerator="cpu").plan(graph)
            >>> aa.Plan.from_json(plan.to_json()) == plan
            True
        """
        return cls.from_dict(parsed(text))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, ready for JSON."""
        plain = {key: [_to_dict(entry) for entry in getattr(self, name)] for name, (key, _) in _ENTRIES.items()}
        replicas = {"replicas": [str(device) for device in self.replicas]} if self.replicas else {}
        return {
            "phase": self.phase,
            "graph": self.graph,
            **plain,
            "notes": list(self.notes),
            **replicas,
            "memory": [device_memory.to_dict() for device_memory in self.memory],
            "activations": [activations.to_dict() for activations in self.activations],
            "decisions": [_to_dict(decision) for decision in self.decisions],
            "batch_size": self.batch_size,
            "machine": self.machine,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Rebuild a plan, equal to the original, from the output of `to_dict`. Its entries have no backend, so it
        cannot be run.

        Raises:
            ConfigError: not such a dict.
        """
        try:
            lists = {name: [read_entry(entry, item) for item in given[key]] for name, (key, entry) in _ENTRIES.items()}
            tuples: dict[str, Any] = {name: tuple(entries) for name, entries in lists.items()}
            tuples["replicas"] = tuple(Device.parse(text) for text in given.get("replicas", ()))
            tuples["memory"] = tuple(map(DeviceMemory.from_dict, given.get("memory", ())))
            tuples["activations"] = tuple(map(NodeActivations.from_dict, given.get("activations", ())))
            tuples["decisions"] = tuple(read_entry(Decision, entry) for entry in given.get("decisions", ()))
            batch_size = given.get("batch_size")
            if batch_size is not None and not (type(batch_size) is int and batch_size > 0):
                raise TypeError(f"{shown(batch_size, 40)} instead of a count")
            texts: dict[str, Any] = {name: checked_text(given[name]) for name in ("phase", "graph")}
            return cls(
                **texts,
                notes=tuple(map(checked_text, given["notes"])),
                batch_size=batch_size,
                machine=checked_text(given.get("machine", "")),
                **tuples,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"{shown(given)} is not a plan as plain data: {type(error).__name__}: {error}"
            raise ConfigError(problem, hint="pass the dict from plan.to_dict()") from error

    def _repr_html_(self) -> str:
        title = f"of {self.phase} on {self.graph}"
        return drawn_page(self, title, lambda drawing: drawing.plan_page(self), lambda: str(self))

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("node", "device", "native name", "why", "parameters")]
        rows += [
            (a.node, self._where(a.device), f"{a.framework} {a.native_name}", a.reason, f"{a.parameters:,}")
            for a in self.assignments
        ]
        for head, text_of in OPTIONAL_COLUMNS.items():
            texts = [head, *map(text_of, self.assignments)]
            if any(texts[1:]):
                rows = [(*cells, more) for cells, more in zip(rows, texts, strict=True)]
        lines = [f"plan of {self.phase!r} on {self.graph!r}", *table(rows)]
        lines += [line for a in self.assignments for section in a.sections for line in section.lines]
        for column in self.columns:
            change, name = f" ({column.change})" if column.change else "", text(column.shown, _LONGEST)
            lines.append(f"load  {name} -> {column.framework} {column.device}: {column.spec_text}{change}")
        for crossing in self.crossings:
            value = f"gradient of {crossing.value}" if crossing.gradient else crossing.value
            source, target = self[crossing.source], self[crossing.target]
            ends = f"{source.framework} {source.device} -> {target.framework} {target.device}"
            nbytes = step_bytes(crossing.nbytes, self.batch_size)
            step = "" if nbytes is None else f", {size(nbytes)} per step"
            way = f"by {_ROUTES[crossing.route]}, {crossing.nbytes} B per sample{step}"
            lines.append(f"cross {value}: {ends} {way}")
        lines += [f"note  {text(note, _LONGEST)}" for note in self.notes]
        lines += [f"{decision.what} {decision.choice}: {text(decision.why, _LONGEST)}" for decision in self.decisions]
        if self.memory:
            columns = (*CATEGORIES, "headroom", "capacity")
            figures = [(f"{m.framework} {m.device}", *(covered(getattr(m, x)) for x in columns)) for m in self.memory]
            lines += table([("memory of", *CATEGORIES, "headroom", "of"), *figures])
        return "\n".join([*lines, *map(activation_line, self.activations)])


def activation_line(activations: NodeActivations) -> str:
    """Return a sentence about the memory that `remat` saves in a node."""
    rows = "" if activations.rows is None else f" of {number_of(activations.rows, 'row')}"
    start = f"remat {text(activations.node, _LONGEST)}: activations{rows} until the backward pass"
    if activations.kept is None or activations.without_remat is None or activations.saved is None:
        return f"{start} {NOT_COVERED}: {text(activations.gap, _LONGEST)}"
    share = f" ({100 * activations.saved / activations.without_remat:.0f} %)" if activations.without_remat else ""
    kept, without = size(activations.kept), size(activations.without_remat)
    return f"{start} {kept} instead of {without}, {covered(activations.saved)} saved{share}"


def covered(nbytes: int | None) -> str:
    """Return a number of bytes with its unit, or `not covered`."""
    if nbytes is None:
        return NOT_COVERED
    return f"-{size(-nbytes)}" if nbytes < 0 else size(nbytes)


def drawn_page(obj: Any, title: str, draw: Callable[[Any], Markup], shown: Callable[[], str]) -> str:
    """Return the page of a graph or a plan for a notebook: as `anyaccel-devtools` draws it, or else as text.

    Args:
        obj: The graph or the plan.
        title: Title of the text.
        draw: Function that takes what draws, and returns the page.
        shown: Function that returns the text.
    """

    def build() -> Markup:
        try:
            drawing = load(SETTINGS, "ModelGraph.visualize")
        except MissingDistributionError as error:
            lines = "\n".join(escaped(each, 400) for each in shown().splitlines())
            pre = element("pre", Markup(lines))
            return page(type(obj).__name__, title, line(faint(f"not drawn: {error}")), pre)
        return draw(drawing)

    return guarded(obj, build)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of text as aligned lines; the text of a cell stays on its line."""
    rows = [tuple(text(cell, _LONGEST) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _to_dict(entry: Any) -> dict[str, Any]:
    """Return the compared fields of a plan's entry or of a spec; the others are objects of backends."""
    kept = [item for item in fields(entry) if item.compare]
    values = {item.name: getattr(entry, item.name) for item in kept}
    left_out = {item.name for item in kept if item.metadata == LEFT_OUT and values[item.name] == item.default}
    return {name: _plain(value) for name, value in values.items() if name not in left_out}


def _plain(value: Any) -> Any:
    if isinstance(value, Device):
        return str(value)
    if isinstance(value, (TensorSpec, Rejection)):
        return _to_dict(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


# -- PlanDiff: what differs between two plans, entry by entry ----------------------------------------------------------


_Entry = Mapping[str, Any]
_KEYS: Mapping[str, tuple[str, Callable[[_Entry], str]]] = {
    "assignments": ("node", lambda entry: str(entry["node"])),
    "columns": ("column", lambda entry: f"{entry['name']} on {entry['device']}"),
    "crossings": ("crossing", lambda entry: f"{entry['value']} from {entry['source']} to {entry['target']}"),
    "segments": ("segment", lambda entry: str(entry["label"])),
    "memory": ("memory of", lambda entry: f"{entry['framework']} on {entry['device']}"),
    "activations": ("remat of", lambda entry: str(entry["node"])),
    "decisions": ("decision", lambda entry: str(entry["what"])),
}
"""What the entries of a list are called, and what makes them the same in two plans."""
_LONGEST_VALUE = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two plans: `what` differs, and its value in each plan, None if it is missing."""

    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{text(self.what, _LONGEST_VALUE)}: only in the {'second' if self.before is None else 'first'}"
        what, before, after = (text(value, _LONGEST_VALUE) for value in (self.what, self.before, self.after))
        return f"{what}: {before} -> {after}"


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences between two plans. It is false if there is no difference; `str()` has a line for each."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __len__(self) -> int:
        return len(self.differences)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.differences)

    def __str__(self) -> str:
        return "\n".join(map(str, self.differences)) or "the plans are equal"

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the differences as plain data."""
        return [
            {"what": difference.what, "before": difference.before, "after": difference.after}
            for difference in self.differences
        ]


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> PlanDiff:
    """Return the differences between two plans given as plain data."""
    differences = [
        Difference(name, before[name], after[name])
        for name in ("phase", "graph", "batch_size", "machine")
        if before[name] != after[name]
    ]
    for name, (what, key) in _KEYS.items():
        one, other = _keyed(before[name], key), _keyed(after[name], key)
        for entry in dict.fromkeys([*one, *other]):
            if entry not in one or entry not in other:
                differences.append(Difference(f"{what} {entry}", one.get(entry), other.get(entry)))
                continue
            for part in dict.fromkeys([*one[entry], *other[entry]]):
                values = one[entry].get(part), other[entry].get(part)
                if values[0] != values[1]:
                    shown_values = ["not covered" if value is None else value for value in values]
                    differences.append(Difference(f"{what} {entry}, {part}", *shown_values))
    notes = before["notes"], after["notes"]
    differences += [Difference(f"note {note!r}", note, None) for note in notes[0] if note not in notes[1]]
    differences += [Difference(f"note {note!r}", None, note) for note in notes[1] if note not in notes[0]]
    return PlanDiff(tuple(differences))


def _keyed(entries: Sequence[_Entry], key: Callable[[_Entry], str]) -> dict[str, _Entry]:
    """Return entries by their key; equal ones in one plan are numbered."""
    keyed: dict[str, _Entry] = {}
    for entry in entries:
        name, number = key(entry), 2
        while name in keyed:
            name, number = f"{key(entry)} ({number})", number + 1
        keyed[name] = entry
    return keyed


# -- plans as JSON: written with a version, and read from files of others without trust --------------------------------


FORMAT, VERSION = "anyaccel plan", 1
LARGEST = 16 << 20  # bytes


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parse the JSON text of a plan into plain data. No code is run, and size and depth are bounded.

    Raises:
        ConfigError: it is too large, not JSON, or of another format or version.
    """
    if not isinstance(text, (str, bytes)):
        raise ConfigError(f"{shown(text)} is not JSON text", hint="pass the text from plan.to_json()")
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(content) > LARGEST:
        raise ConfigError(f"the plan is too large: {len(content)} bytes", cause=f"at most {LARGEST} are read")
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise ConfigError(f"the plan is not JSON: {error}", hint="pass the text from plan.to_json()") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f"{shown(value, 80)} is not a plan", hint="pass the text from plan.to_json()")
    if value.get("version") != VERSION:
        problem = f"the plan has version {shown(value.get('version'), 40)}"
        raise ConfigError(problem, available=f"version {VERSION}", hint="create it again with this version of anyaccel")
    return {name: part for name, part in value.items() if name not in ("format", "version")}
