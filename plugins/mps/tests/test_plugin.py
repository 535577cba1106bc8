"""What the plugin offers, what it imports, and what it does at the end of a phase."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
import anyaccel_mps
import anyaccel_torch
from anyaccel import registry as registries
from anyaccel.backend import capabilities
from anyaccel.errors import DeviceUnavailableError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry
from anyaccel_mps import MpsBackend
from anyaccel_torch import SequentialMLP, TorchBackend

MPS = aa.Device("mps")


def run(code: str) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_neither_the_import_nor_the_backend_imports_torch() -> None:
    code = (
        "import anyaccel_mps; found = anyaccel_mps.backends(); dir(anyaccel_mps);"
        "anyaccel_mps.phase_end(None); print(len(found), found[0].kinds, 'torch' in sys.modules)"
    )
    assert run(code) == "1 ('mps',) False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'anyaccel_mps' has no attribute 'Nothing'"):
        anyaccel_mps.Nothing  # noqa: B018
    assert dir(anyaccel_mps) == ["MpsBackend", "backends", "phase_end"]


def test_facts_of_the_backend() -> None:
    (backend,) = anyaccel_mps.backends()
    assert isinstance(backend, TorchBackend)
    assert capabilities(backend) == ("exchange", "compute", "memory")
    assert (backend.framework, backend.kinds, backend.import_roots) == ("torch", ("mps",), ("torch",))
    assert (backend.pinned_kinds, backend.unsupported_dtypes) == (frozenset(), frozenset({"float64", "complex128"}))
    assert backend.device_string(MPS) == "mps:0"


def test_it_adds_to_the_torch_plugin() -> None:
    registry = Registry(NumpyBackend, list)
    registry.register(anyaccel_torch, "torch")
    registry.register(anyaccel_mps, "mps")
    assert registry.kinds("torch") == ("gpu", "xpu", "cpu", "mps")
    assert type(registry.find("torch", "mps")) is MpsBackend
    assert type(registry.find("torch")) is TorchBackend


def test_the_registry_says_why_mps_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MpsBackend, "devices", lambda self: [])
    monkeypatch.setattr("platform.system", lambda: "Linux")
    registry = Registry(NumpyBackend, list)
    registry.register(anyaccel_mps, "mps")
    with pytest.raises(DeviceUnavailableError, match=r"mps:0 is not on this machine for torch \(MPS is part of mac"):
        registry.serving("torch", MPS)


# -- the end of a phase ------------------------------------------------------------------------------------------------


def plan_of(*places: tuple[str, str]) -> Any:
    return SimpleNamespace(
        assignments=[SimpleNamespace(framework=framework, device=aa.Device(kind)) for framework, kind in places]
    )


@pytest.mark.parametrize(
    ("plan", "emptied"),
    [
        (plan_of(("torch", "mps")), True),
        (plan_of(("torch", "cpu"), ("torch", "mps")), True),
        (plan_of(("torch", "cpu")), False),
        (plan_of(("mlx", "mps")), False),  # not this plugin's cache
        (plan_of(), False),
        (None, False),  # the phase ended before there was a plan
    ],
)
def test_the_cache_is_emptied_after_a_phase_that_used_it(metal: list[str], plan: Any, emptied: bool) -> None:
    anyaccel_mps.phase_end(plan)
    assert metal == ["empty_cache"] * emptied


@pytest.fixture
def loaded(cpu_backend: Any, metal: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A registry with the torch plugin, and this one with the CPU as its device."""
    plugin, registry = ModuleType("mps_on_cpu"), Registry(NumpyBackend, list)
    plugin.contract = 2  # type: ignore[attr-defined]
    plugin.backends = aa.hookimpl(lambda: [cpu_backend])  # type: ignore[attr-defined]
    plugin.phase_end = anyaccel_mps.phase_end  # type: ignore[attr-defined]
    registry.register(anyaccel_torch, "torch")
    registry.register(plugin, "mps")
    monkeypatch.setattr(registries, "_registry", [registry])
    return cpu_backend


@pytest.mark.parametrize("where", ["mps", "metal", "cpu"])
def test_a_graph_trains_and_its_float64_data_are_cast(loaded: Any, metal: list[str], where: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 4))
    assert x.dtype == "float64"
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(1), source.reference())], aa.Optimizer("adam", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=source, losses=losses, accelerator=where, epochs=10)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert results.plan.device("net") == aa.Device.parse(where)
    assert {column.change for column in results.plan.columns} == {"float64 to float32"}
    assert results.loss[-1] < results.loss[0]
    assert metal.count("empty_cache") == (where != "cpu")


def test_the_cache_is_emptied_after_a_phase_that_failed(loaded: Any, metal: list[str]) -> None:
    class Stop(aa.Callback):
        def after_loading(self, phase: Any, plan: Any) -> None:
            raise RuntimeError("enough")

    source = aa.FeatureSet.from_dict("data", {"x": np.ones((8, 2)), "y": np.ones((8, 1))}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(1), source.reference())], "sgd")
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data=source, losses=losses, accelerator="mps", callbacks=[Stop()])
    with pytest.raises(RuntimeError, match="enough"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert metal.count("empty_cache") == 1
