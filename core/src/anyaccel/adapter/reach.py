"""Which values of a segment gradients come back from, and which models each of them reaches."""

from __future__ import annotations

from collections.abc import Iterable

from anyaccel.adapter.layout import Layout
from anyaccel.segment import Segment


class Reach:
    """Facts of a segment for whoever differentiates it as a whole.

    Attributes:
        ends: values that losses or other segments take, and whose cotangents matter.
        learning: owners of trained operations.
        constant: owners whose parameters some operation takes as they are.
    """

    def __init__(self, segment: Segment, layout: Layout) -> None:
        self._judged = {term.label: layout.wanted.intersection(term.inputs) for term in segment.losses}
        judged = {name for term in segment.losses for name in term.inputs}
        self.ends = tuple(name for name in dict.fromkeys([*segment.outputs, *judged]) if name in layout.wanted)
        self.learning = {layout.owner[label] for label in layout.trained}
        self.constant = {owner for label, owner in layout.owner.items() if label not in layout.trained}
        self._owner = {label: layout.owner[label] for label in layout.trained}
        self._leads = _leads(segment, set(self.ends))

    def active(self, outputs: Iterable[str], losses: Iterable[str] | None = None) -> frozenset[str]:
        """The ends that gradients come from, if there are these losses (all by default) and cotangents for outputs."""
        judged = (self._judged[label] for label in (self._judged if losses is None else losses))
        return frozenset().union(*judged, (name for name in outputs if name in self.ends))

    def owners(self, active: frozenset[str]) -> set[str]:
        """The owners whose gradients come from these ends."""
        return {owner for label, owner in self._owner.items() if self._leads[label] & active}


def _leads(segment: Segment, ends: set[str]) -> dict[str, set[str]]:
    """By operation, the ends that depend on it."""
    found: dict[str, set[str]] = {}
    behind: dict[str, set[str]] = {}
    for op in reversed(segment.operations):
        found[op.label] = (ends & set(op.outputs)).union(*(behind.get(name, set()) for name in op.outputs))
        for name in op.inputs:
            behind.setdefault(name, set()).update(found[op.label])
    return found
