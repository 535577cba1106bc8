"""Monitoring: the value of an epoch that a callback watches, by its name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyaccel.errors import NaNWarning, PhaseError
from anyaccel.printable import printable
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

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
        value = epoch.figures[name]
        if math.isnan(value) and not any(math.isnan(before.figures.get(name, 0.0)) for before in run.history[:-1]):
            message = f"{who} monitors {name!r}, which is NaN in epoch {run.epoch + 1}: such an epoch is never the best"
            run.log_event("metric", message)
            if run.phase.on_nan != "ignore":
                warnings.warn(printable(f"phase {run.phase.label!r}: {message}"), NaNWarning, stacklevel=user_level())
        return value
    if run.phase.validation is not None and name.startswith("val_") and not epoch.validated:
        return None
    validates = run.phase.validation is not None
    raise unknown_value(who, name, run.phase.label, list(epoch.figures), validates=validates)


def unknown_value(who: str, name: str, phase: str, values: Sequence[str], *, validates: bool) -> PhaseError:
    """The error for a value that the epochs of a phase do not have.

    Args:
        who: what monitors it.
        name: of the value.
        phase: label of the phase.
        values: the names that its epochs have.
        validates: whether the phase has a validation.
    """
    hint = did_you_mean(name, values, "monitor one of these, or add a metric to the validation", cutoff=0.75)
    if name.startswith("val_") and not validates:
        hint = "add a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics"
    problem = f"{who} monitors {name!r}, which epochs of {phase!r} do not have"
    return PhaseError(problem, available=", ".join(values), hint=hint)
