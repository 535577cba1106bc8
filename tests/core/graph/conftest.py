"""Fixtures of tests of graphs: a registry with the backends of a test, data, models and small graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from graph_fixtures import mlp as mlp
from graph_fixtures import parts as parts
from graph_fixtures import sims as sims
from graph_fixtures import table as table

from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import plugin_module
from anyaccel.registry import Registry


@pytest.fixture(autouse=True)
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """`serve(backend, ..., policies={...})`: the registry of this process has NumPy and these, from now on.

    Without a call it has NumPy alone, whatever is installed.
    """

    def exchange(*backends: object, policies: dict[str, object] | None = None) -> Registry:
        registry = Registry(NumpyBackend, lambda: ())
        for i, backend in enumerate(backends):
            registry.register(plugin_module(f"p{i}", backends=lambda backend=backend: [backend]), f"p{i}")
        if policies is not None:
            registry.register(plugin_module("chooser", policies=lambda: policies), "chooser")
        monkeypatch.setattr("anyaccel.registry._registry", [registry])
        return registry

    exchange()
    return exchange


class Twin(NumpyBackend):
    """A second framework that computes: NumPy under another name, for nodes that say `framework="twin"`."""

    framework = "twin"
    import_roots = ("twin_models",)

    def __init__(self, devices: tuple[str, ...] = ("cpu",), vendor: str = "") -> None:
        self._there = [Device.parse(text) for text in devices]
        self._vendor = vendor
        self.kinds = tuple(dict.fromkeys(device.kind for device in self._there))

    def devices(self):
        return list(self._there)

    def owns(self, obj):
        return False

    def device_info(self, device):
        info = super().device_info(Device("cpu"))
        return type(info)(str(device), vendor=self._vendor)


@pytest.fixture
def twin() -> type[Twin]:
    return Twin
