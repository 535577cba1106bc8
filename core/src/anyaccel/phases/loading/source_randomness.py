"""Random numbers of the thread that reads a source: a stream of its own, whatever the training draws meanwhile."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from anyaccel.registry import registry


class SourceRandomness:
    """What a source draws in one epoch from global generators of frameworks that have been imported.

    Args:
        key: 64 bits, from which it follows; None takes what the global generators hold when it begins.
        quiet: the source drew nothing in the epoch before, except at its beginning. To watch a source costs time, so
            that only the beginning is watched then.
    """

    def __init__(self, key: int | None, *, quiet: bool = False) -> None:
        self._key, self._quiet = key, quiet
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
        for backend in registry().backends:
            if backend.framework not in self._streams and not sys.modules.keys().isdisjoint(backend.import_roots):
                self._streams[backend.framework] = backend.thread_rng(self._key)
        for stream in self._streams.values():
            stack.enter_context(stream)
        return stack

    def next(self, key: int | None) -> SourceRandomness:
        """That of another epoch."""
        is_quiet = self._n_reads > 1 and self._n_draws == self._first_draws
        return SourceRandomness(key, quiet=is_quiet)

    @property
    def _n_draws(self) -> int:
        return sum(getattr(stream, "draws", 0) for stream in self._streams.values())
