"""The lifecycle of a phase: resolve, place, load, build, run, release, and the moments in between."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyaccel.backend import ComputingBackend, Program
from anyaccel.data import FeatureSet, Rows
from anyaccel.device import Device
from anyaccel.errors import FallbackWarning
from anyaccel.graph import ModelGraph, Plan, Request, Resolution, resolve, wiring
from anyaccel.graph.nodes import ModelNode
from anyaccel.phases import fitting, loading
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.chain import Chain, Link
from anyaccel.phases.evaluating import Figures, Judgement, evaluate, judged
from anyaccel.phases.moments import Moments
from anyaccel.phases.phase import EvalPhase, FitPhase, Phase, TrainPhase
from anyaccel.phases.progress import Progress
from anyaccel.phases.run import Run
from anyaccel.phases.training import Training
from anyaccel.recipes import AppliedLoss
from anyaccel.registry import registry
from anyaccel.segment import NodeState, Segment


def plan_of(phase: Phase, graph: ModelGraph) -> Plan:
    """The plan of a phase on a graph, without doing anything.

    Raises:
        AnyaccelError: whatever stands in the way.
    """
    return resolve(graph, _request(phase, graph)).plan


def execute(run: Run, callbacks: Iterable[Callback] = (), progress: Progress | None = None) -> Figures | None:
    """Carry out the phase of a run on its graph. `run` holds what is complete, whatever happens.

    Returns:
        the figures of an EvalPhase; None for a TrainPhase, whose figures are in `run.history`.
    """
    execution = _Execution(run, Moments(registry().hooks, [*callbacks, *run.phase.callbacks]), progress or Progress())
    try:
        return execution.run()
    except BaseException as error:
        run.error = error
        raise
    finally:
        execution.end()


class _Execution:
    """One way through the house."""

    def __init__(self, run: Run, moments: Moments, progress: Progress) -> None:
        self._run = run
        self._phase: Phase = run.phase
        self._graph = run.graph
        self._moments = moments
        self._progress = progress
        self._chain: Chain | None = None

    def run(self) -> Figures | None:
        phase, graph = self._phase, self._graph
        self._moments.call("phase_start", phase=phase)
        resolution = resolve(graph, _request(phase, graph))
        plan = self._run.plan = resolution.plan
        sets = _sets(phase, plan, graph)
        classes = loading.class_counts(resolution)
        rows = {part.label: loading.rows_of(part.label, part.data, sets) for part in _parts(phase)}
        judgements = {
            part.label: judged(part, _losses(phase, part), graph)
            for part in _parts(phase)
            if isinstance(part, EvalPhase)
        }
        arrays = {label: loading.prepare(plan, found, classes) for label, found in rows.items()}
        if isinstance(phase, TrainPhase):
            phase.sampler.batches(len(next(iter(rows[phase.label].values()))))
        self._moments.call("before_placement", phase=phase, plan=plan)
        _warn(plan)
        place(graph, {one.node: one.device for one in plan.assignments})
        self._moments.call("after_placement", phase=phase, plan=plan)
        feeds = {label: loading.load(plan, one, len(next(iter(rows[label].values())))) for label, one in arrays.items()}
        del arrays
        self._chain = _build(resolution, graph)
        self._run.attach(self._chain)
        self._moments.call("after_loading", phase=phase, plan=plan)
        return self._loop(resolution, feeds, rows, judgements)

    def _loop(
        self,
        resolution: Resolution,
        feeds: Mapping[str, loading.Feed],
        rows: Mapping[str, Mapping[str, Rows]],
        judgements: Mapping[str, Sequence[Judgement]],
    ) -> Figures | None:
        assert self._chain is not None
        chain, names = self._chain, resolution.shapes.outputs

        def figures(part: EvalPhase) -> Figures:
            losses, keep = _losses(self._phase, part), _kept(part, self._graph) if part is self._phase else ()
            return evaluate(
                chain,
                feeds[part.label],
                rows[part.label],
                part.sampler.batch_size,
                losses,
                judgements[part.label],
                keep,
                names,
            )

        if isinstance(self._phase, EvalPhase):
            return figures(self._phase)
        if isinstance(self._phase, FitPhase):
            return self._fit(self._phase, chain, feeds[self._phase.label], rows[self._phase.label], names)
        assert isinstance(self._phase, TrainPhase)
        validation = self._phase.validation
        training = Training(self._phase, self._run, chain, feeds[self._phase.label], self._moments, self._progress)
        training.run((lambda: figures(validation).named) if validation is not None else None)
        return None

    def _fit(
        self,
        phase: FitPhase,
        chain: Chain,
        feed: loading.Feed,
        rows: Mapping[str, Rows],
        names: Mapping[str, Sequence[str]],
    ) -> Figures:
        labels = fitting.to_fit(phase, self._graph)
        keep = fitting.sources(labels, self._graph)
        done = evaluate(chain, feed, rows, phase.sampler.batch_size, (), (), keep, names)
        fitting.fit(labels, self._graph, done.outputs, rows)
        return replace(done, outputs={})

    def end(self) -> None:
        """State back to its owners, then the last moment; both happen whatever the other does."""
        try:
            self._release()
        except Exception as failure:
            if self._run.error is None:
                self._run.error = failure
                raise
            self._run.error.add_note(f"release also failed: {type(failure).__name__}: {failure}")
        finally:
            self._run.attach(None)
            self._moments.phase_end(self._run.error, phase=self._phase, plan=self._run.plan, run=self._run)

    def _release(self) -> None:
        if self._chain is not None:
            self._graph.optimizer_states.update(self._chain.release())
        if self._phase.after is not None and self._run.plan is not None:
            place(self._graph, {one.node: self._phase.after.device for one in self._run.plan.assignments})


def _parts(phase: Phase) -> list[Phase]:
    """The phase, and its validation if it has one."""
    validation = phase.validation if isinstance(phase, TrainPhase) else None
    return [phase] if validation is None else [phase, validation]


def _losses(phase: Phase, part: Phase) -> tuple[AppliedLoss, ...]:
    return part.losses or (phase.losses if part is not phase else ())


def _request(phase: Phase, graph: ModelGraph) -> Request:
    wants: dict[str, None] = {}
    for part in _parts(phase):
        if isinstance(part, EvalPhase):
            wants.update(dict.fromkeys(_kept(part, graph) if part is phase else ()))
            wants.update(dict.fromkeys(one.node for one in judged(part, _losses(phase, part), graph)))
    if isinstance(phase, FitPhase):
        wants = dict.fromkeys(fitting.sources(fitting.to_fit(phase, graph), graph))
    return Request(
        phase.label,
        phase.accelerator,
        phase.losses,
        isinstance(phase, TrainPhase),
        tuple(wants),
        phase.strict,
        phase.policy,
    )


def _sets(phase: Phase, plan: Plan, graph: ModelGraph) -> dict[str, FeatureSet]:
    """The feature sets that a phase needs data of."""
    labels = {one.node for one in plan.assignments}
    if isinstance(phase, FitPhase):
        labels |= wiring.ancestors(fitting.to_fit(phase, graph), graph.nodes)
    return wiring.feature_sets(graph.nodes[label] for label in graph.nodes if label in labels)


def _kept(phase: EvalPhase, graph: ModelGraph) -> tuple[str, ...]:
    return graph.tails if phase.outputs is None else phase.outputs


def _warn(plan: Plan) -> None:
    fallbacks = [one for one in plan.assignments if one.reason == "fallback"]
    if fallbacks:
        names = ", ".join(f"{one.node} ({one.framework})" for one in fallbacks)
        warnings.warn(
            f"phase {plan.phase!r} asks for {fallbacks[0].written!r}, on which these nodes are not served; "
            f"they run on the CPU: {names}. Give them accelerator='cpu' to say so, or the phase strict=True to forbid it.",
            FallbackWarning,
            stacklevel=5,
        )


def place(graph: ModelGraph, devices: Mapping[str, Device]) -> None:
    """Place nodes, and the optimizer state that training left them, on devices; the graph holds what comes back."""
    placed: dict[int, Any] = {}
    for label, device in devices.items():
        node = graph[label]
        if not isinstance(node, ModelNode):
            continue
        backend = registry().computing(graph.shapes.frameworks[label], device.kind)
        if id(node.model) not in placed:
            placed[id(node.model)] = backend.place(node.model, device)
        node.model = placed.setdefault(id(node.model), node.model)
        if label in graph.optimizer_states:
            graph.optimizer_states[label] = _moved(graph.optimizer_states[label], backend, device)


def _moved(state: NodeState, backend: ComputingBackend, device: Device) -> NodeState:
    slots = {
        name: {slot: backend.move(value, device) for slot, value in values.items()}
        for name, values in state.slots.items()
    }
    return replace(state, slots=slots)


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
        for link in links:
            link.program.release()
        raise
    return Chain(links)


def _with_placed(segment: Segment, graph: ModelGraph) -> Segment:
    operations = tuple(replace(one, model=getattr(graph[one.label], "model", None)) for one in segment.operations)
    states = {label: graph.optimizer_states[label] for label in segment.states}
    return replace(segment, operations=operations, states=states)
