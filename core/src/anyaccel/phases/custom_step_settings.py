"""A training step of the user's own: which settings of a TrainPhase do not go with it."""

from __future__ import annotations

from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError
from anyaccel.phases.phase import Phase


def check_custom_step(phase: Phase, step: Any, accumulate: int) -> None:
    """Check a step of the user's own, and that no setting is about steps which anyaccel makes of losses.

    Args:
        phase: whose step it is.
        step: what was given.
        accumulate: batches per step.

    Raises:
        PhaseError: it is not a function, or the phase has losses, a precision, batches to accumulate, or steps to be
            compiled.
    """
    where = f"phase {phase.label!r}"
    if not callable(step):
        raise PhaseError(
            f"{where}: step must be a function of (models, batch, optimizers), got {shown(step)}",
            hint="write step=FUNCTION",
        )
    if phase.losses:
        raise PhaseError(
            f"{where} has losses and a step of its own, which computes its losses itself",
            hint="leave losses out; those of a validation belong to it: validation=EvalPhase(..., losses=[...])",
        )
    if phase.precision is not None:
        raise PhaseError(
            f"{where} has precision={phase.precision!r} and a step of its own, which is computed as it says itself",
            hint="leave precision out, and cast in the step, as by the framework's own autocast",
        )
    if accumulate > 1:
        raise PhaseError(
            f"{where} has accumulate={accumulate} and a step of its own",
            hint="leave accumulate out, and add up gradients in the step",
        )
    if phase.compile == "steps":
        raise PhaseError(
            f"{where} has compile='steps' and a step of its own, which runs line by line",
            hint="leave compile out, and compile what pays with your framework's own compiler",
        )
