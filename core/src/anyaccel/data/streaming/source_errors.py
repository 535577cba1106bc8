"""Errors of sources, with their source, batch and column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyaccel.errors import AnyaccelError, SourceError

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """A batch of a source, for messages."""

    label: str
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of source {self.label!r} in epoch {self.epoch} (both counted from 0)"


@contextmanager
def error_context(position: object) -> Iterator[None]:
    """Turn errors of anyaccel into a SourceError with the place in the source."""
    try:
        yield
    except SourceError:
        raise
    except AnyaccelError as error:
        raise SourceError(f"{position}: {error.problem}", available=error.available, hint=error.hint) from error


def failed(
    what: str, error: Exception, hint: str = "see the error above this one, raised by the source"
) -> SourceError:
    """Create the error for the user's code that raised `error`; `what` is the action that failed."""
    return SourceError(f"{what}: {type(error).__name__}{_last_line(error)}", hint=hint)


def _last_line(error: Exception) -> str:
    """Return the last line of an error's text: those of worker processes begin with a traceback as text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return ""
    text = lines[-1].removeprefix(f"{type(error).__name__}: ")
    return f": {text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}"
