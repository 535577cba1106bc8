"""The entries of a plan: where each node is computed, which columns are loaded, which values cross, and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from anyaccel.backend import ComputingBackend
from anyaccel.data.arrow_columns import up_to
from anyaccel.data.roles import brief
from anyaccel.device import Device
from anyaccel.graph.nodes import divided_layout
from anyaccel.html import listing
from anyaccel.segment import TensorSpec

LEVELS = ("node", "policy", "phase", "environment")
"""Who may ask for a device of a node; the first comes first."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A device that a node might have had: who asked for it (`node`, `policy`, `phase`, `environment`), and why not."""

    level: str
    wish: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The part of a plan about one node: a sentence, a table and notes.

    Attributes:
        title, summary: Title and sentence.
        head, rows: Head and rows of the table.
        notes: Notes on the figures.
        lines: All of it as lines of text.
    """

    title: str
    summary: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    lines: tuple[str, ...]


LEFT_OUT: Mapping[str, bool] = {"left out": True}
"""Metadata of fields that plain data lack where they have their default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The device, backend and reason of a node.

    Attributes:
        device, native_name: The device, and the framework's own name for it.
        backend, native_device: The backend that computes the node, and its own handle of the device (`torch.device`,
            ...). They are looked up once, and are neither compared nor part of `Plan.to_dict`; both are None in a
            loaded plan.
        reason: The deciding level: `node`, `policy`, `phase`, `environment`, `default`, `fallback`, or, for a
            ConcatNode, `neighbour`.
        requested: The device as written; the policy's name; for a ConcatNode the neighbour's label.
        parameters, nbytes: Number and bytes of the model's parameters.
        precision: Precision of the computation; `""` for that of the model.
        precision_reason: Who set it, `node` or `phase`; `""` for no one.
        sharding: How its parameters are sharded when replicas train it, `"none"` for a full copy; `""` if not set.
        sharding_reason: Who set it, `node` or `phase`; `""` for no one.
        offload: Places of the blocks of its model, and of offloaded weights; None if everything is on the device.
        recomputed: Parts of the model whose values are computed again in the backward pass; `("",)` for all of it.
        rejected: Other requested or available devices, and why they were not chosen.
    """

    node: str
    framework: str
    device: Device
    native_name: str
    reason: str
    backend: ComputingBackend = field(compare=False, repr=False)
    native_device: Any = field(default=None, compare=False, repr=False)
    requested: str = ""
    pinned: bool = False
    frozen: bool = False
    parameters: int = 0
    nbytes: int = 0
    precision: str = ""
    precision_reason: str = ""
    recomputed: tuple[str, ...] = ()
    sharding: str = field(default="", metadata=LEFT_OUT)
    sharding_reason: str = field(default="", metadata=LEFT_OUT)
    rejected: tuple[Rejection, ...] = ()
    offload: Any = field(default=None, metadata=LEFT_OUT)

    @property
    def resident_nbytes(self) -> int:
        """Bytes that its parameters take on its device."""
        return self.nbytes if self.offload is None else int(self.offload.device_bytes.get(str(self.device), 0))

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of the plan about the node, below its tables."""
        return () if self.offload is None else (self.offload.section(self.node),)


def where_text(assignment: Assignment) -> str:
    """Return where a node is computed, and in which precision: `on gpu:0 (torch) in bf16-mixed`."""
    precision = f" in {assignment.precision}" if assignment.precision else ""
    return f"on {assignment.device} ({assignment.framework}){precision}"


def described(assignment: Assignment) -> str:
    """Return why a node has its device, precision and sharding, and what of it is recomputed, to follow `because`."""
    requested = assignment.requested
    why = {
        "node": f"its own accelerator is {requested!r}",
        "phase": f"the phase requests {requested!r}, and the node requests no device",
        "neighbour": f"it goes with {requested!r}",
        "policy": f"the policy {requested!r} chose it",
        "environment": f"neither the node nor the phase requests a device, and {requested!r} is set",
        "default": "neither the node nor the phase requests a device",
        "fallback": f"the phase requests {requested!r}, but no installed plugin runs {assignment.framework} there",
    }.get(assignment.reason, assignment.reason)
    asked = "the node requests it" if assignment.precision_reason == "node" else "the phase requests it"
    precision = f"; it is computed in {assignment.precision}, because {asked}" if assignment.precision else ""
    recomputed = f"; {_recomputed(assignment)} recomputed in the backward pass" if assignment.recomputed else ""
    who = "the node requests it" if assignment.sharding_reason == "node" else "the phase requests it"
    kept = "whole" if assignment.sharding == "none" else "divided"
    sharding = f"; replicas keep its parameters {kept}, because {who}" if assignment.sharding else ""
    return why + precision + recomputed + sharding


def _recomputed(assignment: Assignment) -> str:
    if assignment.recomputed == ("",):
        return "all is"
    return f"{number_of(len(assignment.recomputed), 'part')} {'is' if len(assignment.recomputed) == 1 else 'are'}"


def numbers_text(assignment: Assignment) -> str:
    """Return how a node is computed, for a table: its precision, who decided, and how many parts are recomputed."""
    text = f"{assignment.precision} ({assignment.precision_reason})" if assignment.precision else ""
    recomputed = f"{_recomputed(assignment).split()[0]} recomputed" if assignment.recomputed else ""
    return ", ".join(filter(None, (text, recomputed)))


