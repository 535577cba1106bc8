"""Progress: what hears of the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping


class Progress:
    """Hears of the progress of a run; this one says nothing. Derive from it to tell it elsewhere.

    What its methods raise ends the phase as any error does.
    """

    def loading(self, what: str, nbytes: int) -> None:
        """So many bytes are about to be put on devices, before the loop begins; `what` names them."""

    def start(self, label: str, epochs: int, steps: int) -> None:
        """A phase of so many epochs, of so many steps each, begins its loop."""

    def advance(self, steps: int) -> None:
        """So many steps are done (on some devices: asked for)."""

    def epoch(self, figures: Mapping[str, float]) -> None:
        """An epoch is done, with these figures."""

    def stop(self) -> None:
        """The loop has ended, well or not."""
