"""Broken plugins beside NumPy: it trains as if they were not there, and each is listed with its cause and a hint."""

from __future__ import annotations

import numpy as np
import pytest
from broken_plugins import broken_plugins

import anyaccel as aa
from anyaccel import registry as registry_module
from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend, SequentialMLP
from anyaccel.registry import Registry

BROKEN = broken_plugins("numpy")
del BROKEN["brk_conflict"]  # numpy is core's own, so that this is `brk_shadow`


def losses() -> list[float]:
    """Train a small graph on the CPU."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(12, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": rows, "y": rows.sum(1, keepdims=True)}, ["x"], ["y"])
    net = aa.ModelNode("net", SequentialMLP(output_shape=(1,), n_layers=1), data.reference(["x"], ["y"]))
    graph = aa.ModelGraph([net], aa.Optimizer("sgd", lr=0.05))
    train = aa.TrainPhase(
        "train", data="all", accelerator="cpu", losses=[aa.AppliedLoss("mse", on="net")], epochs=2, batch_size=4
    )
    result = aa.Experiment("e", graph).run_phase(train)
    return list(result.loss)


@pytest.fixture
def use(monkeypatch):
    """`use(entry, ...)`: the registry of this process has NumPy and these plugins."""

    def exchange(*entries) -> Registry:
        registry = Registry(NumpyBackend, lambda: entries)
        monkeypatch.setattr(registry_module, "_registry", [registry])
        return registry

    monkeypatch.delenv("ANYACCEL_PLUGINS", raising=False)
    return exchange


def ask_everything(registry: Registry) -> None:
    """All that core asks of backends that it does not use."""
    assert Device("cpu") in aa.devices() and aa.best_device().kind == "cpu"
    assert "numpy" in aa.devices()._repr_html_()
    assert aa.Accelerator("cpu").is_available() and not aa.Accelerator("hpu").is_available()
    assert str(aa.device_of({"x": np.ones(2), "label": "a"})) == "cpu:0"
    assert registry.owners(object()) == () and registry.owner(np.ones(2)) == "numpy"
    for backend in registry.backends:
        for method in ("device_info", "device_string", "unavailable_reason"):
            registry.ask(backend, method, Device(backend.kinds[0]))
    with pytest.raises(aa.errors.DeviceUnavailableError):
        registry.serving("numpy", Device("cpu", 7), vendor="nvidia")


def test_the_table_has_every_way_to_be_broken():
    assert len(BROKEN) >= 30


@pytest.fixture(scope="module")
def expected():
    """The losses without any plugin."""
    return {}


@pytest.mark.parametrize("name", BROKEN)
def test_numpy_works_beside_a_broken_plugin_which_is_listed_with_cause_and_hint(name, use, expected):
    if not expected:
        use()
        expected["losses"] = losses()
    entry, words = BROKEN[name]
    registry = use(entry)
    ask_everything(registry)
    plugin = registry.plugins[-1]
    assert plugin.name == name and plugin.version == "0.3"
    assert words in plugin.cause and "\n" not in plugin.cause
    assert plugin.is_broken == bool(words) == bool(plugin.hint), plugin.cause
    assert losses() == expected["losses"]


def test_numpy_works_beside_all_of_them(use, expected):
    registry = use(*(entry for entry, _ in BROKEN.values()))
    ask_everything(registry)
    assert losses() == expected.setdefault("losses", losses())
    assert {plugin.name for plugin in registry.plugins} == {"numpy", *BROKEN}
    assert not registry.plugins[0].is_broken
