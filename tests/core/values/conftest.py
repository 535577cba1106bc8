"""Fixtures of these tests: the registry that Accelerator uses, replaced by one with the backends of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anyaccel import accelerator
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import Registry


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """`use(backend, ...)`: from now on these are served, and a built-in "numpy" on cpu."""

    def exchange(*backends: TinyBackend) -> Registry:
        registry = Registry(lambda: TinyBackend("numpy"), lambda: ())
        for i, backend in enumerate(backends):
            registry.register(plugin_module(f"p{i}", backends=lambda backend=backend: [backend]), f"p{i}")
        monkeypatch.setattr(accelerator, "registry", lambda: registry)
        return registry

    return exchange