OPTIONAL_COLUMNS: Mapping[str, Callable[[Assignment], str]] = {
    "precision": numbers_text,
    "sharding": lambda it: f"{it.sharding} ({it.sharding_reason})" if it.sharding else "",
}
"""Columns of the table of nodes that a plan shows if one of the nodes has such a text."""


def number_of(number: int, what: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def layouts(assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Return the nodes whose models are not whole on their device, each with where its blocks are."""
    divided = {}
    for assignment in assignments:
        if assignment.offload is not None:
            divided[assignment.node] = assignment.offload
    return divided


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Columns of a feature set, joined to one value and loaded to a device.

    Attributes:
        stored, spec: Specs of the data, and of their arrival: floating values in the receiving model's dtype, class
            indices in the backend's index dtype, axes of extent 1 aligned with the output that a target is compared to.
        backend, native_device: Backend and device object of the node that receives it; neither compared nor part of
            `Plan.to_dict`.
        stream: The stream of the sampler that its rows come from, `""` for the first.
        joined: Columns of several that change their dtype to be joined, such as `b int64 as float64`.
        ragged: Whether its rows differ in length, and each batch is padded to its own longest: the first extent of
            `stored` and `spec` is then that of the longest of all.
    """

    name: str
    feature_set: str
    columns: tuple[str, ...]
    framework: str
    device: Device
    spec: TensorSpec
    stored: TensorSpec
    backend: ComputingBackend = field(compare=False, repr=False)
    native_device: Any = field(default=None, compare=False, repr=False)
    pinned: bool = False
    role: str = "features"
    stream: str = ""
    joined: tuple[str, ...] = ()
    ragged: bool = False

    @property
    def shown(self) -> str:
        """The human-readable name; for many columns, the name of the first."""
        prefix = f"{self.feature_set}."
        return f"{prefix}{brief(self.columns)}{self.name[len(prefix) + len('+'.join(self.columns)) :]}"

    @property
    def spec_text(self) -> str:
        """The human-readable spec; for rows that differ in length, with the length of the longest: `int64[<=18]`."""
        return up_to(self.spec) if self.ragged else str(self.spec)

    @property
    def change(self) -> str:
        """The conversion of the column, `""` for none."""
        parts = [listing(self.joined, 3)] if self.joined else []
        if self.stored.dtype != self.spec.dtype:
            parts.append(f"{self.stored.dtype} to {self.spec.dtype}")
        if self.stored.shape != self.spec.shape:
            parts.append(f"{list(self.stored.shape)} to {list(self.spec.shape)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A value that is copied from one device or framework to another in every step; `nbytes` counts one sample.

    `target` is the first node that takes it there. If `gradient` is true, the value's cotangent is returned to the node
    that produced the value. `route` is move, share, copy or host; see `anyaccel.graph.resolve`.
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
    """A segment of the plan, by its nodes, which one backend computes in one call."""

    label: str
    framework: str
    nodes: tuple[str, ...]


# -- figures: memory of each device by category, and the decisions for the whole phase ---------------------------------


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


# -- entries from plain data -------------------------------------------------------------------------------------------


_DEVICES, _SPECS, _TUPLES = (
    ("device", "origin", "destination"),
    ("spec", "stored"),
    ("columns", "joined", "nodes", "recomputed"),
)
_NOT_COMPARED = ("backend", "native_device")


def read_entry(cls: type, saved: Mapping[str, Any]) -> Any:
    """Return an entry of a plan from plain data; its backend is None.

    Raises:
        KeyError, TypeError, ValueError: malformed.
    """
    plain = dict(saved)
    read: dict[str, Any] = {
        **{name: Device.parse(plain.pop(name)) for name in _DEVICES if name in plain},
        **{name: tuple(_list(plain.pop(name))) for name in _TUPLES if name in plain},
    }
    for name in _SPECS:
        if shape_and_dtype := plain.pop(name, None):
            spec = read[name] = TensorSpec(tuple(shape_and_dtype["shape"]), shape_and_dtype["dtype"])
            if not isinstance(spec.dtype, str) or not all(type(size) is int and size >= 0 for size in spec.shape):
                raise TypeError("a shape must contain ints, and a dtype must be text")
    if "rejected" in plain:
        rejected = [_checked(Rejection(**entry)) for entry in _list(plain.pop("rejected"))]
        for rejection in rejected:
            if rejection.level not in LEVELS:
                raise ValueError(f"{rejection.level!r} is not one of {', '.join(LEVELS)}")
        read["rejected"] = tuple(rejected)
    if plain.get("offload") is not None:
        read["offload"] = divided_layout().read(plain.pop("offload"))
    for name in _NOT_COMPARED:
        if name in plain:
            raise ValueError(f"{name!r} is not part of a saved plan")
    backend = {"backend": None} if any(attribute.name == "backend" for attribute in fields(cls)) else {}
    return _checked(cls(**plain, **read, **backend))


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{type(value).__name__} instead of a list")
    return value


def _checked(entry: Any) -> Any:
    """Return an entry that was read, whose fields have the types that are declared."""
    for item in fields(entry):
        value, declared = getattr(entry, item.name), item.type
        kind = {"str": str, "int": int, "bool": bool}.get(str(declared))
        wrong = kind is not None and type(value) is not kind
        if declared == "tuple[str, ...]":
            wrong = not all(isinstance(item, str) for item in value)
        if wrong or (kind is int and value < 0):
            raise TypeError(f"{item.name} is {type(value).__name__}, not {declared}")
    return entry
