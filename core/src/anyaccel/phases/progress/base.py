"""Progress: the interface by which a run reports its progress."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.results.events import Event


class Progress:
    """Receives the progress of a run; this base class ignores it. Override methods to show it elsewhere.

    An exception raised by a method ends the phase. Methods are called by the thread that runs the phase.
    """

    def begin(self, label: str) -> Progress:
        """A run of the phase with this label starts. Returns the object to report to, by default this one."""
        return self

    def loading(self, what: str, nbytes: int) -> None:
        """Data of `nbytes` bytes are about to be copied to devices; `what` names them."""

    def loaded(self, nbytes: int) -> None:
        """Another `nbytes` bytes are loaded."""

    def start(self, label: str, epochs: int, steps: int | None) -> None:
        """The training loop starts: so many epochs of so many steps each; None if the number of steps is unknown."""

    def advance(self, steps: int) -> None:
        """So many more steps are done (or queued on the device). Negative: steps were rolled back and run again."""

    def doing(self, text: str) -> None:
        """The current activity: `"compiling"`, `"validating"`, or `""` for training steps."""

    def epoch(self, figures: Mapping[str, float]) -> None:
        """An epoch is done, with these losses and metrics."""

    def event(self, event: Event) -> None:
        """An event that is not `verbose`; `results.events` has all of them."""

    def stop(self) -> None:
        """The training loop has ended, with or without an error."""

    def end(self) -> None:
        """The run has ended, with or without an error; nothing more is reported."""
