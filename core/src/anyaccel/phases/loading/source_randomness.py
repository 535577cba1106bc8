"""Random numbers of what reads a source: a stream of its own, whatever the training draws meanwhile."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from anyaccel.data.streaming.random_states import imported_backends
from anyaccel.user_level import user_level


class SourceRandomness:
    """What a source draws in one epoch from global generators of frameworks that have been imported.

    Args:
        key: 64 bits, from which it follows; None takes what the global generators hold when it begins.
        quiet: the source drew nothing in the epoch before, except at its beginning. To watch a source costs time, so
            that only the beginning is watched then.
        in_turn: the source is read by the thread that trains, between two steps: the global generators themselves are
            used, so that code which seeds them gets what it expects.
    """

    def __init__(self, key: int | None, *, quiet: bool = False, in_turn: bool = False) -> None:
        self._key, self._quiet, self._in_turn = key, quiet, in_turn
        self._streams: dict[str, AbstractContextManager[Any]] = {}
        self._n_reads, self._first_draws = 0, 0

    def drawing(self) -> AbstractContextManager[Any]:
        """Around what reads the source, in the thread that does; a later one goes on where the one before ended."""
        self._n_reads += 1
        if self._n_reads == 2:
            self._first_draws = self._n_draws
        stack = ExitStack()
        if self._quiet and self._n_reads > 1:
            return stack
        for backend in imported_backends():
            if backend.framework not in self._streams:
                in_turn = self._in_turn and self._key is not None
                make = backend.global_rng if in_turn else backend.thread_rng
                self._streams[backend.framework] = make(self._key)  # type: ignore[arg-type]
        for stream in self._streams.values():
            stack.enter_context(stream)
        return stack

    def next(self, key: int | None, *, in_turn: bool = False) -> SourceRandomness:
        """That of another epoch."""
        is_quiet = self._n_reads > 1 and self._n_draws == self._first_draws
        return SourceRandomness(key, quiet=is_quiet and not in_turn, in_turn=in_turn)

    @property
    def has_drawn(self) -> bool:
        """Whether the source drew from a generator of a framework."""
        return self._n_draws > 0

    @property
    def passed(self) -> bool:
        """Whether a framework's global generator was seeded while a thread read ahead."""
        return any(getattr(stream, "passed", False) for stream in self._streams.values())

    @property
    def _n_draws(self) -> int:
        return sum(getattr(stream, "draws", 0) for stream in self._streams.values())


def warn_of_seed(what: str) -> None:
    """Warn that a framework's generator was seeded while a thread read ahead of the training, which draws from it."""
    warnings.warn(
        f"{what}: a framework's global generator was seeded while rows were read ahead, and not at the first of them: "
        "rows of this epoch that follow from that seed may be other ones. From the next epoch on they are read between "
        "steps. Hint: draw each row from a generator object that is seeded with the row's number",
        RuntimeWarning,
        stacklevel=user_level(),
    )
