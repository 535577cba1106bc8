"""Monitoring: the value of an epoch that a callback watches, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyaccel.errors import PhaseError
from anyaccel.suggestions import did_you_mean

if TYPE_CHECKING:
    from anyaccel.phases.run import Run


def monitored_value(who: str, name: str, run: Run) -> float | None:
    """The value of the last epoch; None if it is one of a validation that did not follow this epoch.

    Args:
        who: what monitors it, for messages.
        name: of the value: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`, or a figure of a step of the user's own.
        run: whose last epoch it is.

    Raises:
        PhaseError: epochs have no value of this name.
    """
    epoch = run.history[-1]
    if name in epoch.figures:
        return epoch.figures[name]
    if run.phase.validation is not None and name.startswith("val_") and not epoch.validated:
        return None
    raise _unknown(who, name, run, epoch.figures)


def _unknown(who: str, name: str, run: Run, figures: Mapping[str, float]) -> PhaseError:
    hint = did_you_mean(name, figures, "monitor one of these, or add a metric to the validation", cutoff=0.75)
    if name.startswith("val_") and run.phase.validation is None:
        hint = "add a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics"
    return PhaseError(
        f"{who} monitors {name!r}, which epochs of {run.phase.label!r} do not have",
        available=", ".join(figures),
        hint=hint,
    )
