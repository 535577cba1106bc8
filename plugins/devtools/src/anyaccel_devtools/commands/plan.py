"""`anyaccel plan`, `explain` and `estimate`: a phase of a module planned for this machine or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.cli.module_objects import load_object
from anyaccel.distributions import NAMES, load
from anyaccel.errors import ConfigError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.plan import LARGEST, activation_line, covered
from anyaccel.graph.plan_entries import CATEGORIES, step_bytes
from anyaccel.html import listing
from anyaccel.phases import FrameworkSettings, Phase, plan_for
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import size

FITS, DOES_NOT_FIT, NOT_COVERED = 0, 1, 3
"""Exit statuses; 2 is that of errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """The phase to plan, and the machine.

    Attributes:
        reference: `module:phase`.
        graph: Name of the graph or experiment in the module, None if there is only one.
        on, file: An inventory in words, or in a file; None for this machine.
    """

    reference: str
    graph: str | None = None
    on: str | None = None
    file: str | None = None

    def plan(self) -> tuple[Plan, Phase, ModelGraph]:
        """Return the plan, with the phase and the graph.

        Raises:
            AnyaccelError: the module has no such phase or no graph, or the phase cannot run there.
        """
        if self.on is not None and self.file is not None:
            raise ConfigError("both --on and --file describe a machine", hint="leave one out")
        module, phase = load_object(self.reference)
        if not isinstance(phase, Phase):
            names = [name for name, value in vars(module).items() if isinstance(value, Phase)]
            problem = f"{self.reference} is a {type(phase).__name__}, not a phase"
            raise ConfigError(problem, available=", ".join(names), hint="name a TrainPhase, EvalPhase or FitPhase")
        graph = _graph_of(module, self.graph)
        inventory = load(NAMES, "Inventory").from_file(self.file) if self.file is not None else self.on
        return plan_for(phase, graph, inventory), phase, graph


def _graph_of(module: ModuleType, name: str | None) -> ModelGraph:
    graphs = {key: graph for key, value in vars(module).items() if (graph := _as_graph(value)) is not None}
    if name is not None:
        if name not in graphs:
            problem = f"{module.__name__} has no graph or experiment {name!r}"
            raise ConfigError(problem, available=", ".join(graphs), hint="name one of these with --graph")
        return graphs[name]
    if len({id(graph) for graph in graphs.values()}) != 1:
        problem = f"{module.__name__} has {'several graphs' if graphs else 'no graph'}"
        hint = "name one with --graph" if graphs else "keep the ModelGraph or Experiment in a global variable"
        raise ConfigError(problem, available=", ".join(graphs), hint=hint)
    return next(iter(graphs.values()))


