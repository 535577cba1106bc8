"""Fixtures for loading: blocks of a chosen size, and a check that no prefetch thread is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from anyaccel.phases.loading import residency as loader_factory

THREAD = "anyaccel-prefetch"


def prefetch_threads() -> list[str]:
    """Names of the threads that prefetch blocks."""
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`blocks(64)`: streamed blocks are of that many bytes, and at least of one step."""
    return lambda nbytes: monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """No test leaves a thread."""
    assert prefetch_threads() == []
    yield
    assert prefetch_threads() == []
