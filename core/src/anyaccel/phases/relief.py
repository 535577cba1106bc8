"""Relief: what is done when a device has run out of memory: stream the rows, then compute less of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyaccel.errors import OutOfMemoryError
from anyaccel.phases.events import LogEvent
from anyaccel.phases.loading import Supply
from anyaccel.phases.traceback_cleanup import forget


class Relief:
    """The rows of one phase or of its validation, and how much of them is computed at once.

    Args:
        name: whose rows, for what is told.
        supply: the rows.
        batch: the most of them in a step.
        streamed: makes a supply of the same rows that needs less memory; None where they may not, or cannot, be
            streamed.
        mixing: what forbids computing a step in parts; empty if nothing does.
        tell: is told what is done.
        refused: an error with all figures, for when nothing is left to be done.

    Attributes:
        supply: as it is now.
        piece: rows that are computed at once now, at most; None for whole steps.
        spare: lets go of what is kept in case that memory runs out again, when nothing else is left; False if there is
            nothing. Who keeps snapshots sets it.
        batch: as given.
    """

    def __init__(
        self,
        name: str,
        supply: Supply,
        batch: int,
        streamed: Callable[[], Supply] | None,
        mixing: Sequence[str],
        tell: LogEvent,
        refused: Callable[[OutOfMemoryError, int, Sequence[str], Supply], OutOfMemoryError] | None = None,
    ) -> None:
        self.supply = supply
        self.batch = batch
        self.piece: int | None = None
        self.spare: Callable[[], bool] = _nothing
        self._name, self._streamed, self._mixing = name, streamed, mixing
        self._tell, self._refused = tell, refused

    def give(self, error: OutOfMemoryError, batch: int) -> None:
        """Make room after `batch` rows, which were computed at once, have failed.

        Raises:
            OutOfMemoryError: nothing is left to be done; says what fills the memory, and what would fit.
        """
        _strip(error)
        if self._streamed is not None and self.supply.residency == "resident":
            self.supply.close()
            self.supply = self._streamed()
            if self.piece:
                self.supply.part(self.piece)
            self._tell("memory", f"{self._name}: memory ran out ({error.problem}); rows are streamed from now on")
            return
        shrunk = self.supply.shrink()
        batch = batch or self.batch
        now = min(self.piece or batch, batch)
        whole = now <= 1 or bool(self._mixing)  # it can be computed in no smaller parts
        if shrunk and whole:
            self._tell(
                "memory", f"{self._name}: memory ran out ({error.problem}); rows are streamed in smaller blocks now"
            )
            return
        if whole and self.spare():
            self._tell(
                "memory",
                f"{self._name}: memory ran out ({error.problem}); snapshots, which need room, are not taken any more",
            )
            return
        if whole:
            raise self.refusal(error, now) from None
        self.piece = smaller(batch, now)
        self.supply.part(self.piece)
        self._tell(
            "memory", f"{self._name}: memory ran out ({error.problem}); {self.piece} rows of {batch} at once now"
        )

    def refusal(self, error: OutOfMemoryError, batch: int) -> OutOfMemoryError:
        """The error that ends all, after a step has failed that computed `batch` rows at once."""
        _strip(error)
        rows = min(self.piece or batch or self.batch, batch or self.batch)
        return error if self._refused is None else self._refused(error, rows, self._mixing, self.supply)


def _nothing() -> bool:
    return False


def _strip(error: OutOfMemoryError) -> None:
    """Let go of all that an error holds. Its frames keep what inner functions see, even when they are cleared."""
    forget(error)
    error.__traceback__ = error.__context__ = error.__cause__ = None


def smaller(batch: int, piece: int) -> int:
    """About half a piece: the largest that divides the batch and is not less than a quarter, else half of it."""
    half = -(-piece // 2)
    return next((size for size in range(half, max(piece // 4, 1) - 1, -1) if batch % size == 0), half)
