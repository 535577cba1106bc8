"""NVML: a module that answers as `pynvml` does, as no NVIDIA GPU is needed for these tests.

The answers are those that a GPU could give; that the names exist is checked against the real module.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import DeviceInfo
from anyaccel.numpy_backend import NumpyBackend
from anyaccel_tensorboard.device_stats import Gauges

UUIDS = {"sim:0": "GPU-0c9e0d2a-3f1e-7a61-9bd0-000000000000", "sim:1": "00000000:3B:00.0"}
USED = ("NVMLError", "NVML_TEMPERATURE_GPU", "nvmlInit", "nvmlShutdown")
CALLS = (
    *("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetUtilizationRates"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage"),
)


class Fake(ModuleType):
    """Answers for two GPUs; `lacks` names what the GPUs do not support, `calls` what was called."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """Not supported, not found, not there."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        self.lacks: set[str] = set()
        self.samples = 0

    def __getattr__(self, name):
        if name not in (*USED, *CALLS):
            raise AttributeError(name)

        def call(*given):
            self.calls.append(name)
            if name in self.lacks:
                raise self.NVMLError("Not Supported")
            return getattr(self, f"_{name}")(*given)

        return call

    def _nvmlInit(self):
        return None

    _nvmlShutdown = _nvmlInit

    def _nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != UUIDS["sim:0"]:
            raise self.NVMLError("Not Found")
        return 0

    def _nvmlDeviceGetHandleByPciBusId(self, address):
        if address != UUIDS["sim:1"]:
            raise self.NVMLError("Not Found")
        return 1

    def _nvmlDeviceGetUtilizationRates(self, handle):
        self.samples += 1
        return SimpleNamespace(gpu=90 + handle + self.samples, memory=40)

    def _nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=80 * 2**30, free=70 * 2**30, used=(10 + handle) * 2**30)

    def _nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 61 + handle

    def _nvmlDeviceGetPowerUsage(self, handle):
        return 345678


@pytest.fixture
def fake(monkeypatch):
    """Simulated devices that say that they are of NVIDIA, and NVML for them."""

    def info(self, device):
        return DeviceInfo("a GPU", "nvidia", UUIDS.get(str(device), "")) if device.kind == "sim" else DeviceInfo("cpu")

    module = Fake()
    monkeypatch.setattr(NumpyBackend, "device_info", info)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with aa.simulate(3):
        yield module


def tags(told):
    return [tag for tag in told.scalars if tag.startswith("nvml/")]


def test_what_the_driver_says_is_told_at_epoch_ends(fake, logged, read, experiment, train, on):
    seen = []
    look = on("step_end", lambda run: seen.append(fake.samples))
    experiment().run_phase(train(accelerator="sim:0", callbacks=[look]))
    told = read(logged / "demo/train-1")
    figures = {
        "nvml/sim:0/utilization_percent": [91, 92, 93],
        "nvml/sim:0/memory_used_bytes": [10 * 2**30] * 3,
        "nvml/sim:0/temperature_celsius": [61] * 3,
        "nvml/sim:0/power_watts": [float(np.float32(345.678))] * 3,
    }
    assert {tag: told.scalars[tag] for tag in tags(told)} == {tag: ([0, 1, 2], one) for tag, one in figures.items()}
    assert seen == [0] * 4 + [1] * 4 + [2] * 4, "a step asked the driver"
    assert [name for name in fake.calls if name in USED] == ["nvmlInit", "nvmlShutdown"]


def test_a_gpu_without_a_uuid_is_found_by_its_address(fake, logged, read, experiment, train):
    experiment().run_phase(train(accelerator="sim:1"))
    told = read(logged / "demo/train-1")
    assert told.scalars["nvml/sim:1/temperature_celsius"][1] == [62] * 3


@pytest.mark.parametrize("where", ["sim:2", "cpu"])
def test_a_device_without_an_identity_is_left_alone(where, fake, logged, read, experiment, train):
    experiment().run_phase(train(accelerator=where))
    assert tags(read(logged / "demo/train-1")) == fake.calls == []


def test_phases_without_epochs_ask_nothing(fake, logged, read, experiment, evaluate):
    experiment().run_phase(evaluate(accelerator="sim:0"))
    assert tags(read(logged / "demo/eval-1")) == fake.calls == []


def test_what_a_gpu_does_not_tell_is_left_out(fake, logged, read, experiment, train):
    fake.lacks = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}
    experiment().run_phase(train(accelerator="sim:0"))
    told = read(logged / "demo/train-1")
    assert tags(told) == ["nvml/sim:0/memory_used_bytes", "nvml/sim:0/temperature_celsius"]


@pytest.mark.parametrize("lacks", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "module"])
def test_without_driver_gpu_or_module_nothing_is_told(lacks, fake, logged, read, experiment, train, monkeypatch):
    if lacks == "module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    fake.lacks = {lacks}
    results = experiment().run_phase(train(accelerator="sim:0"))
    told = read(logged / "demo/train-1")
    assert tags(told) == [] and len(told.scalars["train/loss"][0]) == len(results.epochs) == 3
    assert fake.calls.count("nvmlShutdown") == (lacks == "nvmlDeviceGetHandleByUUID")


def test_nvml_is_stopped_when_the_phase_fails(fake, logged, experiment, train, on, oops):
    def fail(run):
        raise oops

    with pytest.raises(oops):
        experiment().run_phase(train(accelerator="sim:0", callbacks=[on("epoch_end", fail)]))
    assert [name for name in fake.calls if name in USED] == ["nvmlInit", "nvmlShutdown"]


def test_an_nvml_that_somebody_else_has_stopped_is_no_fault_of_the_run(fake, logged, read, experiment, train):
    fake.lacks = {"nvmlShutdown"}
    assert experiment().run_phase(train(accelerator="sim:0")).error is None
    assert len(tags(read(logged / "demo/train-1"))) == 4


def test_gauges_are_closed_once(fake):
    gauges = Gauges(fake, {aa.Device("sim", 0): UUIDS["sim:0"]})
    assert len(gauges.read()) == 4
    gauges.close()
    gauges.close()
    assert gauges.read() == {} and fake.calls.count("nvmlShutdown") == 1
    assert Gauges().read() == {}


def test_the_real_module_has_what_is_used():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert issubclass(real.NVMLError, Exception)
    assert all(hasattr(real, name) for name in (*USED, *CALLS))
    assert {"gpu"} <= {name for name, *_ in real.c_nvmlUtilization_t._fields_}
    assert {"used"} <= {name for name, *_ in real.c_nvmlMemory_t._fields_}
    assert real.NVML_TEMPERATURE_GPU == Fake.NVML_TEMPERATURE_GPU
