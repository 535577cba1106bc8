"""Progress: the interface through which a run reports its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.results.events import Event


class Progress:
    """Base class that receives the progress of a run and ignores it. Override methods to show progress elsewhere.

    The thread that runs the phase calls the methods. If a method raises an exception, the phase ends.

    Example:
        >>> import anyaccel as aa
        >>> class Losses(aa.Progress):
        ...     def epoch(self, figures):
        ...         print(sorted(figures))
        >>> Losses().epoch({"loss": 0.5, "val_loss": 0.6})
        ['loss', 'val_loss']
    """

    def begin(self, label: str) -> Progress:
        """Begin a run of the phase with this label. Return the object to report to; by default this one."""
        return self

    def loading(self, what: str, nbytes: int) -> None:
        """Announce `nbytes` bytes of data, named `what`, that will be copied to devices."""

    def loaded(self, nbytes: int) -> None:
        """Report that another `nbytes` bytes are loaded."""

    def start(self, label: str, epochs: int, steps: int | None) -> None:
        """Start the training loop of `epochs` epochs with `steps` steps each; `steps` is None if unknown."""

    def advance(self, steps: int) -> None:
        """Report that `steps` more steps are done or queued on the device. Negative: steps were rolled back and run
        again.
        """

    def doing(self, text: str) -> None:
        """Show the current activity: `"compiling"`, `"validating"`, or `""` for training steps."""

    def epoch(self, figures: Mapping[str, float]) -> None:
        """Report the end of an epoch, with its losses and metrics."""

    def event(self, event: Event) -> None:
        """Show an event that is not `verbose`; `results.events` has all of them."""

    def stop(self) -> None:
        """End the training loop, with or without an error."""

    def end(self) -> None:
        """End the run, with or without an error; nothing more is reported."""


def is_terminal(stream: Any) -> bool:
    """Whether text that is written to a stream appears on a terminal."""
    try:
        return stream is not None and bool(stream.isatty())
    except (ValueError, AttributeError):  # closed, or replaced by an incomplete stream
        return False
