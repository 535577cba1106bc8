"""What callbacks keep in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyaccel.errors import StateError
from anyaccel.phases.callbacks import Callback

CallbackStates = list[tuple[str, dict[str, Any]]]


def callback_states(callbacks: Iterable[Callback]) -> CallbackStates:
    """Name of the class, and state, of each callback."""
    return [(type(callback).__name__, dict(callback.state_dict())) for callback in callbacks]


def load_callback_states(callbacks: Sequence[Callback], saved: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Give callbacks the states that their like had, in the same order; one that keeps nothing may come and go.

    Raises:
        StateError: a state has no callback of its class, a callback that keeps something has no state, or one does not
            take its state.
    """
    held = [(kind, state) for kind, state in saved if state]
    left = list(held)
    pairs = []
    for callback in callbacks:
        if left and type(callback).__name__ == left[0][0]:
            pairs.append((callback, left.pop(0)[1]))
        elif callback.state_dict():
            raise _other_callbacks(callbacks, held)
    if left:
        raise _other_callbacks(callbacks, held)
    for callback, state in pairs:
        try:
            callback.load_state_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            kind = type(callback).__name__
            problem = f"callback {kind} does not take its state: {type(error).__name__}: {error}"
            raise StateError(problem, hint="let load_state_dict take what state_dict() gives") from error


def _other_callbacks(callbacks: Sequence[Callback], held: Sequence[tuple[str, Any]]) -> StateError:
    return StateError(
        f"the checkpoint is of a run with other callbacks: {', '.join(kind for kind, _ in held) or 'none'}",
        cause=f"this run has {', '.join(type(each).__name__ for each in callbacks) or 'none'}",
        hint="give the run the callbacks whose state it has, in the same order; those that keep none may come and go",
    )
