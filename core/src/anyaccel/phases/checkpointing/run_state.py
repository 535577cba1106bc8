"""Run state: what a checkpoint takes of a run and its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyaccel.errors import ConfigError
from anyaccel.graph import ModelGraph, state_dict
from anyaccel.phases.run import Run


class BestState:
    """The state of the graph that a run returns to at its end; made once for each snapshot."""

    def __init__(self) -> None:
        self._made: tuple[Any, Mapping[str, np.ndarray]] | None = None

    def of(self, run: Run) -> Mapping[str, np.ndarray] | None:
        """Arrays by name; None if the run returns to nothing."""
        snapshot = run.final_snapshot
        if snapshot is None:
            return run.final_state
        if self._made is None or self._made[0] is not snapshot:
            now = run.snapshot()
            run.restore(snapshot)
            try:
                self._made = snapshot, state_of(run.graph)
            finally:
                run.restore(now)
        return self._made[1]


def state_of(graph: ModelGraph) -> dict[str, np.ndarray]:
    """The state of a graph, copied once: what a running phase gives out is not changed by its steps."""
    graph.live_values.write_back()
    return state_dict.state(graph, copy=not graph.live_values.in_use)


def frameworks_of(run: Run) -> dict[str, str]:
    """The framework of each node that has one."""
    return {label: backend.framework for label, backend in run.graph.shapes.backends.items()}


def graph_part(run: Run) -> dict[str, Any]:
    """The configuration of the graph, for `ModelGraph.load`; nothing if it has none."""
    try:
        return {"graph": run.graph.saved_config()}
    except ConfigError:
        return {}
