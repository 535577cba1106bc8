"""The lifecycle of a phase: resolve, place, load, build, run, release, and the moments in between."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial

from anyaccel.backend import Program
from anyaccel.data import FeatureSet
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph, Plan, Resolution, memory_sharing, resolve
from anyaccel.phases import estimator_fit, nan_check
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.estimator_partial_fit import Learners
from anyaccel.phases.evaluation import Figures, evaluate
from anyaccel.phases.executor.links import Link
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.hooks import Moments
from anyaccel.phases.kinds import EvalPhase, FitPhase, TrainPhase
from anyaccel.phases.loading import Supply, growth, supplies
from anyaccel.phases.loading.sight import Sight
from anyaccel.phases.loading.taking import streams_of
from anyaccel.phases.model_placement import afterwards, place, warn
from anyaccel.phases.parts import kept_by, losses_of, request_of
from anyaccel.phases.phase import Phase
from anyaccel.phases.prepared import Prepared, check, prepare
from anyaccel.phases.progress import Progress
from anyaccel.phases.relief import Relief
from anyaccel.phases.relieving import relieved
from anyaccel.phases.run import Run
from anyaccel.phases.traceback_cleanup import forget
from anyaccel.phases.train_loop import Training
from anyaccel.registry import registry
from anyaccel.segment import Segment

# While a phase is at work its programs hold the state; what anybody else would see or leave in the models is not it.
_AT_WORK: MutableMapping[ModelGraph, Run] = weakref.WeakKeyDictionary()


def plan_of(phase: Phase, graph: ModelGraph) -> Plan:
    """The plan of a phase on a graph, without doing anything.

    Raises:
        AnyaccelError: whatever stands in the way.
    """
    plan = estimator_fit.noted(phase, resolve(graph, request_of(phase, graph)).plan, graph)
    check(phase, plan, graph)
    return plan


def execute(run: Run, callbacks: Iterable[Callback] = (), progress: Progress | None = None) -> Figures | None:
    """Carry out the phase of a run on its graph. `run` holds what is complete, whatever happens.

    Returns:
        the figures of an EvalPhase; None for a TrainPhase, whose figures are in `run.history`.

    Raises:
        AnyaccelError: whatever stands in the way; PhaseError if the graph is at work in another phase.
    """
    shown = (progress or Progress()).begin(run.phase.label)
    run.heard = shown.event
    try:
        return _executed(_Execution(run, Moments(registry().hooks, [*callbacks, *run.phase.callbacks]), shown), run)
    finally:
        shown.end()


def _executed(execution: _Execution, run: Run) -> Figures | None:
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
            hint="evaluate with TrainPhase(validation=...), or when that phase has ended",
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
        self._reliefs: list[Relief] = []
        self._read: dict[tuple[str, str], FeatureSet] = {}
        self._afterwards: dict[str, Device] = {}

    def run(self) -> Figures | None:
        phase, graph = self._phase, self._graph
        self._moments.call("phase_start", phase=phase, run=self._run)
        if not isinstance(phase, FitPhase):
            return self._round()
        with estimator_fit.awaiting(estimator_fit.left(phase, graph), graph):
            done = self._round()
            while estimator_fit.left(phase, graph, self._run.done):  # what these need is known only now
                self._let_go()
                done = self._round()
        return done

    def _round(self) -> Figures | None:
        """From a plan to its end. A FitPhase has several rounds where estimators wait for each other."""
        phase, graph, run = self._phase, self._graph, self._run
        resolution = resolve(graph, request_of(phase, graph, run.done))
        run.plan = estimator_fit.noted(phase, resolution.plan, graph, run.done)
        ready = prepare(phase, resolution, graph, run.done, self._read)
        own = ready[0]
        run.rows = own.draw.rows if isinstance(own.draw, Sight) else own.rows
        self._learners = Learners(phase, graph, own.rows, streams_of(phase, graph))
        strange = nan_check.notes(phase, run.plan, resolution.segments, own.rows, own.provision.arrays)
        plan = run.plan = replace(run.plan, notes=(*run.plan.notes, *strange))
        later = afterwards(phase, plan)
        memory_sharing.share(plan)
        self._moments.call("before_placement", phase=phase, plan=plan, run=run)
        warn(plan)
        nan_check.warn(phase.label, strange)
        self._afterwards.update(later)
        place(graph, {one.node: one.device for one in plan.assignments})
        self._moments.call("after_placement", phase=phase, plan=plan, run=run)
        for note in (note for one in ready for note in one.provision.notes()):
            run.log_event("source", note)
        rows = self._loaded(ready, resolution)
        self._chain = _build(resolution, graph, phase.compile)
        run.attach(self._chain)
        graph.refresh = partial(self._chain.publish, graph.optimizer_states)
        reliefs = self._reliefs = relieved(phase, ready, rows, self._chain, self._learners, run.log_event)
        del rows
        self._moments.call("after_loading", phase=phase, plan=plan, run=run)
        return self._loop(resolution, ready, reliefs)

    def _loaded(self, ready: Sequence[Prepared], resolution: Resolution) -> list[Supply]:
        phase = self._phase
        self._progress.loading(f"the data of {phase.label}", sum(one.nbytes for one in ready))
        added = growth(resolution.plan, resolution.segments, self._graph.optimizer_states)
        names = [f"the data of {one.part.label}" for one in ready]
        provisions = [one.provision for one in ready]
        return supplies(phase.residency, provisions, names, added, self._run.log_event, self._progress.loaded)

    def _loop(self, resolution: Resolution, ready: Sequence[Prepared], reliefs: Sequence[Relief]) -> Figures | None:
        assert self._chain is not None
        phase, chain, names = self._phase, self._chain, resolution.shapes.outputs
        if isinstance(phase, EvalPhase):
            self._run.evaluation = self._evaluate(chain, ready[0], reliefs[0], names)
            return self._run.evaluation
        if isinstance(phase, FitPhase):
            return self._fit(phase, chain, ready[0], reliefs[0], names)
        assert isinstance(phase, TrainPhase)
        taken = None
        if self._learners:
            taken = self._learners.begin
            chain.teach(self._learners)
        loop = Training(phase, self._run, chain, reliefs[0], self._moments, self._progress, taken)
        loop.run(partial(self._evaluate, chain, ready[1], reliefs[1], names) if phase.validation else None)
        return None

    def _evaluate(self, chain: Chain, ready: Prepared, relief: Relief, names: Mapping[str, Sequence[str]]) -> Figures:
        part, wanted, learners = ready.part, ready.judgements, self._learners
        assert isinstance(part, EvalPhase)
        losses, keep = losses_of(self._phase, part), kept_by(part, self._graph) if part is self._phase else ()
        if not learners or not learners.mine(wanted):
            return evaluate(chain, relief, ready.sight, losses, wanted, keep, names)
        others = [one for one in wanted if one not in learners.mine(wanted)]
        done = evaluate(chain, relief, ready.sight, losses, others, learners.sources, names)
        return replace(learners.judge(done, wanted, ready.sight), outputs={})

    def _fit(
        self, phase: FitPhase, chain: Chain, ready: Prepared, relief: Relief, names: Mapping[str, Sequence[str]]
    ) -> Figures:
        labels = estimator_fit.to_fit(phase, self._graph, self._run.done)
        keep = estimator_fit.sources(labels, self._graph)
        done = evaluate(chain, relief, ready.sight, (), (), keep, names)
        estimator_fit.fit(labels, self._graph, done.outputs, ready.sight.rows, self._run.fitted)
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
        reliefs, self._reliefs = self._reliefs, []
        self._graph.refresh = None
        try:
            for relief in reliefs:
                relief.supply.close()
        finally:
            if chain is not None:
                chain.release(self._graph.optimizer_states)

    def _release(self) -> None:
        self._let_go()
        place(self._graph, self._afterwards)


def _build(resolution: Resolution, graph: ModelGraph, mode: str) -> Chain:
    """Programs over the models as they were placed; if one cannot be built, those before it are released."""
    links: list[Link] = []
    try:
        for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
            segment = replace(_with_placed(segment, graph), compile=mode)
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
