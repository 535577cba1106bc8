"""Accumulation: check custom losses that are not means over rows, because their batches do not add up to one large
batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.specs import Loss


def check_accumulation(
    label: str,
    losses: tuple[AppliedLoss, ...],
    *,
    doing: str = "accumulates batches",
    left_out: str = "leave accumulate out",
) -> None:
    """Check that the gradients of several batches, weighted by rows, equal those of one batch of all their rows.

    Args:
        label: Label of the phase.
        losses: Losses of the phase.
        doing: Setting that makes the batches parts of a step.
        left_out: Alternative for the user to write.

    Raises:
        PhaseError: the settings of a loss define a sum, or a mean that gives some rows less weight.
    """
    for loss in losses:
        settings, reason = _settings(loss.loss), ""
        if settings.get("reduction") == "sum":
            reason = "a sum over rows (reduction='sum')"
        elif "ignore_index" in settings and settings.get("weight") is not None:
            reason = "a mean weighted by class (weight)"
        if reason:
            raise PhaseError(
                f"phase {label!r} {doing}, and the loss {loss.label!r} is {reason}: a step would "
                "differ from one on the whole batch",
                hint=f"{left_out}, or use a loss function that returns the mean over all rows of its batch",
            )


def ignored_target(loss: Loss) -> int | None:
    """Return the class index that a loss leaves out of its mean, or None."""
    settings = _settings(loss)
    ignored = settings.get("ignore_index", settings.get("ignore_class"))
    return ignored if isinstance(ignored, int) else None


def _settings(loss: Loss) -> Mapping[str, Any]:
    """Return the settings of a custom loss: attributes of an object, arguments and defaults of a class."""
    own, names = loss.own, ("reduction", "ignore_index", "ignore_class", "weight")
    if isinstance(own, functools.partial):
        return {name: value for name, value in own.keywords.items() if name in names}
    if own is None or inspect.isroutine(own):
        return {}
    if not isinstance(own, type):
        return {name: getattr(own, name) for name in names if hasattr(own, name)}
    try:
        defaults = {name: parameter.default for name, parameter in inspect.signature(own).parameters.items()}
    except (TypeError, ValueError):
        defaults = {}
    return {name: value for name, value in {**defaults, **loss.kwargs}.items() if name in names}
