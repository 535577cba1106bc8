"""Fixtures: the NumPy backend and no other plugin, and the command line in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from anyaccel.cli.main import group
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import plugin_module
from anyaccel.registry import Registry


@pytest.fixture(autouse=True)
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """`serve(backend, ...)`: the registry of this process has NumPy and these; without a call NumPy alone."""
    names = ("ANYACCEL_DEVICE", "ANYACCEL_PLUGINS", "ANYACCEL_SIMULATE", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    for name in (*names, "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def exchange(*backends: object) -> Registry:
        registry = Registry(NumpyBackend, lambda: ())
        for i, backend in enumerate(backends):
            registry.register(plugin_module(f"p{i}", backends=lambda backend=backend: [backend]), f"p{i}")
        monkeypatch.setattr("anyaccel.registry._registry", [registry])
        return registry

    exchange()
    return exchange


@pytest.fixture
def call() -> Callable[..., Result]:
    """`call("resolve", "any")`: runs a command in this process; unexpected exceptions are raised."""
    # Click 8.1 mixes both outputs unless it is told not to, and 8.2 cannot be told.
    settings = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

    def run(*arguments: str) -> Result:
        return CliRunner(**settings).invoke(group, arguments, prog_name="anyaccel", catch_exceptions=False)

    return run
