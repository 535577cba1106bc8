"""Progress: what hears of the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.phases.events import Event


class Progress:
    """Hears of the progress of a run; this one says nothing. Derive from it to tell it elsewhere.

    What its methods raise ends the phase as any error does. They are called from the thread that runs the phase.
    """

    def begin(self, label: str) -> Progress:
        """A run of a phase of this label begins; what hears of it, by default this object."""
        return self

    def loading(self, what: str, nbytes: int) -> None:
        """So many bytes are about to be put on devices, before the loop begins; `what` names them."""

    def loaded(self, nbytes: int) -> None:
        """So many bytes more of what is being loaded are there."""

    def start(self, label: str, epochs: int, steps: int | None) -> None:
        """A phase of so many epochs, of so many steps each, begins its loop. None: nobody knows how many steps."""

    def advance(self, steps: int) -> None:
        """So many steps are done (on some devices: asked for). Of a number below 0: taken back, to be done again."""

    def doing(self, text: str) -> None:
        """What goes on now: `"compiling"`, `"validating"`; `""` for steps."""

    def epoch(self, figures: Mapping[str, float]) -> None:
        """An epoch is done, with these figures."""

    def event(self, event: Event) -> None:
        """Something was decided, or happened, that is worth a line; `results.events` has it, and what is routine."""

    def stop(self) -> None:
        """The loop has ended, well or not."""

    def end(self) -> None:
        """The run has ended, well or not, with a loop or without: nothing more is told of it."""
