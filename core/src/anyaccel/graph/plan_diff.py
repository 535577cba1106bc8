"""PlanDiff: what differs between two plans, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyaccel.html import text

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
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs: `what` it is, and how it is in each plan, None where it is missing."""

    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{text(self.what, _LONGEST)}: only in the {'second' if self.before is None else 'first'}"
        return f"{text(self.what, _LONGEST)}: {text(self.before, _LONGEST)} -> {text(self.after, _LONGEST)}"


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The differences of two plans; false if there are none, and `str()` has a line for each."""

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
        """As plain data."""
        return [{"what": each.what, "before": each.before, "after": each.after} for each in self.differences]


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> PlanDiff:
    """The differences of two plans as plain data."""
    found = [
        Difference(name, before[name], after[name])
        for name in ("phase", "graph", "batch_size", "machine")
        if before[name] != after[name]
    ]
    for name, (what, key) in _KEYS.items():
        found += _of_list(what, _keyed(before[name], key), _keyed(after[name], key))
    notes = before["notes"], after["notes"]
    found += [Difference(f"note {note!r}", note, None) for note in notes[0] if note not in notes[1]]
    found += [Difference(f"note {note!r}", None, note) for note in notes[1] if note not in notes[0]]
    return PlanDiff(tuple(found))


def _keyed(entries: Sequence[_Entry], key: Callable[[_Entry], str]) -> dict[str, _Entry]:
    """Entries by what they are; those that are the same in one plan are numbered."""
    keyed: dict[str, _Entry] = {}
    for entry in entries:
        name, number = key(entry), 2
        while name in keyed:
            name, number = f"{key(entry)} ({number})", number + 1
        keyed[name] = entry
    return keyed


def _of_list(what: str, before: Mapping[str, _Entry], after: Mapping[str, _Entry]) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            yield Difference(f"{what} {name}", one, other)
            continue
        for field in dict.fromkeys([*one, *other]):
            values = one.get(field), other.get(field)
            if values[0] != values[1]:
                shown = ["not covered" if value is None else value for value in values]
                yield Difference(f"{what} {name}, {field}", *shown)
