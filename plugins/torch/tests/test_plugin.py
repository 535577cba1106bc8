"""The plugin's public names and hook, and that it imports torch lazily."""

from __future__ import annotations

import subprocess
import sys

import pytest

import anyaccel_torch
from anyaccel.backend import Backend, capabilities
from anyaccel.device import Device
from anyaccel.registry import Registry


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_neither_the_import_nor_the_backend_imports_torch() -> None:
    code = (
        "import sys, anyaccel_torch; found = anyaccel_torch.backends(); dir(anyaccel_torch);"
        "print(len(found), found[0].framework, found[0].device_string, 'torch' in sys.modules)"
    )
    assert run(code).startswith("1 torch") and run(code).endswith("False")


def test_sequential_mlp_is_imported_on_first_use() -> None:
    code = "import sys; from anyaccel_torch import SequentialMLP; print(SequentialMLP.__name__, 'torch' in sys.modules)"
    assert run(code) == "SequentialMLP True"


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        anyaccel_torch.Nothing  # noqa: B018
    assert "SequentialMLP" in dir(anyaccel_torch)


def test_the_backend_declares_every_capability() -> None:
    (backend,) = anyaccel_torch.backends()
    assert isinstance(backend, Backend)
    assert capabilities(backend) == ("exchange", "compute", "memory")
    assert (backend.framework, backend.kinds, backend.import_roots) == ("torch", ("gpu", "xpu", "cpu"), ("torch",))


class _Nothing(Backend):
    framework, kinds, import_roots = "numpy", ("cpu",), ("numpy",)
    devices = device_of = place = move = scope = device_string = None  # type: ignore[assignment]


def test_registry_lists_the_plugin() -> None:
    registry = Registry(_Nothing, list)
    registry.register(anyaccel_torch, "torch")
    assert registry.kinds("torch") == ("gpu", "xpu", "cpu")
    assert registry.serving("torch", Device("cpu")).framework == "torch"


def test_registry_says_why_a_gpu_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from anyaccel.errors import DeviceUnavailableError

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    registry = Registry(_Nothing, list)
    registry.register(anyaccel_torch, "torch")
    with pytest.raises(DeviceUnavailableError, match=r"gpu:0 is not on this machine .*built without CUDA"):
        registry.serving("torch", Device("gpu"))
