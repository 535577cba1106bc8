"""Statistics of NVIDIA GPUs, read from a fake `pynvml`, whose names are checked against the real one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import DeviceInfo
from anyaccel.numpy_backend import NumpyBackend
from anyaccel_tensorboard.run_logger import NvidiaStats

UUIDS = {"sim:0": "GPU-0c9e0d2a-3f1e-7a61-9bd0-000000000000", "sim:1": "00000000:3B:00.0"}
USED = ("NVMLError", "NVML_TEMPERATURE_GPU", "nvmlInit", "nvmlShutdown")
CALLS = (
    *("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetUtilizationRates"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage"),
)


class FakeNvml(ModuleType):
    """Two GPUs; calls named in `unsupported` fail, and `calls` records all calls."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """Not supported, not found, not there."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.calls: list[str] = []
        self.unsupported: set[str] = set()
        self.samples = 0

    def __getattr__(self, name):
        if name not in (*USED, *CALLS):
            raise AttributeError(name)

        def call(*given):
            self.calls.append(name)
            if name in self.unsupported:
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
    """Simulated devices that claim to be NVIDIA GPUs, and NVML for them."""

    def info(self, device):
        return DeviceInfo("a GPU", "nvidia", UUIDS.get(str(device), "")) if device.kind == "sim" else DeviceInfo("cpu")

    module = FakeNvml()
    monkeypatch.setattr(NumpyBackend, "device_info", info)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with aa.simulate(3):
        yield module


def nvml_tags(logged_run):
    return [tag for tag in logged_run.scalars if tag.startswith("nvml/")]


def test_statistics_are_written_at_the_end_of_each_epoch(fake, logged, read, experiment, train, on):
    seen = []
    watch = on("step_end", lambda run: seen.append(fake.samples))
    experiment().run_phase(train(accelerator="sim:0", callbacks=[watch]))
    written = read(logged / "demo/train-1")
    figures = {
        "nvml/sim:0/utilization_percent": [91, 92, 93],
        "nvml/sim:0/memory_used_bytes": [10 * 2**30] * 3,
        "nvml/sim:0/temperature_celsius": [61] * 3,
        "nvml/sim:0/power_watts": [float(np.float32(345.678))] * 3,
    }
    assert {tag: written.scalars[tag] for tag in nvml_tags(written)} == {
        tag: ([0, 1, 2], values) for tag, values in figures.items()
    }
    assert seen == [0] * 4 + [1] * 4 + [2] * 4, "a step asked the driver"
    assert [name for name in fake.calls if name in USED] == ["nvmlInit", "nvmlShutdown"]


def test_a_gpu_without_a_uuid_is_found_by_its_address(fake, logged, read, experiment, train):
    experiment().run_phase(train(accelerator="sim:1"))
    written = read(logged / "demo/train-1")
    assert written.scalars["nvml/sim:1/temperature_celsius"][1] == [62] * 3


@pytest.mark.parametrize("where", ["sim:2", "cpu"])
def test_a_device_without_an_identity_has_no_statistics(where, fake, logged, read, experiment, train):
    experiment().run_phase(train(accelerator=where))
    assert nvml_tags(read(logged / "demo/train-1")) == fake.calls == []


def test_an_evaluation_has_no_statistics(fake, logged, read, experiment, evaluate):
    experiment().run_phase(evaluate(accelerator="sim:0"))
    assert nvml_tags(read(logged / "demo/eval-1")) == fake.calls == []


def test_unsupported_statistics_are_left_out(fake, logged, read, experiment, train):
    fake.unsupported = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}
    experiment().run_phase(train(accelerator="sim:0"))
    written = read(logged / "demo/train-1")
    assert nvml_tags(written) == ["nvml/sim:0/memory_used_bytes", "nvml/sim:0/temperature_celsius"]


@pytest.mark.parametrize("missing", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "module"])
def test_without_driver_gpu_or_module_there_are_no_statistics(
    missing, fake, logged, read, experiment, train, monkeypatch
):
    if missing == "module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    fake.unsupported = {missing}
    results = experiment().run_phase(train(accelerator="sim:0"))
    written = read(logged / "demo/train-1")
    assert nvml_tags(written) == [] and len(written.scalars["train/loss"][0]) == len(results.epochs) == 3
    assert fake.calls.count("nvmlShutdown") == (missing == "nvmlDeviceGetHandleByUUID")


def test_nvml_is_shut_down_when_the_phase_fails(fake, logged, experiment, train, on, oops):
    def fail(run):
        raise oops

    with pytest.raises(oops):
        experiment().run_phase(train(accelerator="sim:0", callbacks=[on("epoch_end", fail)]))
    assert [name for name in fake.calls if name in USED] == ["nvmlInit", "nvmlShutdown"]


def test_an_nvml_that_is_shut_down_already_does_not_fail_the_run(fake, logged, read, experiment, train):
    fake.unsupported = {"nvmlShutdown"}
    assert experiment().run_phase(train(accelerator="sim:0")).error is None
    assert len(nvml_tags(read(logged / "demo/train-1"))) == 4


def test_statistics_are_closed_once(fake):
    stats = NvidiaStats(fake, {aa.Device("sim", 0): UUIDS["sim:0"]})
    assert len(stats.read()) == 4
    stats.close()
    stats.close()
    assert stats.read() == {} and fake.calls.count("nvmlShutdown") == 1
    assert NvidiaStats().read() == {}


def test_the_real_pynvml_has_the_names_in_use():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert issubclass(real.NVMLError, Exception)
    assert all(hasattr(real, name) for name in (*USED, *CALLS))
    assert {"gpu"} <= {name for name, *_ in real.c_nvmlUtilization_t._fields_}
    assert {"used"} <= {name for name, *_ in real.c_nvmlMemory_t._fields_}
    assert real.NVML_TEMPERATURE_GPU == FakeNvml.NVML_TEMPERATURE_GPU
