"""Running: which graphs and models the phases of this process are using; a second phase on one of them is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel.extensions import extend
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.phases.run import Run

# While a phase runs its programs hold the state: the models must not be read or changed by another phase.
_LOCK = threading.Lock()
_GRAPHS: dict[int, Run] = {}
_MODELS: dict[int, tuple[Any, str, Run, int]] = {}
"""By the id of a model: the model, the label of its node, the run that uses it, and the thread of this run."""


def running_phases() -> list[str]:
    """Labels of the phases that are running."""
    return [run.phase.label for run in list(_GRAPHS.values())]


extend("running_phases", running_phases)


def claim(run: Run) -> None:
    """Mark the graph of a run and its models as in use, until `release`.

    A phase that another one's callback runs may use the models of that one: it is in the same thread.

    Raises:
        PhaseError: a phase is running on the graph; or, in another thread, on one of its models.
    """
    thread = threading.get_ident()
    with _LOCK:
        other = _GRAPHS.get(id(run.graph))
        if other is not None and other is not run:
            raise PhaseError(
                f"phase {run.phase.label!r} cannot start: {other.phase.label!r} is running on graph "
                f"{run.graph.label!r}",
                hint="evaluate with TrainPhase(validation=...), or when that phase has ended",
            )
        models = dict(_models(run.graph))
        for key, (_, label) in models.items():
            if key in _MODELS and _MODELS[key][3] != thread:
                raise _in_use(run, label, *_MODELS[key][1:3])
        _GRAPHS[id(run.graph)] = run
        for key, (model, label) in models.items():
            _MODELS.setdefault(key, (model, label, run, thread))


def is_claimed(run: Run) -> bool:
    """Whether the graph of a run is marked as in use by it."""
    return _GRAPHS.get(id(run.graph)) is run


def release(run: Run) -> None:
    """End what `claim` began."""
    with _LOCK:
        for key in [key for key, claimed in _MODELS.items() if claimed[2] is run]:
            del _MODELS[key]
        _GRAPHS.pop(id(run.graph), None)  # last: what is broken off before is done again


def _models(graph: ModelGraph) -> Iterator[tuple[int, tuple[Any, str]]]:
    """The models of a graph by id; plain functions, which hold no values, may be used by several phases."""
    for label, node in graph.nodes.items():
        if isinstance(node, ModelNode) and not isinstance(node.model, (FunctionType, BuiltinFunctionType, type(None))):
            model = node.kind.held_by(node.model)
            yield id(model), (model, label)


def _in_use(run: Run, label: str, other_label: str, other: Run) -> PhaseError:
    return PhaseError(
        f"phase {run.phase.label!r} cannot start: the model of its node {label!r} (graph {run.graph.label!r}) is being "
        f"used by phase {other.phase.label!r} (node {other_label!r}, graph {other.graph.label!r}) in another thread",
        hint="wait until that phase has ended, or give each graph a copy of the model: copy.deepcopy(model)",
    )
