"""Fixtures of these tests: the registry of the process, replaced by one with the backends of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anyaccel import accelerator, placement
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import Registry


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """`use(backend, ...)`: from now on these are served, and a built-in "numpy" on cpu."""

    def exchange(*backends: TinyBackend, built_in: TinyBackend | None = None) -> Registry:
        registry = Registry(lambda: built_in or TinyBackend("numpy"), lambda: ())
        for i, backend in enumerate(backends):
            registry.register(plugin_module(f"p{i}", backends=lambda backend=backend: [backend]), f"p{i}")
        for module in (accelerator, placement):
            monkeypatch.setattr(module, "registry", lambda: registry)
        return registry

    return exchange
