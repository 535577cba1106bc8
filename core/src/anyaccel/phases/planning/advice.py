"""Advice: common practice of the field, checked on a phase as it is planned, each item with the figure behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.graph import ModelGraph, Plan
from anyaccel.html import listing, size
from anyaccel.phases.framework_settings import FrameworkSettings
from anyaccel.phases.settings import PhaseSettings

DONE, DO, NO_EFFECT, UNKNOWN = "done", "do", "no effect here", "not covered"
_ON_HOST = ("cpu", "sim")


@dataclass(frozen=True, slots=True)
class Advice:
    """An item: the practice, whether it is done or would help, and the figure that says so."""

    practice: str
    verdict: str
    figure: str

    def to_dict(self) -> dict[str, str]:
        """As plain data."""
        return {"practice": self.practice, "verdict": self.verdict, "figure": self.figure}


def advise(phase: PhaseSettings, graph: ModelGraph, plan: Plan) -> tuple[Advice, ...]:
    """Every item of the list for a phase, its graph and its plan."""
    return (
        _pinned(plan),
        _workers(plan),
        _fixed_shapes(phase, plan),
        _set_to_none(phase, plan),
        _multiples(graph, plan),
        _precision(graph, plan),
        _monitoring(phase),
    )


def _streamed(plan: Plan) -> bool:
    return any(each.what.startswith("residency") and each.choice == "streamed" for each in plan.decisions)


def _pinned(plan: Plan) -> Advice:
    name = "pinned memory"
    columns = [column for column in plan.columns if column.device.kind not in _ON_HOST]
    if not columns:
        return Advice(name, NO_EFFECT, "no column goes to the memory of an accelerator")
    unpinned = [column for column in columns if not column.pinned]
    nbytes = sum(column.spec.nbytes for column in unpinned) * (plan.batch_size or 0)
    if not unpinned:
        return Advice(name, DONE, f"all {len(columns)} columns are copied from pinned memory")
    if not _streamed(plan):
        return Advice(name, NO_EFFECT, "rows are resident: they are copied once, before the first step")
    return Advice(name, DO, f"{size(nbytes)} are copied in each step; write Accelerator(..., pin_memory=True)")


def _workers(plan: Plan) -> Advice:
    sources = [each for each in plan.decisions if each.why == "the data are a source"]
    if sources:
        why = "rows come from a source; results.events say how long steps wait for them"
        return Advice("worker processes", UNKNOWN, why)
    return Advice("worker processes", NO_EFFECT, "rows are in memory; nothing is decoded or read in a step")


def _fixed_shapes(phase: PhaseSettings, plan: Plan) -> Advice:
    name = "kernels chosen by trial (cudnn.benchmark)"
    if all(each.device.kind in _ON_HOST for each in plan.assignments):
        return Advice(name, NO_EFFECT, "no node is on a GPU")
    ragged = [column.shown for column in plan.columns if column.ragged]
    if ragged:
        return Advice(name, NO_EFFECT, f"each batch has its own shape: {listing(ragged)} differ in length")
    images = [column.shown for column in plan.columns if len(column.spec.shape) >= 3]
    if not images:
        return Advice(name, NO_EFFECT, "no column has the shape of images")
    figure = f"all full batches have one shape, {plan.batch_size} rows of {listing(images)}"
    backends = [each.backend for each in plan.assignments if each.device.kind not in _ON_HOST]
    settings = {each.kernel_trials for each in (it.capability(HasSettings) for it in backends) if each} - {""}
    if not settings:
        return Advice(name, NO_EFFECT, f"no framework of the graph leaves the choice to a setting; {figure}")
    given = [each.values for each in phase.callbacks if isinstance(each, FrameworkSettings)]
    left = [name for name in sorted(settings) if not any(values.get(name) is True for values in given)]
    wanted = ", ".join(f"{setting!r}: True" for setting in left)
    if not left:
        return Advice(name, DONE, figure)
    return Advice(name, DO, f"{figure}; write callbacks=[FrameworkSettings({{{wanted}}})]")


def _set_to_none(phase: PhaseSettings, plan: Plan) -> Advice:
    if not phase.trains:
        return Advice("gradients set to none", NO_EFFECT, "the phase trains nothing")
    gradients = sum(each.gradients or 0 for each in plan.memory)
    return Advice("gradients set to none", DONE, f"{size(gradients)} of gradients are freed after each step")


def _multiples(graph: ModelGraph, plan: Plan) -> Advice:
    name = "dimensions in multiples of 8"
    matrices = list(_matrices(graph, plan))
    odd = [text for text, sides in matrices if any(side % 8 for side in sides)]
    batch = f"a batch has {plan.batch_size} rows" if plan.batch_size else "the size of a batch is not known"
    figure = f"{len(odd)} of {len(matrices)} matrices have another side{f': {listing(odd, 3)}' if odd else ''}; {batch}"
    if all(each.device.kind in _ON_HOST for each in plan.assignments):
        return Advice(name, NO_EFFECT, f"no node is on a GPU; {figure}")
    return Advice(name, DO if odd or (plan.batch_size or 0) % 8 else DONE, figure)


def _matrices(graph: ModelGraph, plan: Plan) -> Iterator[tuple[str, tuple[int, ...]]]:
    for assignment in plan.assignments:
        model = getattr(graph[assignment.node], "model", None)
        specs = assignment.backend.parameters(model) if model is not None else {}
        for name, spec in specs.items():
            if len(spec.shape) >= 2:
                yield f"{assignment.node} {name} {list(spec.shape)}", spec.shape[:2]


def _precision(graph: ModelGraph, plan: Plan) -> Advice:
    name = "mixed precision"
    wide = 0
    for assignment in plan.assignments:
        model = getattr(graph[assignment.node], "model", None)
        specs = assignment.backend.parameters(model).values() if model is not None else ()
        wide += sum(spec.nbytes for spec in specs if spec.dtype in ("float32", "float64"))
    activations = [each.activations for each in plan.memory]
    known = sum(each or 0 for each in activations)
    beside = "activations are not covered" if None in activations else f"{size(known)} of activations and temporaries"
    figure = f"{size(wide)} of parameters are float32 or wider; {beside}"
    mixed = [each.node for each in plan.assignments if each.precision]
    if mixed:
        return Advice(name, DONE, f"{listing(mixed)} {'is' if len(mixed) == 1 else 'are'} computed in it; {figure}")
    if all(each.device.kind in _ON_HOST for each in plan.assignments):
        return Advice(name, NO_EFFECT, f"no node is on a GPU; {figure}")
    return Advice(name, DO if wide else DONE, f"{figure}; write precision='bf16-mixed'" if wide else figure)


def _monitoring(phase: PhaseSettings) -> Advice:
    number = len(phase.callbacks)
    if number:
        kinds = listing([type(callback).__name__ for callback in phase.callbacks], 4)
        return Advice("monitoring", DONE, f"{number} callback{'s' * (number > 1)} of the phase: {kinds}")
    return Advice("monitoring", DO, "the phase has no callback; losses of each epoch are in the results alone")
