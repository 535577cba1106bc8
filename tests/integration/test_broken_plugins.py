"""Broken plugins beside those that are installed: every framework trains as if they were not there.

Some of them one by one, and all at once; with ANYACCEL_TEST_FULL=1, every one of them one by one.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from broken_plugins import broken_plugins

import anyaccel as aa
from anyaccel import registry as registry_module
from anyaccel.device import Device
from anyaccel.plugin_loader import built_in_backend, installed
from anyaccel.registry import Registry, registry

SAMPLE = ("brk_conflict", "brk_roots_of_another", "brk_owns_all", "brk_everything_raises", "brk_import_exits")
NAMES = tuple(broken_plugins("any")) if os.environ.get("ANYACCEL_TEST_FULL") else SAMPLE


@pytest.fixture
def beside(monkeypatch):
    """`beside(entry, ...)`: the registry of this process has the installed plugins and these."""

    def exchange(*entries) -> Registry:
        made = Registry(built_in_backend, lambda: [*installed(), *entries])
        monkeypatch.setattr(registry_module, "_registry", [made])
        return made

    monkeypatch.delenv("ANYACCEL_PLUGINS", raising=False)
    return exchange


def losses(framework: str) -> list[float]:
    """Train a model of a framework, whose owner is found by its class, for two epochs on the CPU."""
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": rows, "y": rows.sum(1, keepdims=True)}, ["x"], ["y"])
    model = registry().computing(framework).models()["SequentialMLP"](output_shape=(1,), n_layers=1)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(["x"], ["y"]))], aa.Optimizer("sgd", lr=0.05))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data="all", losses=losses, epochs=2, batch_size=4, accelerator="cpu", compile="off")
    return list(aa.Experiment("e", graph).run_phase(phase).loss)


@pytest.fixture(scope="module")
def expected():
    """The losses of each framework without broken plugins."""
    return {}


def check(framework: str, known: Registry, expected: dict[str, list[float]]) -> None:
    assert Device("cpu") in aa.devices() and Device("cpu") in aa.devices(framework=framework)
    tensor = aa.move(np.ones(3, "float32"), "cpu", framework=framework)
    assert known.owner(tensor) == framework and aa.device_of({"x": tensor}).kind == "cpu"
    assert losses(framework) == expected[framework]
    assert [plugin.name for plugin in known.plugins if plugin.is_broken and not plugin.name.startswith("brk")] == []


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_a_framework_works_beside_a_broken_plugin(framework, name, beside, expected):
    if framework not in expected:
        expected[framework] = losses(framework)
    entry, words = broken_plugins(framework)[name]
    known = beside(entry)
    check(framework, known, expected)
    plugin = next(plugin for plugin in known.plugins if plugin.name == name)
    if name in ("brk_conflict", "brk_everything_raises", "brk_import_exits"):
        assert words in plugin.cause and plugin.hint


@pytest.mark.shared
def test_a_framework_works_beside_all_broken_plugins(framework, beside, expected):
    if framework not in expected:
        expected[framework] = losses(framework)
    check(framework, beside(*(entry for entry, _ in broken_plugins(framework).values())), expected)
