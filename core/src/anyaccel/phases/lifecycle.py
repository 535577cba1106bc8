"""The lifecycle of a phase: resolve, place, load, build, run, release, and the moments in between."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

from anyaccel.backend import Program
from anyaccel.data import FeatureSet
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan, Request, Resolution, resolve, sharing, wiring
from anyaccel.phases import fitting, loading, nans
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.chain import Chain
from anyaccel.phases.drawing import Drawing
from anyaccel.phases.evaluating import Figures, Judgement, evaluate, judged
from anyaccel.phases.failure import forget
from anyaccel.phases.kinds import EvalPhase, FitPhase, TrainPhase
from anyaccel.phases.learners import Learners, learning
from anyaccel.phases.links import Link
from anyaccel.phases.moments import Moments
from anyaccel.phases.phase import Phase
from anyaccel.phases.placing import afterwards, place, warn
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.sight import Sight
from anyaccel.phases.taking import drawn, rows_of, streams_of
from anyaccel.phases.training import Training
from anyaccel.recipes import AppliedLoss
from anyaccel.registry import registry
from anyaccel.segment import Segment

# While a phase is at work its programs hold the state; what anybody else would see or leave in the models is not it.
_AT_WORK: MutableMapping[ModelGraph, Run] = weakref.WeakKeyDictionary()


def plan_of(phase: Phase, graph: ModelGraph) -> Plan:
    """The plan of a phase on a graph, without doing anything.

    Raises:
        AnyaccelError: whatever stands in the way.
    """
    plan = fitting.noted(phase, resolve(graph, _request(phase, graph)).plan, graph)
    for part in _parts(phase):
        judgements = _judgements(phase, part, graph)
        drawn(phase, part, rows_of(part, _sets(phase, plan, judgements, graph)), judgements, plan, graph)
    return plan


def execute(run: Run, callbacks: Iterable[Callback] = (), progress: Progress | None = None) -> Figures | None:
    """Carry out the phase of a run on its graph. `run` holds what is complete, whatever happens.

    Returns:
        the figures of an EvalPhase; None for a TrainPhase, whose figures are in `run.history`.

    Raises:
        AnyaccelError: whatever stands in the way; PhaseError if the graph is at work in another phase.
    """
    execution = _Execution(run, Moments(registry().hooks, [*callbacks, *run.phase.callbacks]), progress or Progress())
    try:
        _begin(run)
        return execution.run()
    except BaseException as error:
        run.error = error
        raise
    finally:
        try:
            execution.end()
        except KeyboardInterrupt as interrupt:  # it may have come before anything was given back
            execution.end(interrupt)
            raise


def _begin(run: Run) -> None:
    other = _AT_WORK.setdefault(run.graph, run)
    if other is not run:
        raise PhaseError(
            f"phase {run.phase.label!r} cannot begin: graph {run.graph.label!r} is at work in {other.phase.label!r}",
            remedy="evaluate with TrainPhase(validation=...), or when that phase has ended",
        )


class _Execution:
    """One way through the house."""

    def __init__(self, run: Run, moments: Moments, progress: Progress) -> None:
        self._run = run
        self._phase: Phase = run.phase
        self._graph = run.graph
        self._moments = moments
        self._progress = progress
        self._chain: Chain | None = None
        self._learners: Learners | None = None
        self._afterwards: dict[str, Device] = {}

    def run(self) -> Figures | None:
        phase, graph = self._phase, self._graph
        self._moments.call("phase_start", phase=phase, run=self._run)
        if not isinstance(phase, FitPhase):
            return self._round()
        with fitting.awaiting(fitting.left(phase, graph), graph):
            done = self._round()
            while fitting.left(phase, graph, self._run.done):  # what these need is known only now
                self._let_go()
                done = self._round()
        return done

    def _round(self) -> Figures | None:
        """From a plan to its end. A FitPhase has several rounds where estimators wait for each other."""
        phase, graph = self._phase, self._graph
        resolution = resolve(graph, _request(phase, graph, self._run.done))
        plan = self._run.plan = fitting.noted(phase, resolution.plan, graph, self._run.done)
        judgements = {part: _judgements(phase, part, graph) for part in _parts(phase)}
        rows = {
            part: rows_of(part, _sets(phase, plan, judgements[part], graph, self._run.done)) for part in _parts(phase)
        }
        draws = {part: drawn(phase, part, its, judgements[part], plan, graph) for part, its in rows.items()}
        own = draws[phase]
        self._run.rows = own.rows if isinstance(own, Sight) else rows[phase]
        self._learners = Learners(phase, graph, rows[phase], streams_of(phase, graph))
        classes, known = loading.class_counts(resolution), wiring.feature_sets(graph.nodes.values())
        arrays = {part: loading.prepare(plan, found, classes, known) for part, found in rows.items()}
        strange = nans.notes(phase, plan, resolution.segments, rows[phase], arrays[phase])
        plan = self._run.plan = replace(plan, notes=(*plan.notes, *strange))
        later = afterwards(phase, plan)
        sharing.share(plan, registry())
        self._moments.call("before_placement", phase=phase, plan=plan, run=self._run)
        warn(plan)
        nans.warn(phase.label, strange)
        self._afterwards.update(later)
        place(graph, {one.node: one.device for one in plan.assignments})
        self._moments.call("after_placement", phase=phase, plan=plan, run=self._run)
        nbytes = sum(array.nbytes for its in arrays.values() for array in its.values())
        self._progress.loading(f"the data of {phase.label}", nbytes)
        feeds = {part: loading.load(plan, one) for part, one in arrays.items()}
        del arrays
        self._chain = _build(resolution, graph)
        self._run.attach(self._chain)
        graph.refresh = partial(self._chain.publish, graph.optimizer_states)
        self._moments.call("after_loading", phase=phase, plan=plan, run=self._run)
        return self._loop(resolution, feeds, draws, judgements)

    def _loop(
        self,
        resolution: Resolution,
        feeds: Mapping[Phase, loading.Feed],
        draws: Mapping[Phase, Drawing | Sight],
        judgements: Mapping[Phase, Sequence[Judgement]],
    ) -> Figures | None:
        assert self._chain is not None
        phase, chain = self._phase, self._chain
        evaluation = partial(self._evaluate, chain, feeds, draws, judgements, resolution.shapes.outputs)
        if isinstance(phase, EvalPhase):
            self._run.evaluation = evaluation(phase)
            return self._run.evaluation
        if isinstance(phase, FitPhase):
            sight = draws[phase]
            assert isinstance(sight, Sight)
            return self._fit(phase, chain, feeds[phase], sight, resolution.shapes.outputs)
        drawing = draws[phase]
        assert isinstance(phase, TrainPhase) and isinstance(drawing, Drawing)
        if self._learners:
            drawing.listener = self._learners.begin
            chain.teach(self._learners)
        training = Training(phase, self._run, chain, feeds[phase], drawing, self._moments, self._progress)
        training.run(None if phase.validation is None else partial(evaluation, phase.validation))
        return None

    def _evaluate(
        self,
        chain: Chain,
        feeds: Mapping[Phase, loading.Feed],
        draws: Mapping[Phase, Drawing | Sight],
        judgements: Mapping[Phase, Sequence[Judgement]],
        names: Mapping[str, Sequence[str]],
        part: EvalPhase,
    ) -> Figures:
        losses, keep = _losses(self._phase, part), _kept(part, self._graph) if part is self._phase else ()
        sight, wanted, learners = draws[part], judgements[part], self._learners
        assert isinstance(sight, Sight)
        if not learners or not learners.mine(wanted):
            return evaluate(chain, feeds[part], sight, part.batch_size, losses, wanted, keep, names)
        others = [one for one in wanted if one not in learners.mine(wanted)]
        done = evaluate(chain, feeds[part], sight, part.batch_size, losses, others, learners.sources, names)
        return replace(learners.judge(done, wanted, sight), outputs={})

    def _fit(
        self,
        phase: FitPhase,
        chain: Chain,
        feed: loading.Feed,
        sight: Sight,
        names: Mapping[str, Sequence[str]],
    ) -> Figures:
        labels = fitting.to_fit(phase, self._graph, self._run.done)
        keep = fitting.sources(labels, self._graph)
        done = evaluate(chain, feed, sight, phase.sampler.batch_size, (), (), keep, names)
        fitting.fit(labels, self._graph, done.outputs, sight.rows, self._run.fitted)
        return replace(done, outputs={})

    def end(self, interrupt: BaseException | None = None) -> None:
        """State back to its owners, then the last moment; both happen whatever the other does. Does nothing twice."""
        run = self._run
        if _AT_WORK.get(self._graph) is not run:
            return
        if run.error is None:
            run.error = interrupt
        try:
            self._release()
        except BaseException as failure:
            if run.error is None:
                run.error = failure
                raise
            run.error.add_note(f"release also failed: {type(failure).__name__}: {failure}")
        finally:
            run.attach(None)
            _AT_WORK.pop(self._graph, None)
            if run.error is not None:
                forget(run.error)
            self._moments.phase_end(run.error, phase=self._phase, plan=run.plan, run=run)

    def _let_go(self) -> None:
        chain, self._chain = self._chain, None
        self._graph.refresh = None
        if chain is not None:
            chain.release(self._graph.optimizer_states)

    def _release(self) -> None:
        self._let_go()
        place(self._graph, self._afterwards)


def _parts(phase: Phase) -> list[Phase]:
    """The phase, and its validation if it has one."""
    validation = phase.validation if isinstance(phase, TrainPhase) else None
    return [phase] if validation is None else [phase, validation]


def _losses(phase: Phase, part: Phase) -> tuple[AppliedLoss, ...]:
    return part.losses or (phase.losses if part is not phase else ())


def _judgements(phase: Phase, part: Phase, graph: ModelGraph) -> list[Judgement]:
    return judged(part, _losses(phase, part), graph) if isinstance(part, EvalPhase) else []


def _request(phase: Phase, graph: ModelGraph, done: Collection[str] = ()) -> Request:
    learners = learning(phase, graph)
    wants = dict.fromkeys(fitting.sources(learners, graph))
    for part in _parts(phase):
        if isinstance(part, EvalPhase):
            wants.update(dict.fromkeys(_kept(part, graph) if part is phase else ()))
            judged_nodes = (one.node for one in _judgements(phase, part, graph))
            wants.update(dict.fromkeys(one for one in judged_nodes if one not in learners))
    if isinstance(phase, FitPhase):
        wants = dict.fromkeys(fitting.sources(fitting.to_fit(phase, graph, done), graph))
    return Request(
        phase.label,
        phase.accelerator,
        phase.losses,
        isinstance(phase, TrainPhase) and bool(phase.losses or not learners),
        tuple(wants),
        phase.strict,
        phase.policy,
        streams_of(phase, graph),
        tuple(learners),
    )


def _sets(
    phase: Phase, plan: Plan, judgements: Sequence[Judgement], graph: ModelGraph, done: Collection[str] = ()
) -> dict[str, FeatureSet]:
    """The feature sets that a phase needs data of: for its nodes, for what is loaded, and for its metrics."""
    labels = {one.node for one in plan.assignments}
    if isinstance(phase, FitPhase):
        labels |= wiring.ancestors(fitting.to_fit(phase, graph, done), graph.nodes)
    labels |= wiring.ancestors(learning(phase, graph), graph.nodes)
    needed = set(wiring.feature_sets(graph.nodes[label] for label in labels))
    needed |= {column.feature_set for column in plan.columns} | {one.source for one in judgements}
    return {label: one for label, one in wiring.feature_sets(graph.nodes.values()).items() if label in needed}


def _kept(phase: EvalPhase, graph: ModelGraph) -> tuple[str, ...]:
    return graph.tails if phase.outputs is None else phase.outputs


def _build(resolution: Resolution, graph: ModelGraph) -> Chain:
    """Programs over the models as they were placed; if one cannot be built, those before it are released."""
    links: list[Link] = []
    try:
        for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
            segment = _with_placed(segment, graph)
            live = any(name in resolution.live for operation in segment.operations for name in operation.outputs)
            program: Program = backend.build(segment)
            links.append(Link(segment, backend, program, live))
    except BaseException:
        Chain(links).release({})
        raise
    return Chain(links)


def _with_placed(segment: Segment, graph: ModelGraph) -> Segment:
    operations = tuple(replace(one, model=getattr(graph[one.label], "model", None)) for one in segment.operations)
    states = {label: graph.optimizer_states[label] for label in segment.states}
    return replace(segment, operations=operations, states=states)
