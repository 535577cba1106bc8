"""Remat figures: what nodes with `remat` keep until their backward pass, with it and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from anyaccel.adapter.step_costs import StepCosts
from anyaccel.backend import ComputingBackend
from anyaccel.graph import NodeActivations, Resolution
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.settings import PhaseSettings
from anyaccel.phases.traceback_cleanup import release_frames
from anyaccel.segment import Segment


def remat_figures(
    phase: PhaseSettings, resolution: Resolution, parts: Sequence[DrawnPart]
) -> Iterator[NodeActivations]:
    """The activations of each trained node with `remat`; no device is used.

    Args:
        phase: bound.
        resolution: has the segments.
        parts: the phase and its validation.
    """
    if not phase.trains:
        return
    rows, why = _rows(resolution, parts)
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        nodes = _recomputed_nodes(segment)
        if nodes and rows is not None:
            yield from _of_segment(segment, backend, nodes, rows)
        else:
            yield from (NodeActivations(node=node, rows=None, gap=why) for node in nodes)


def _rows(resolution: Resolution, parts: Sequence[DrawnPart]) -> tuple[int | None, str]:
    """The most rows that are computed together, or why that is not known."""
    epochs = parts[0].epochs if parts else None
    if epochs is None or any(column.ragged for column in resolution.plan.columns):
        return None, "the size of a batch is not known"
    return max(min(each.batch_size, each.microbatch_size or each.batch_size) for each in epochs.epoch(0).steps), ""


def _recomputed_nodes(segment: Segment) -> list[str]:
    precision = segment.precision
    if precision is None:
        return []
    return [op.label for op in segment.operations if op.trainable and precision.remat(op.label)]


def _of_segment(
    segment: Segment, backend: ComputingBackend, nodes: Sequence[str], rows: int
) -> Iterator[NodeActivations]:
    assert segment.precision is not None
    unknown = partial(NodeActivations, rows=rows)
    costs = backend.capability(StepCosts)
    if costs is None:
        why = f"the plugin of {backend.framework} does not tell the activations of a node"
        yield from (unknown(node=node, gap=why) for node in nodes)
        return
    plain = replace(segment, precision=replace(segment.precision, recomputed=()))
    try:
        kept, without = costs.activations(segment, rows), costs.activations(plain, rows)
    except Exception as error:  # of a user's model, which may take no tensors without values
        release_frames(error)
        why = f"measuring a step failed: {type(error).__name__}: {error}"
        yield from (unknown(node=node, gap=why) for node in nodes)
        return
    for node in nodes:
        gap = "" if node in kept and node in without else f"the plugin of {backend.framework} does not tell it"
        yield unknown(node=node, kept=kept.get(node), without_remat=without.get(node), gap=gap)
