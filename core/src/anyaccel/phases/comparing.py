"""Comparing: which columns of the data the values of a graph stand for, by what a phase compares them with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from anyaccel.errors import ColumnError
from anyaccel.graph import ModelGraph, columns
from anyaccel.phases.phase import Phase
from anyaccel.recipes import AppliedLoss

Compared = tuple[str, tuple[str, ...]]
"""Label of a feature set, with `@STREAM` where a sampler draws them by another stream, and names of its columns."""


def compared(phase: Phase, graph: ModelGraph, values: Iterable[str]) -> dict[str, Compared]:
    """What each value (a node's label, or `label.OUTPUT`) is compared with; those that are with nothing are left out.

    A loss of the phase on the node says so, else a metric that names a column, else it is the targets of the data
    that feed the node.
    """
    found = {value: _columns(phase, graph, value) for value in values}
    return {value: one for value, one in found.items() if one is not None}


def _columns(phase: Phase, graph: ModelGraph, value: str) -> Compared | None:
    node = value.partition(".")[0]
    for text in _texts(phase, node, value):
        try:
            whole = columns.targets_of(AppliedLoss("mse", on=node), graph.nodes) if text == "targets" else None
            chosen = whole or columns.named_column(text, graph.nodes)
        except ColumnError:
            continue
        if chosen is not None:
            return f"{chosen.source.label}{_drawn(phase, chosen)}", chosen.names
    return None


def _drawn(phase: Phase, chosen: columns.Chosen) -> str:
    """`@STREAM` where the rows of an EvalPhase are another stream's; without a sampler all streams are the rows."""
    samplers = getattr(phase, "sampler", None)
    sampler = samplers.get(chosen.source.label) if isinstance(samplers, Mapping) else samplers
    streams: tuple[str, ...] = getattr(sampler, "streams", ())
    return f"@{chosen.stream}" if chosen.stream in streams[1:] else ""


def _texts(phase: Phase, node: str, value: str) -> Iterator[str]:
    """What may name the columns, the surest first."""
    own = {"outputs", value, f"outputs.{value.partition('.')[2]}"}
    for loss in phase.losses:
        if loss.on == node and own & set(loss.inputs):
            yield from (text for text in loss.inputs if text not in own)
    for metric in getattr(phase, "metrics", ()):
        if metric.on in (None, node) and metric.targets != "targets":
            yield metric.targets
    yield "targets"
