"""Row alignment: nodes that combine several feature sets must get equally many rows of each in every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.resolve import named_column
from anyaccel.metrics import BoundMetric
from anyaccel.phases.loading.epoch_plan import StepRows

Combination = tuple[str, frozenset[str]]
"""What combines feature sets, for messages, and their labels."""


def check_alignment(
    label: str, steps: Iterable[StepRows], combinations: Sequence[Combination], *, by_sampler: bool
) -> None:
    """Check the rows of every step.

    Args:
        label: Label of the phase.
        steps: Rows of each step.
        combinations: Nodes that combine feature sets; see `combinations_of`.
        by_sampler: Whether samplers decide the rows of a step.

    Raises:
        PhaseError: a step takes different numbers of rows of feature sets that are combined.
    """
    for step in steps:
        for what, sets in combinations:
            sizes = {}
            for name in sorted(sets):
                start, stop = step.get(name, (0, 0))
                sizes[name] = stop - start
            if len(set(sizes.values())) > 1 and any(sizes.values()):
                sampled = (
                    "use the same batch size (and drop_last=True) for their samplers, and the same number of "
                    "rows in the data"
                )
                sampled = sampled if all(sizes.values()) else "combine them by schedule='zip_strict'"
                raise PhaseError(
                    f"phase {label!r}: {what} combines {' and '.join(sizes)}, but a step has different numbers of "
                    "rows of them",
                    cause=", ".join(f"{name}: {size or 'none'}" for name, size in sizes.items()),
                    hint=sampled if by_sampler else "use the same number of rows in all of them",
                )


def combinations_of(
    learners: Iterable[str],
    losses: Iterable[AppliedLoss],
    metrics: Iterable[BoundMetric],
    plan: Plan,
    graph: ModelGraph,
) -> Iterator[Combination]:
    """Yield the nodes, losses and metrics that combine several feature sets."""
    for assignment in plan.assignments:
        yield from _several(f"node {assignment.node!r}", _sets_of(assignment.node, graph))
    for label in learners:
        yield from _several(f"node {label!r}", _sets_of(label, graph))
    for loss in losses:
        sets = set[str]()
        for text in (*loss.inputs, *loss.weights):
            label = text.partition(".")[0]
            column = None
            if label not in graph.nodes and text != "targets" and label != "outputs":
                column = named_column(text, graph.nodes)
            if column is None:
                sets |= _sets_of(label if label in graph.nodes else loss.on, graph)
            else:
                sets.add(column.feature_set.label)
        yield from _several(f"the loss {loss.label!r}", sets)
    for metric in metrics:
        if metric.node in graph.nodes:
            yield from _several(f"the metric {metric.label!r}", _sets_of(metric.node, graph) | {metric.feature_set})


def _several(what: str, sets: set[str]) -> Iterator[Combination]:
    if len(sets) > 1:
        yield what, frozenset(sets)


def _sets_of(node: str, graph: ModelGraph) -> set[str]:
    return {reference.feature_set.label for reference in topology.references(node, graph.nodes)}
