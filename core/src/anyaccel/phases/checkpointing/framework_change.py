"""Framework change: the checkpoint of a run whose nodes had other frameworks, as one of this run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.errors import StateError
from anyaccel.graph import state_mapping
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.checkpointing.run_state import frameworks_of
from anyaccel.phases.run import Run

State = dict[str, np.ndarray]


def changed_frameworks(run: Run, position: Position) -> dict[str, str]:
    """The nodes whose framework is not that of the checkpoint, and what it was and is, as text."""
    now, before = frameworks_of(run), position.frameworks
    changed = [label for label in now if label in before and now[label] != before[label]]
    return {label: f"{label!r} was {before[label]} and is {now[label]}" for label in changed}


def translated(run: Run, checkpoint: Checkpoint, position: Position, state: State) -> tuple[Position, State]:
    """Position and state with the names and axes that the models of the run have.

    Args:
        run: whose graph goes on.
        checkpoint: says how names and axes differ.
        position: of the checkpoint that was read.
        state: of the graph then.

    Raises:
        StateError: names or axes of nodes that had another framework do not fit.
    """
    changed = changed_frameworks(run, position)
    if not changed:
        return position, state
    try:
        mapping = state_mapping.StateMapping(run.graph, list(changed), checkpoint.names, checkpoint.change)
        state = mapping.mapped(state)
        best = None if position.best is None else mapping.mapped(position.best)
        callbacks = [(kind, mapping.mapped(own, is_part=True)) for kind, own in position.callbacks]
        return replace(position, best=best, callbacks=callbacks), state
    except StateError as error:
        problem = f"{', '.join(changed.values())}, and {error.problem}"
        is_argument = "names=" in error.hint or "change=" in error.hint
        where = f"give it to Checkpoint({str(checkpoint.folder)!r}, ...): " if is_argument else ""
        raise StateError(problem, available=error.available, hint=f"{where}{error.hint}") from error
