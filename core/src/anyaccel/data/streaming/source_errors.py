"""Faults: what goes wrong in a source, told with the source, the batch and the column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyaccel.errors import AnyaccelError, SourceError

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Which batch of a source is meant."""

    label: str
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of source {self.label!r} in epoch {self.epoch} (both counted from 0)"


@contextmanager
def error_context(place: object) -> Iterator[None]:
    """What is raised inside for a column is told with where that was.

    Raises:
        SourceError: in place of every other error of anyaccel.
    """
    try:
        yield
    except SourceError:
        raise
    except AnyaccelError as error:
        raise SourceError(f"{place}: {error.problem}", available=error.available, hint=error.hint) from error


def failed(what: str, error: Exception) -> SourceError:
    """The error for user's code that raised; `what` tells what could not be done."""
    return SourceError(
        f"{what}: {type(error).__name__}{_words(error)}",
        hint="see the error above this one, which the source itself raised",
    )


def _words(error: Exception) -> str:
    """The last line of what an error says: those of worker processes begin with a traceback in words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return ""
    text = lines[-1].removeprefix(f"{type(error).__name__}: ")
    return f": {text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}"
