"""What tests of the loop's feeding share: blocks of a chosen size, and an eye on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from anyaccel.phases.loading import loader_factory

THREAD = "anyaccel-prefetch"


def at_work() -> list[str]:
    """Threads that make blocks."""
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`blocks(64)`: streamed blocks are of that many bytes, and at least of one step."""
    return lambda nbytes: monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """Whatever a test does: no thread is left."""
    assert at_work() == []
    yield
    assert at_work() == []
