"""Phase planner: `phase.plan` calls what plans phases, which stands above them and registers itself when imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Planner = Callable[[Any, Any, Any], Any]
"""From a phase, a graph, and an inventory or None to a plan."""

_planners: list[Planner] = []


def register(planner: Planner) -> None:
    """Let phases be planned by this function from now on."""
    _planners[:] = [planner]


def plan(phase: Any, graph: Any, inventory: Any) -> Any:
    """The plan of a phase."""
    return _planners[0](phase, graph, inventory)
