"""Events: what was decided while a phase ran, and what happened to it that did not end it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

_LOG = logging.getLogger("anyaccel")
_LOG.addHandler(logging.NullHandler())  # who set up no log is told by the progress and the results

KINDS = ("compile", "residency", "memory", "source")
"""What an event can be of."""


class LogEvent(Protocol):
    """Notes what was decided or done: `Run.tell`."""

    def __call__(self, kind: str, message: str, *, verbose: bool = False) -> None:
        """Of an event's kind and text, and whether it is a matter of course."""


@dataclass(frozen=True, slots=True)
class Event:
    """One decision or happening of a run.

    `what` is `"compile"` (how steps are computed), `"residency"` (where the data are), `"memory"` (it was short, and
    what was done) or `"source"` (of data that come while they are used). `epoch` and `step` count within the run from
    0, both -1 before the loop. `routine` is what needs nobody's attention: that rows which fit stay on their device, or
    why steps are not compiled. It is in the results and, for debugging, in the log; nothing else shows it.
    """

    epoch: int
    step: int
    kind: str
    message: str
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"an event of {self.kind!r}; there is: {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.epoch < 0 else f"{self.kind}: {self.message} ({self.where})"

    @property
    def where(self) -> str:
        """When it was, in words, counted from 1 as people count."""
        return "before the loop" if self.epoch < 0 else f"epoch {self.epoch + 1}, step {self.step + 1}"

    def to_dict(self) -> dict[str, Any]:
        """The event as plain data, ready for JSON."""
        when = {"epoch": self.epoch, "step": self.step}
        return {**when, "kind": self.kind, "message": self.message, "verbose": self.verbose}


def log(event: Event, label: str) -> None:
    """Write an event of a phase to the log `anyaccel`.

    As a warning if memory was short, for debugging if it is routine, else as information.
    """
    usual = logging.DEBUG if event.verbose else logging.INFO
    level = logging.WARNING if event.kind == "memory" else usual
    _LOG.log(level, "%s: %s", label, event)
