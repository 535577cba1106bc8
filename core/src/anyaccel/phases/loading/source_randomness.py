"""Random numbers of the thread that reads a source: a stream of its own, whatever the training draws meanwhile."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np

from anyaccel.registry import registry

_WATCHED_READS = 3
"""The first reads of an epoch tell whether global generators are drawn from; to look costs microseconds each time."""


class SourceRandomness:
    """What a source draws in one epoch from global generators of frameworks that have been imported.

    Args:
        key: 64 bits, from which it follows; None takes what the global generators hold when it begins.
        quiet: the source drew nothing in the epoch before, except at its beginning. To watch a source costs time, so
            that only the beginning is watched then.

    Attributes:
        unsaved: the global generators that it drew from at its first reads, and whose state no checkpoint has.
    """

    def __init__(self, key: int | None, *, quiet: bool = False) -> None:
        self._key, self._quiet = key, quiet
        self._streams: dict[str, AbstractContextManager[Any]] = {}
        self._n_reads, self._first_draws = 0, 0
        self.unsaved: tuple[str, ...] = ()

    def drawing(self) -> AbstractContextManager[Any]:
        """Around what reads the source, in the thread that does; a later one goes on where the one before ended."""
        self._n_reads += 1
        if self._n_reads == 2:
            self._first_draws = self._n_draws
        stack = ExitStack()
        if self._n_reads <= _WATCHED_READS:
            stack.enter_context(self._watching())
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
    def has_drawn(self) -> bool:
        """Whether the source drew from a generator of a framework."""
        return self._n_draws > 0

    @contextmanager
    def _watching(self) -> Generator[None]:
        before = _global_states()
        try:
            yield
        finally:
            after = _global_states()
            drawn = (name for name in after if after[name] != before[name])
            self.unsaved = tuple(dict.fromkeys((*self.unsaved, *drawn)))

    @property
    def _n_draws(self) -> int:
        return sum(getattr(stream, "draws", 0) for stream in self._streams.values())


def _global_states() -> dict[str, Any]:
    """Of the generators that all threads share."""
    state: Any = np.random.get_state(legacy=False)
    numbers = state["state"]
    return {"Python's random": random.getstate(), "NumPy's np.random": (numbers["key"].tobytes(), numbers["pos"])}
