"""Phase runner: `graph.run` calls what runs phases, which stands above the graph and registers itself when imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from anyaccel.errors import GraphError


class PhaseRunner(Protocol):
    """Runs phases over a graph, and gives their results."""

    def __call__(
        self, graph: Any, phases: tuple[Any, ...], callbacks: Iterable[Any], progress: Any, resume: str
    ) -> list[Any]:
        """Run the phases in order."""


_runners: list[PhaseRunner] = []


def register(runner: PhaseRunner) -> None:
    """Let graphs run phases by this function from now on."""
    _runners[:] = [runner]


def run(graph: Any, given: tuple[Any, ...], callbacks: Iterable[Any], progress: Any, resume: str) -> Any:
    """The results of one phase; a list of results of several, or of a list of phases.

    Raises:
        GraphError: nothing that runs phases has been imported.
        AnyaccelError: there are no phases, or one cannot run.
    """
    if not _runners:
        problem = f"graph {graph.label!r} cannot run phases: anyaccel.experiment, which does, has not been imported"
        raise GraphError(problem, hint="write import anyaccel.experiment, or take ModelGraph from anyaccel itself")
    is_list = len(given) == 1 and isinstance(given[0], (list, tuple))
    results = _runners[0](graph, tuple(given[0]) if is_list else given, callbacks, progress, resume)
    return results if is_list or len(given) != 1 else results[0]
