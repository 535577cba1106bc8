"""What the plugin offers, and that it imports TensorFlow only on use."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import anyaccel_tensorflow
from anyaccel.backend import Backend, capabilities
from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel.registry import Registry


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_neither_the_import_nor_the_backend_imports_tensorflow_or_keras() -> None:
    code = (
        "import sys, anyaccel_tensorflow; found = anyaccel_tensorflow.backends(); dir(anyaccel_tensorflow);"
        "print(len(found), found[0].framework, found[0].import_roots, {'tensorflow', 'keras'} & set(sys.modules))"
    )
    assert run(code) == "1 tensorflow ('tensorflow', 'keras') set()"


def test_models_are_loaded_on_first_use() -> None:
    code = (
        "import sys; from anyaccel_tensorflow import SequentialCNN as C, SequentialMLP as M;"
        "print(C.__name__, M.__name__, 'tensorflow' in sys.modules)"
    )
    assert run(code) == "SequentialCNN SequentialMLP True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        anyaccel_tensorflow.Nothing  # noqa: B018
    assert "SequentialMLP" in dir(anyaccel_tensorflow)


def test_the_backend_declares_every_capability() -> None:
    (backend,) = anyaccel_tensorflow.backends()
    assert isinstance(backend, Backend)
    assert capabilities(backend) == ("exchange", "compute", "memory")
    assert (backend.framework, backend.kinds, backend.import_roots) == (
        "tensorflow",
        ("gpu", "cpu"),
        ("tensorflow", "keras"),
    )


class _Nothing(Backend):
    framework, kinds, import_roots = "numpy", ("cpu",), ("numpy",)
    devices = device_of = place = move = scope = device_string = None  # type: ignore[assignment]


def test_the_registry_takes_the_plugin() -> None:
    registry = Registry(_Nothing, list)
    registry.register(anyaccel_tensorflow, "tensorflow")
    assert registry.kinds("tensorflow") == ("gpu", "cpu")
    assert registry.serving("tensorflow", Device("cpu", 2)).framework == "tensorflow"


def test_the_registry_tells_why_a_gpu_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: False)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda word: [])
    registry = Registry(_Nothing, list)
    registry.register(anyaccel_tensorflow, "tensorflow")
    with pytest.raises(DeviceUnavailableError, match=r"gpu:0 is not on this machine .*built without GPU support"):
        registry.serving("tensorflow", Device("gpu"))


def test_no_name_of_tensorflow_is_a_hard_dependency() -> None:
    """`tensorflow` and `tensorflow-cpu` contain the same files: neither may overwrite the other."""
    needs = metadata.requires("anyaccel-tensorflow")
    if needs is None:  # run from the sources
        file = Path(__file__).parents[1] / "pyproject.toml"
        needs = tomllib.loads(file.read_text("utf-8"))["project"]["dependencies"]
    assert not [need for need in needs if need.startswith("tensorflow") and "extra" not in need]


def test_placement_is_small() -> None:
    """It is the example of the mandatory part of a plugin."""
    source = Path(anyaccel_tensorflow.__file__).with_name("placement.py")
    assert len(source.read_text("utf-8").splitlines()) <= 100
