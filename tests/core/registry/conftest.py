"""Fixtures of these tests: a registry with the plugins of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from anyaccel.plugin_loader import SWITCH
from anyaccel.plugin_testing import FakeEntryPoint, TinyBackend
from anyaccel.registry import Registry


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(SWITCH, raising=False)
    yield


@pytest.fixture
def make() -> Callable[..., Registry]:
    """`make(entry, ...)` gives a registry of a built-in "numpy" and these entry points."""

    def registry(*entries: FakeEntryPoint) -> Registry:
        return Registry(lambda: TinyBackend("numpy", ("cpu", "sim:0", "sim:1")), lambda: entries)  # type: ignore[arg-type,return-value]

    return registry
