"""Listing and describing devices, and starting TensorFlow; GPUs are faked."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from anyaccel.backend import DeviceInfo, Memory
from anyaccel.device import Device
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.backend import TensorFlowBackend

CPU, GPU = Device("cpu"), Device("gpu")


def child(code: str, given: str = "") -> str:
    """The output of a new interpreter, with this input."""
    known = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, **known},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# TensorFlow has no public word for "started"; but once it is, its logical devices cannot be configured otherwise.
STARTED = """
def started(n):
    try:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)
    except RuntimeError:
        return True
    return False
"""


# Runs pieces of code, each in a fork of a process that has imported TensorFlow and not started it: imports are slow.
IN_FORKS = """
import json, os, sys
import keras, tensorflow

printed = []
for code in json.load(sys.stdin):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with open(reading) as output:
        printed.append(output.read())
    os.wait()
print(json.dumps(printed))
"""
ASKING = f"""
import tensorflow as tf
{STARTED}
assert not started(2)
from anyaccel import Device
from anyaccel_tensorflow import TensorFlowBackend
b = TensorFlowBackend()
print([str(d) for d in b.devices()], b.unavailable_reason(Device('cpu', 7)), bool(b.unavailable_reason(Device('gpu'))),
      b.device_info(Device('cpu')).memory_space, b.device_string(Device('cpu', 1)), b.device_of([]))
print(started(3))
print([str(d) for d in b.devices()])
tf.constant(1.0)
print(started(4))
"""
NOT_BUILT = f"""
import tensorflow as tf, keras
from anyaccel_tensorflow import TensorFlowBackend
{STARTED}
model = keras.Sequential([keras.layers.Dense(2)])
b = TensorFlowBackend()
print(b.owns(model), b.device_of(model), b.dtype_of(model), started(2))
"""
ACTS = (
    "b.from_host(np.ones(2), Device('cpu'))",
    "b.move(tf.constant(1.0), Device('cpu', 1))",
    "b.scope(Device('cpu')).__enter__()",
    "b.infer(SequentialMLP(), [TensorSpec((3,), 'float32')], 0)",
)
SEEN_BY = f"""
import numpy as np, tensorflow as tf
from anyaccel import Device
from anyaccel.segment import TensorSpec
from anyaccel_tensorflow import TensorFlowBackend, SequentialMLP, runtime_config
{STARTED}
started(2); b, seen, real = TensorFlowBackend(), [], tf.config.get_visible_devices
def visible(kind):
    seen.extend([started(3)] if kind == 'GPU' else [])
    return real(kind)
tf.config.get_visible_devices = visible
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What pieces of code print, by their names: each begins with a TensorFlow that nothing has started."""
    codes = {"asking": ASKING, "not built": NOT_BUILT, **{act: f"{SEEN_BY}\n{act}\nprint(seen)" for act in ACTS}}
    if not hasattr(os, "fork"):
        return {name: child(code) for name, code in codes.items()}
    return dict(zip(codes, json.loads(child(IN_FORKS, json.dumps(list(codes.values())))), strict=True))


def test_asking_about_devices_starts_nothing(printed: dict[str, str]) -> None:
    """Two logical CPUs that are configured but not created yet are listed, and can still be reconfigured."""
    lines = printed["asking"].splitlines()
    message = "TensorFlow has 2 logical CPUs; configure more before it is first used"
    assert lines[0].startswith(f"['cpu:0', 'cpu:1'] {message}")
    assert lines[0].endswith("True host /CPU:1 None")
    assert lines[1:] == ["False", "['cpu:0', 'cpu:1', 'cpu:2']", "True"]


def test_a_keras_model_that_is_not_built_is_asked_without_starting(printed: dict[str, str]) -> None:
    assert printed["not built"].strip() == "True None float32 False"


def test_without_tensorflow_there_are_no_devices_and_a_hint_to_install_it(tmp_path: Any) -> None:
    code = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'tensorflow': raise ModuleNotFoundError('No module named tensorflow', name=name)\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from anyaccel import Device\n"
        "from anyaccel_tensorflow import backends\n"
        "(b,) = backends()\n"
        "print(list(b.devices()), b.unavailable_reason(Device('cpu')))\n"
    )
    expected = "TensorFlow is not installed: python -m pip install 'anyaccel-tensorflow[cpu]', or [gpu] for NVIDIA GPUs"
    assert child(code).startswith(f"[] {expected}")


def test_a_tensorflow_that_cannot_be_imported_has_no_devices(
    backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def broken(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tensorflow":
            raise ImportError("libtensorflow.so: undefined symbol\nmore")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert list(backend.devices()) == []
    assert backend.unavailable_reason(CPU) == "TensorFlow cannot be imported: libtensorflow.so: undefined symbol"


# -- GPUs, by recorded calls -----------------------------------------------------------------------------------------


class Machine:
    """Two fake GPUs in TensorFlow's configuration, the second split in two; and a record of what was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}", device_type="GPU") for i in range(2)]
        self.parts: dict[str, Any] = {}
        self.growth: dict[str, Any] = {}
        self.started = False
        config = tf.config
        real = config.get_visible_devices
        monkeypatch.setattr(config, "get_visible_devices", lambda word: self.gpus if word == "GPU" else real(word))
        self._logical = config.get_logical_device_configuration
        monkeypatch.setattr(config, "get_logical_device_configuration", self._parts_of)
        monkeypatch.setattr(config.experimental, "get_memory_growth", lambda gpu: self.growth.get(gpu.name))
        monkeypatch.setattr(config.experimental, "set_memory_growth", self._set)
        details = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
        monkeypatch.setattr(config.experimental, "get_device_details", lambda gpu: details)
        runtime_config.allow_memory_growth.cache_clear()
        monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)

    def _parts_of(self, gpu: Any) -> Any:
        return self.parts.get(gpu.name) if gpu in self.gpus else self._logical(gpu)

    def _set(self, gpu: Any, enable: bool) -> None:
        if self.started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.growth[gpu.name] = enable


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    yield Machine(monkeypatch)
    runtime_config.allow_memory_growth.cache_clear()


