"""`anyaccel plan`, `explain` and `estimate`: a phase of a module planned for this machine or another."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.arguments import shown
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.distributions import NAMES, load
from anyaccel.errors import AnyaccelError, ConfigError, MissingDistributionError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, Plan
from anyaccel.graph.plan import LARGEST, activation_line, covered
from anyaccel.graph.plan_figures import CATEGORIES, step_bytes
from anyaccel.phases import Phase, plan_for
from anyaccel.phases.planning.plan_figures import advise
from anyaccel.suggestions import did_you_mean

# -- Module objects: `module:object` on the command line, which runs that module --------------------------------------


_EXAMPLE = "write 'package.module:train', or 'train.py:train'"


def load_object(reference: str) -> tuple[ModuleType, Any]:
    """Run a module and return an object of it. Output of the module goes to standard error, which names the module.

    Args:
        reference: `module:object`: the module as Python imports it, or the path of a file that ends with `.py`. The
            working directory is not added to Python's search path.

    Raises:
        ConfigError: no such module or object, or the module fails.
    """
    name, separator, attribute = reference.rpartition(":")
    if not separator or not name or not all(part.isidentifier() for part in attribute.split(".")):
        raise ConfigError(f"{shown(reference)} is not module:object", hint=_EXAMPLE)
    with redirect_stdout(sys.stderr):
        module = _run(name)
    sys.stderr.flush()  # what the module has printed comes before what follows
    return module, _get(module, name, attribute)


def _run(name: str) -> ModuleType:
    is_file = name.endswith(".py")
    print_line(f"running {name}", stderr=True)
    try:
        with _no_working_directory():
            return _run_file(Path(name)) if is_file else importlib.import_module(name)
    except AnyaccelError:
        raise
    except (Exception, SystemExit) as error:
        problem = f"{name} cannot be run: {type(error).__name__}: {error}"
        missing = isinstance(error, ModuleNotFoundError) and not is_file and str(error.name) in (name, *_parents(name))
        hint = (
            "install it, set PYTHONPATH, or pass the file: 'train.py:train'" if missing else "run it with python first"
        )
        raise ConfigError(problem, hint=hint) from error


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"the file {path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise
    return module


@contextmanager
def _no_working_directory() -> Iterator[None]:
    """Remove the working directory that `python -m anyaccel` puts first, inside this context."""
    first = sys.path[:1]
    implicit = bool(first) and first[0] in ("", str(Path.cwd())) and Path(sys.argv[0]).name == "__main__.py"
    if implicit:
        sys.path.pop(0)
    try:
        yield
    finally:
        if implicit:
            sys.path.insert(0, first[0])


def _get(module: ModuleType, name: str, attribute: str) -> Any:
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = [name for name in vars(module) if not name.startswith("_")]
            hint = did_you_mean(part, names, "name an object of the module")
            raise ConfigError(f"{name} has no {attribute!r}", available=", ".join(names[:20]), hint=hint)
        target = getattr(target, part)
    return target


# ----------------------------------------------------------------------------------------------------------------------


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
        _write(output.html, plan.to_html(_drawing(graph, plan)))
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


def _drawing(graph: ModelGraph, plan: Plan) -> str | None:
    """Return the drawing of a graph; print a note and return None if the distribution that draws is not installed."""
    try:
        return graph.visualize("svg", plan=plan)
    except MissingDistributionError as error:
        print_line(f"the page has no drawing of the graph: {error}", stderr=True)
        return None


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
