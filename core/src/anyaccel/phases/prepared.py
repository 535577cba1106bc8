"""What is known of a phase, or of its validation, before anything moves: its rows, its epochs, its data in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial

from anyaccel.data import BatchSource, FeatureSet, Rows, SimpleSampler, Source
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan, Resolution, topology
from anyaccel.phases.estimator_partial_fit import learning
from anyaccel.phases.evaluation import Judgement
from anyaccel.phases.kinds import EvalPhase, FitPhase, TrainPhase
from anyaccel.phases.loading import (
    Batching,
    Provision,
    RowsProvision,
    SourceProvision,
    device_columns,
    of_drawing,
    of_sight,
)
from anyaccel.phases.loading.epoch_batches import Drawing
from anyaccel.phases.loading.input_data import rows_given
from anyaccel.phases.loading.sight import Sight
from anyaccel.phases.loading.taking import drawn, rows_of
from anyaccel.phases.parts import judgements_of, parts_of, sets_of
from anyaccel.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Prepared:
    """One part of a phase.

    Attributes:
        part: the phase, or its validation.
        rows: its data by feature set, as they were given; of a source an example.
        draw: what its samplers take of them; None where a source decides.
        judgements: its metrics, bound.
        provision: its columns in host memory, or behind a source, and how its epochs go.
    """

    part: Phase
    rows: Mapping[str, Rows]
    draw: Drawing | Sight | None
    judgements: Sequence[Judgement]
    provision: Provision

    @property
    def sight(self) -> Sight:
        """What an evaluation, or a fit, looks at."""
        assert isinstance(self.draw, Sight)
        return self.draw

    @property
    def nbytes(self) -> int:
        """Bytes of all columns that are in host memory."""
        return sum(self.provision.nbytes().values())


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is taken of the data of one part, without a look at their values."""

    part: Phase
    rows: Mapping[str, Rows]
    draw: Drawing | Sight | None
    judgements: Sequence[Judgement]
    batching: Batching | None
    source: Source | None


def prepare(
    phase: Phase,
    resolution: Resolution,
    graph: ModelGraph,
    done: Collection[str] = (),
    kept: MutableMapping[tuple[str, str], FeatureSet] | None = None,
) -> list[Prepared]:
    """All parts of a phase, itself first.

    Args:
        phase, resolution, graph: what is prepared.
        done: labels of the nodes that a FitPhase has fitted.
        kept: what was read of sources for this phase before, which need not give it again.

    Raises:
        AnyaccelError: data, samplers, metrics or columns that do not fit.
    """
    plan = resolution.plan
    classes, known = device_columns.class_counts(resolution), topology.feature_sets(graph.nodes.values())
    found = [_taken(phase, part, plan, graph, done, read=True, kept=kept) for part in parts_of(phase)]
    return [
        Prepared(one.part, one.rows, one.draw, one.judgements, _provision(plan, one, classes, known)) for one in found
    ]


def check(phase: Phase, plan: Plan, graph: ModelGraph) -> None:
    """Make sure of all that can be known without the data's values.

    Raises:
        AnyaccelError: data, samplers or metrics that do not fit.
    """
    for part in parts_of(phase):
        _taken(phase, part, plan, graph, (), read=False)


def _taken(
    phase: Phase,
    part: Phase,
    plan: Plan,
    graph: ModelGraph,
    done: Collection[str],
    *,
    read: bool,
    kept: MutableMapping[tuple[str, str], FeatureSet] | None = None,
) -> _Taken:
    judgements = judgements_of(phase, part, graph)
    sets = sets_of(phase, plan, judgements, graph, done)
    data, source = rows_given(part, sets, read=read, kept=kept)
    rows = rows_of(part, sets, data)
    if source is not None:
        _check_source(phase, part, source, graph)
    if isinstance(source, BatchSource):
        return _Taken(part, rows, None, judgements, None, source)
    draw = drawn(phase, part, rows, judgements, plan, graph)
    return _Taken(part, rows, draw, judgements, _batching(part, draw), source)


def _check_source(phase: Phase, part: Phase, source: Source, graph: ModelGraph) -> None:
    if learning(phase, graph):
        raise PhaseError(
            f"phase {phase.label!r} streams the source {source.label!r}, from which estimators cannot learn",
            available=f"nodes that learn by partial_fit: {', '.join(learning(phase, graph))}",
            hint="freeze them, or read the source into memory: FeatureSet.from_dict(...)",
        )
    if phase.residency == "resident":
        raise PhaseError(
            f"phase {phase.label!r}: residency='resident', and its data are the source {source.label!r}",
            available="a source is streamed",
            hint="leave residency out, or read the source into memory: FeatureSet.from_dict(...)",
        )
    if isinstance(source, BatchSource):
        _check_sampler(part, source)


def _check_sampler(part: Phase, source: Source) -> None:
    """A batch size may be the default; whoever gives another sampler means it."""
    assert isinstance(part, TrainPhase)
    samplers = part.sampler.values() if isinstance(part.sampler, Mapping) else [part.sampler]
    strange = [type(one).__name__ for one in samplers if type(one) is not SimpleSampler]
    if strange:
        raise PhaseError(
            f"phase {part.label!r} has a {strange[0]}, and its data are the source {source.label!r}",
            available="a source of batches decides itself which rows make a batch",
            hint="leave the sampler out, give MapSource(...), or read the source into memory: FeatureSet.from_dict(...)",
        )


def _batching(part: Phase, draw: Drawing | Sight) -> Batching:
    if isinstance(draw, Drawing):
        assert isinstance(part, TrainPhase)
        return of_drawing(part.label, draw, part.accumulate)
    assert isinstance(part, (EvalPhase, FitPhase))
    return of_sight(draw, part.batch_size if isinstance(part, EvalPhase) else part.sampler.batch_size)


def _provision(plan: Plan, taken: _Taken, classes: Mapping[str, int], known: Mapping[str, FeatureSet]) -> Provision:
    if taken.source is not None:
        assert isinstance(taken.part, TrainPhase)
        example = dict.fromkeys(taken.rows, taken.source.example)
        device_columns.prepare(plan, example, classes, known)  # made sure of before anything moves
        return SourceProvision(plan, taken.source, classes, taken.part.accumulate, taken.batching)
    assert taken.batching is not None
    again = partial(device_columns.prepare, plan, taken.rows, classes, known)
    return RowsProvision(plan, again(), again, taken.batching)