def _as_graph(value: Any) -> ModelGraph | None:
    if isinstance(value, Experiment):
        return value.graph
    return value if isinstance(value, ModelGraph) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output in addition to the table: files, advice, and a comparison with a saved plan."""

    advise: bool = False
    save: str | None = None
    compare: str | None = None
    html: str | None = None
    as_json: bool = False


def run_plan(target: PlanTarget, output: Output) -> int:
    """Print a plan, and return the exit status."""
    earlier = None if output.compare is None else _saved(output.compare)
    plan, phase, graph = target.plan()
    advice = advise(phase, graph, plan) if output.advise else ()
    difference = None if earlier is None else earlier.diff(plan)
    if output.save is not None:
        _write(output.save, plan.to_json())
    if output.html is not None:
        _write(output.html, plan.to_html(graph.visualize("svg", plan=plan)))
    if output.as_json:
        document: dict[str, Any] = {"plan": plan.to_dict(), "not_covered": list(plan.not_covered), "fits": plan.fits}
        document |= {"advice": [recommendation.to_dict() for recommendation in advice]} if output.advise else {}
        document |= {} if difference is None else {"differences": difference.to_dict()}
        print_json(document)
        return status_of(plan)
    print_line(f"plan of {plan.phase} on {plan.graph}{f', for {plan.machine}' if plan.machine else ''}")
    rows = [
        (a.node, str(a.device), f"{a.framework} {a.native_name}", a.reason, a.requested, f"{a.parameters:,}")
        for a in plan.assignments
    ]
    print_table(("node", "device", "native name", "who decided", "asked for", "parameters"), rows)
    for section in (section for assignment in plan.assignments for section in assignment.sections):
        print_line(f"\n{section.title}: {section.summary}")
        print_table(section.head, section.rows)
        for note in section.notes:
            print_line(f"note: {note}")
    edges = [
        (
            f"gradient of {c.value}" if c.gradient else c.value,
            f"{c.origin} to {c.destination}",
            c.route,
            "shared" if c.route == "share" else "copied",
            covered(step_bytes(c.nbytes, plan.batch_size)),
        )
        for c in plan.crossings
    ]
    _print_section(("edge", "between", "route", "memory", "a step"), edges)
    _print_section(
        ("setting", "choice", "why"), [(decision.what, decision.choice, decision.why) for decision in plan.decisions]
    )
    for note in plan.notes:
        print_line(f"note: {note}")
    print_line("")
    _print_memory(plan)
    if output.advise:
        print_line("")
        print_table(
            ("practice", "verdict", "figure"),
            [(recommendation.practice, recommendation.verdict, recommendation.figure) for recommendation in advice],
        )
    if difference is not None:
        print_line(f"\ncompared with the plan in {output.compare}:")
        print_line(str(difference))
    return _conclusion(plan)


def run_explain(target: PlanTarget, node: str, as_json: bool) -> int:
    """Print why a node is where it is; returns 0."""
    plan, _, _ = target.plan()
    if as_json:
        print_json(
            {
                "node": node,
                "explanation": plan.explain(node),
                **plan.to_dict()["assignments"][[assignment.node for assignment in plan.assignments].index(node)],
            }
        )
    else:
        print_line(plan.explain(node))
    return FITS


def run_estimate(target: PlanTarget, as_json: bool) -> int:
    """Print the memory of each device, and return the exit status."""
    plan, _, _ = target.plan()
    if as_json:
        figures = {name: plan.to_dict()[name] for name in ("memory", "activations")}
        print_json({**figures, "notes": list(plan.notes), "not_covered": list(plan.not_covered), "fits": plan.fits})
        return status_of(plan)
    _print_memory(plan)
    for note in plan.notes:
        print_line(f"note: {note}")
    return _conclusion(plan)


def status_of(plan: Plan) -> int:
    """Return 1 if something does not fit, 3 if something is not covered, otherwise 0."""
    if plan.fits is False:
        return DOES_NOT_FIT
    return NOT_COVERED if plan.not_covered else FITS


def _conclusion(plan: Plan) -> int:
    for reason in plan.not_covered:
        print_line(f"not covered: {reason}", style="yellow")
    status = status_of(plan)
    told = {FITS: "it fits", DOES_NOT_FIT: "it does not fit", NOT_COVERED: "whether it fits is unknown"}[status]
    print_line(told, style="" if status == FITS else "red" if status == DOES_NOT_FIT else "yellow")
    return status


def _print_section(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_line("")
        print_table(head, rows)


def _print_memory(plan: Plan) -> None:
    names = (*CATEGORIES, "headroom", "capacity")
    rows = [(f"{m.framework} {m.device}", *(covered(getattr(m, name)) for name in names)) for m in plan.memory]
    print_table(("memory of", *names), rows)
    for node in plan.activations:
        print_line(activation_line(node))


def _saved(path: str) -> Plan:
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"the plan {path} cannot be read: {error.strerror}", hint="create it with --save") from None
    return Plan.from_json(content)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="name another file") from None


# -- Advice: common practice of the field, checked on a phase as it is planned, each item with the figure behind it ----


DONE, DO, NO_EFFECT, UNKNOWN = "done", "do", "no effect here", "not covered"
_ON_HOST = ("cpu", "sim")


@dataclass(frozen=True, slots=True)
class Advice:
    """An item: the practice, whether it is followed or would help, and the figure that shows it."""

    practice: str
    verdict: str
    figure: str

    def to_dict(self) -> dict[str, str]:
        """Return plain data."""
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
    return any(decision.what.startswith("residency") and decision.choice == "streamed" for decision in plan.decisions)


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
    sources = [decision for decision in plan.decisions if decision.why == "the data are a source"]
    if sources:
        why = "rows come from a source; results.events show how long steps wait for them"
        return Advice("worker processes", UNKNOWN, why)
    return Advice("worker processes", NO_EFFECT, "rows are in memory; nothing is decoded or read in a step")


def _fixed_shapes(phase: PhaseSettings, plan: Plan) -> Advice:
    name = "kernels chosen by trial (cudnn.benchmark)"
    if all(assignment.device.kind in _ON_HOST for assignment in plan.assignments):
        return Advice(name, NO_EFFECT, "no node is on a GPU")
    ragged = [column.shown for column in plan.columns if column.ragged]
    if ragged:
        return Advice(name, NO_EFFECT, f"each batch has its own shape: {listing(ragged)} differ in length")
    images = [column.shown for column in plan.columns if len(column.spec.shape) >= 3]
    if not images:
        return Advice(name, NO_EFFECT, "no column has the shape of images")
    figure = f"all full batches have one shape, {plan.batch_size} rows of {listing(images)}"
    backends = [assignment.backend for assignment in plan.assignments if assignment.device.kind not in _ON_HOST]
    settings = {settings.kernel_trials for settings in (it.capability(HasSettings) for it in backends) if settings} - {
        ""
    }
    if not settings:
        return Advice(name, NO_EFFECT, f"no framework of the graph has a setting for this; {figure}")
    settings_of_callbacks = [callback.values for callback in phase.callbacks if isinstance(callback, FrameworkSettings)]
    left = [name for name in sorted(settings) if not any(values.get(name) is True for values in settings_of_callbacks)]
    wanted = ", ".join(f"{setting!r}: True" for setting in left)
    if not left:
        return Advice(name, DONE, figure)
    return Advice(name, DO, f"{figure}; write callbacks=[FrameworkSettings({{{wanted}}})]")


def _set_to_none(phase: PhaseSettings, plan: Plan) -> Advice:
    if not phase.trains:
        return Advice("gradients set to none", NO_EFFECT, "the phase trains nothing")
    gradients = sum(device_memory.gradients or 0 for device_memory in plan.memory)
    return Advice("gradients set to none", DONE, f"{size(gradients)} of gradients are freed after each step")


def _multiples(graph: ModelGraph, plan: Plan) -> Advice:
    name = "dimensions in multiples of 8"
    matrices = list(_matrices(graph, plan))
    odd = [text for text, sides in matrices if any(side % 8 for side in sides)]
    batch = f"a batch has {plan.batch_size} rows" if plan.batch_size else "the size of a batch is not known"
    figure = (
        f"{len(odd)} of {len(matrices)} matrices have another dimension{f': {listing(odd, 3)}' if odd else ''}; {batch}"
    )
    if all(assignment.device.kind in _ON_HOST for assignment in plan.assignments):
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
    activations = [device_memory.activations for device_memory in plan.memory]
    total = sum(nbytes or 0 for nbytes in activations)
    beside = "activations are not covered" if None in activations else f"{size(total)} of activations and temporaries"
    figure = f"{size(wide)} of parameters are float32 or wider; {beside}"
    mixed = [assignment.node for assignment in plan.assignments if assignment.precision]
    if mixed:
        return Advice(name, DONE, f"{listing(mixed)} {'is' if len(mixed) == 1 else 'are'} computed in it; {figure}")
    if all(assignment.device.kind in _ON_HOST for assignment in plan.assignments):
        return Advice(name, NO_EFFECT, f"no node is on a GPU; {figure}")
    return Advice(name, DO if wide else DONE, f"{figure}; write precision='bf16-mixed'" if wide else figure)


def _monitoring(phase: PhaseSettings) -> Advice:
    number = len(phase.callbacks)
    if number:
        kinds = listing([type(callback).__name__ for callback in phase.callbacks], 4)
        return Advice("monitoring", DONE, f"{number} callback{'s' * (number > 1)} of the phase: {kinds}")
    return Advice("monitoring", DO, "the phase has no callback; losses of each epoch are only in the results")
