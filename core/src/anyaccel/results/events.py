"""Events of a run: decisions (compilation, residency) and incidents (memory, sources) that did not end it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from anyaccel.call_hints import constructor_hints

_LOG = logging.getLogger("anyaccel")
_LOG.addHandler(logging.NullHandler())  # without a logging setup, progress and results show events

KINDS = (
    "compile",
    "residency",
    "memory",
    "source",
    "transfer",
    "rate",
    "checkpoint",
    "precision",
    "profile",
    "context",
    "metric",
)
"""Kinds of events."""


class LogEvent(Protocol):
    """Type of `Run.log_event`."""

    def __call__(self, kind: str, message: str, *, verbose: bool = ...) -> None:
        """Log an event; `verbose` ones appear in results and debug logs only."""


def discard_event(kind: str, message: str, *, verbose: bool = False) -> None:
    """Ignore an event; a `LogEvent` for callers without a log."""


@constructor_hints
@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Attributes:
        epoch, step: Time of the event, counted from 0 within the run; both -1 before the loop.
        kind: `"compile"` (how steps are computed), `"residency"` (where the data are), `"memory"` (memory ran out, and
            the measures taken), `"source"` (streamed data), `"transfer"` (how values are copied between frameworks),
            `"rate"` (a schedule lowered the learning rate), `"checkpoint"` (one was read, or could not be written),
            `"precision"` (steps were skipped, and the new loss scale), `"profile"` (where a profile is), `"context"` (a
            context of the caller, such as `torch.no_grad`, that does not apply inside) or `"metric"` (one is not
            defined for the rows that it measures).
        message: The event and its reason.
        verbose: Whether the event needs no attention, such as why steps are not compiled; it is then shown only in the
            results and the debug log.

    Example:
        >>> import anyaccel as aa
        >>> aa.Event(epoch=0, step=2, kind="compile", message="steps are compiled").where
        'epoch 1, step 3'
    """

    epoch: int
    step: int
    kind: str
    message: str
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of event {self.kind!r}; available: {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.epoch < 0 else f"{self.kind}: {self.message} ({self.where})"

    @property
    def where(self) -> str:
        """Epoch and step in words, counted from 1."""
        return "before the loop" if self.epoch < 0 else f"epoch {self.epoch + 1}, step {self.step + 1}"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data, ready for JSON."""
        when = {"epoch": self.epoch, "step": self.step}
        return {**when, "kind": self.kind, "message": self.message, "verbose": self.verbose}


def log(event: Event, label: str) -> None:
    """Write an event to the logger `anyaccel`: a warning if memory ran out, debug if `verbose`, otherwise info."""
    default = logging.DEBUG if event.verbose else logging.INFO
    level = logging.WARNING if event.kind == "memory" else default
    _LOG.log(level, "%s: %s", label, event)