def test_gpus_are_listed_first_and_parts_of_a_gpu_count(backend: TensorFlowBackend, machine: Machine) -> None:
    machine.parts[machine.gpus[1].name] = [object(), object()]
    assert [str(device) for device in backend.devices()][:4] == ["gpu:0", "gpu:1", "gpu:2", "cpu:0"]
    assert backend.unavailable_reason(Device("gpu", 2)) == ""
    assert backend.unavailable_reason(Device("gpu", 3)) == "TensorFlow sees 3 of this kind"


def test_the_reason_for_a_missing_gpu(backend: TensorFlowBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: False)
    assert backend.unavailable_reason(GPU) == f"this TensorFlow, {tf.__version__}, is built without GPU support"
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: True)
    assert "no driver or no library" in backend.unavailable_reason(GPU)


@pytest.mark.parametrize(("build", "vendor"), [("is_cuda_build", "nvidia"), ("is_rocm_build", "amd"), ("", "")])
def test_a_gpu_is_described(
    backend: TensorFlowBackend, machine: Machine, monkeypatch: pytest.MonkeyPatch, build: str, vendor: str
) -> None:
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {build: True})
    assert backend.device_info(GPU) == DeviceInfo("NVIDIA H200", vendor)


def test_memory_of_a_gpu_is_that_of_the_allocator(
    backend: TensorFlowBackend, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def info(name: str) -> dict[str, int]:
        asked.append(name)
        return {"current": 5, "peak": 7}

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
    result = backend.required(Memory).memory(Device("gpu", 1))
    assert (result.total, result.free, result.used, result.peak, asked) == (0, 0, 5, 7, ["GPU:1"])
    assert set(machine.growth.values()) == {True}  # asking starts TensorFlow, so that growth was set before


def test_memory_growth_is_set_on_every_gpu_before_the_first_tensor(
    backend: TensorFlowBackend, machine: Machine
) -> None:
    backend.move(tf.constant([1.0]), Device("cpu", 1))
    assert machine.growth == {"/physical_device:GPU:0": True, "/physical_device:GPU:1": True}
    assert backend.required(Memory).share(GPU, 0.5) == ""


@pytest.mark.parametrize("way", ["growth off", "parts", "environment"])
def test_the_users_memory_configuration_stays(
    backend: TensorFlowBackend, machine: Machine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "growth off":
        machine.growth["/physical_device:GPU:1"] = False
    elif way == "parts":
        machine.parts["/physical_device:GPU:0"] = [object()]
    else:
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    before = dict(machine.growth)
    assert backend.required(Memory).share(GPU, 0.5) == ""
    assert machine.growth == before


def test_too_late_for_memory_growth_has_a_hint(backend: TensorFlowBackend, machine: Machine) -> None:
    machine.started = True
    message = backend.required(Memory).share(GPU, 0.5)
    assert "was started before anyaccel could enable memory growth" in message
    assert "set_memory_growth(gpu, True)" in message and "TF_FORCE_GPU_ALLOW_GROWTH=true" in message
    assert backend.required(Memory).share(CPU, 0.5) == ""


def test_memory_growth_is_set_once(machine: Machine) -> None:
    runtime_config.allow_memory_growth()
    machine.growth.clear()
    runtime_config.allow_memory_growth()
    assert machine.growth == {}


@pytest.mark.parametrize("act", ACTS)
def test_growth_is_really_set_before_tensorflow_starts(printed: dict[str, str], act: str) -> None:
    """Without a GPU nothing is set; but every entry point asks for GPUs before anything starts."""
    first = "[True" if "tf.constant" in act else "[False"  # there the user's own tensor has started it
    assert printed[act].startswith(first)
