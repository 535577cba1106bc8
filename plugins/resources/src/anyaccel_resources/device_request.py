"""DeviceRequest: the devices that a user asks for, as a value."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from anyaccel.arguments import flag, shown
from anyaccel.call_hints import class_hints
from anyaccel.errors import ArgumentError, ConfigError, DeviceParseError
from anyaccel.registry import registry
from anyaccel_resources.allocation import Allocation, allocate
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.exports import export
from anyaccel_resources.grammar import MOST_ENTRIES, parsed
from anyaccel_resources.inventory import Inventory


@class_hints
@dataclass(frozen=True, slots=True, repr=False)
class DeviceRequest:
    """A request for devices: one alternative, several in order of preference, or the best of several.

    `str()` returns text that parses back to an equal value.

    Attributes:
        entries: The alternatives.
        ordered: Whether they are in order of preference; otherwise the best device of all of them is taken.

    Example:
        >>> import anyaccel as aa
        >>> request = aa.DeviceRequest.parse("H100:8, A100-80GB:8")
        >>> request.resolve("8x A100-80GB").chosen.label
        '8x A100-80GB'
    """

    entries: tuple[RequestEntry, ...]
    ordered: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.entries, tuple):
            problem = f"the entries of a DeviceRequest are {shown(self.entries)}, not a tuple of RequestEntry objects"
            text = self.entries if isinstance(self.entries, str) else "H100:8, any"
            raise ArgumentError(problem, hint=f"write DeviceRequest.parse({text!r})")

    def __str__(self) -> str:
        text = ", ".join(map(str, self.entries))
        return text if self.ordered else f"{{{text}}}"

    def __repr__(self) -> str:
        return f"DeviceRequest.parse({str(self)!r})"

    @classmethod
    def parse(cls, value: Any) -> DeviceRequest:
        """Parse a request.

        Args:
            value: Text such as `"H100:8"` or `"H100, A100-80GB, any"`; a list of such texts, in order of preference; a
                set of them, to use the best of them; or a DeviceRequest. A list of single devices of one kind,
                `["gpu:0", "gpu:1"]`, means all of them: `"gpu:0+1"`.

        Raises:
            DeviceParseError: not a request; the message names the character, and suggests a correction.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            _refuse_retired_form(value)
            return cls._of(*parsed(value, _kinds))
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise _not_a_request(value)
        if not 1 <= len(value) <= MOST_ENTRIES or not all(isinstance(text, str) for text in value):
            raise _not_a_request(value)
        entries = tuple(map(_single, value))
        single = all(entry.is_plain and entry.index is not None for entry in entries)
        distinct = len({entry.index for entry in entries}) == len(entries) > 1
        is_ordered = isinstance(value, (list, tuple))
        if is_ordered and single and distinct and len({entry.kind for entry in entries}) == 1:
            first, *others = entries
            return cls._of(
                (replace(first, more=tuple(entry.index for entry in others if entry.index is not None)),), ordered=True
            )
        return cls._of(entries, is_ordered)

    @classmethod
    def _of(cls, entries: tuple[RequestEntry, ...], ordered: bool) -> DeviceRequest:
        """Without an order of preference, entries are sorted: equal sets are equal requests."""
        distinct = entries if ordered else tuple(sorted(set(entries), key=str))
        return cls(distinct, ordered or len(distinct) == 1)

    @property
    def count(self) -> int:
        """Number of devices of the first alternative; 1 if it asks for all available ones."""
        return self.entries[0].count + len(self.entries[0].more)

    def resolve(self, on: Inventory | str | None = None, *, strict: bool = False) -> Allocation:
        """Return which devices of a machine the request gets, and why not the others.

        Args:
            on: An inventory, one in words (`"8x H100-80GB"`), or None for this machine.
            strict: The first alternative or nothing.

        Raises:
            ConfigError: `on` is not an inventory.
        """
        flag(ConfigError, "", "strict", strict)
        machine = Inventory.detect() if on is None else Inventory.parse(on)
        return allocate(self.entries, self.ordered, machine, strict=strict, asked=str(self))

    def export(self, to: str) -> Any:
        """Return the request in the format of a scheduler, as plain data.

        Args:
            to: `"modal"` (the value of `gpu=`), `"skypilot"` (the content of `resources:`), `"ray"` (options of tasks),
                `"slurm"` (options of sbatch), `"kubernetes"` (limits and node selector), `"gke"` (the same for Google's
                clusters) or `"dra"` (a ResourceClaim).

        Raises:
            ConfigError: another format, or the scheduler cannot express an alternative.
        """
        return export(self.entries, self.ordered, to)


def with_count(request: DeviceRequest, count: int) -> DeviceRequest:
    """Return the same request for `count` devices, if it is for one without an index."""
    entries = (replace(e, count=count) if e.index is None and not e.every else e for e in request.entries)
    return DeviceRequest(tuple(entries), request.ordered)


def _single(text: str) -> RequestEntry:
    entries, _ = parsed(text, _kinds)
    if len(entries) > 1:
        problem = f"{text!r} in a list of requests contains several"
        raise DeviceParseError(problem, hint="write each as a separate element")
    return entries[0]


_RETIRED = re.compile(r"\s*(?:modal\.)?gpu\.([A-Za-z0-9]+)\((.*)\)\s*")


def _refuse_retired_form(value: str) -> None:
    """Refuse a GPU object of Modal, `modal.gpu.A100(size="80GB", count=2)`, an earlier form of requests there."""
    retired = _RETIRED.fullmatch(value[:200])
    if retired is None:
        return
    product, arguments = retired.groups()
    size = re.search(r"size\s*=\s*['\"]?(\d+)", arguments)
    count = re.search(r"count\s*=\s*(\d+)", arguments)
    text = f"{product.upper()}{f'-{size.group(1)}GB' if size else ''}{f':{count.group(1)}' if count else ''}"
    problem = f"the request {shown(value)}, character 1: objects of modal.gpu are retired"
    raise DeviceParseError(problem, hint=f"write '{'any' if product == 'Any' else text}'")


def _kinds() -> Collection[str]:
    """Return kinds of device that installed plugins serve."""
    return sorted({kind for backend in registry().backends for kind in backend.kinds})


def _not_a_request(value: Any) -> DeviceParseError:
    available = "text, a list of texts in order of preference, or a set of them"
    hint = "write 'any'"
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        hint = f"write {{{', '.join(repr(f'{name}:{count}') for name, count in value.items())}}}"
    return DeviceParseError(f"{shown(value)} is not a request for devices", available=available, hint=hint)
