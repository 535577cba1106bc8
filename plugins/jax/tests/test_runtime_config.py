"""Devices before JAX starts, memory settings, and descriptions of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest

from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel.machine import Machine, SystemDevice
from anyaccel_jax import JaxBackend, device_info, runtime_config
from anyaccel_jax.nvidia_gpus import NvidiaGpu

GPU = Device("gpu")
MEMORY = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
A, B = NvidiaGpu("Card", "GPU-aaaa-1", 8000), NvidiaGpu("Card", "GPU-bbbb-2", 8000)


def cpus(printed: str) -> str:
    """Of the devices printed, the CPUs: this machine may have a GPU."""
    return " ".join(name for name in printed.split() if not name.startswith("gpu:"))


def run(code: str, **environment: str) -> str:
    """The output of a new process in which `b` is a backend and JAX has not started."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    code = f"import os, anyaccel_jax; from anyaccel.device import Device; b = anyaccel_jax.JaxBackend(); {code}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**given, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


STARTED = "from anyaccel_jax.runtime_config import is_started; print(is_started())"


def test_devices_are_listed_without_starting_jax() -> None:
    assert cpus(run(f"print(*b.devices()); {STARTED}")) == "cpu:0 False"
    assert run(
        f"print(b.unavailable_reason(Device('gpu')), b.device_info(Device('cpu')).name != ''); {STARTED}"
    ).endswith("False")


@pytest.mark.parametrize(
    "environment",
    [{"JAX_NUM_CPU_DEVICES": "3"}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}],
    ids=["setting", "flag"],
)
def test_the_count_of_cpus_is_that_of_jax_itself(environment: dict[str, str]) -> None:
    before, after = run(
        "import jax; print(*b.devices()); jax.devices(); print(*b.devices())", **environment
    ).splitlines()
    assert before == after
    assert cpus(after) == "cpu:0 cpu:1 cpu:2"


def test_the_hints_for_more_devices_and_wider_dtypes_work() -> None:
    reason = run("print(b.unavailable_reason(Device('cpu', 2)))")
    code = reason.partition("call ")[2].partition(" before")[0]
    assert cpus(run(f"import jax; {code}; print(*b.devices())")) == "cpu:0 cpu:1 cpu:2"
    put = "print(b.from_host(np.ones(3), Device('cpu')).dtype)"
    message = run(f"import numpy as np\ntry:\n    {put}\nexcept Exception as error:\n    print(error)")
    code = message.partition("call ")[2].partition(" (or")[0]
    assert run(f"import jax, numpy as np; {code}; {put}") == "float64"


def test_platforms_that_are_switched_off_have_no_devices() -> None:
    message = run("print([b.devices(), b.unavailable_reason(Device('cpu'))])", JAX_PLATFORMS="tpu")
    assert message == "[[], \"JAX is restricted to the platforms 'tpu'\"]"


def test_a_broken_jax_breaks_no_listing(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise OSError('no XLA')")
    message = run(
        "print([b.devices(), b.unavailable_reason(Device('cpu'))])",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]),
    )
    assert message == "[[], 'JAX cannot be imported: no XLA']"


def test_it_is_known_whether_jax_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.devices()
    assert runtime_config.is_started()
    assert run(f"import jax; {STARTED}; jax.devices(); {STARTED}").split() == ["False", "True"]
    assert run(STARTED) == "False"


# -- memory that is shared ---------------------------------------------------------------------------------------------


SHARED = "from anyaccel import Memory; print(repr(b.required(Memory).share(Device('gpu'), 0.5))"


def test_before_the_start_jax_is_kept_from_taking_all_memory() -> None:
    code = f"{SHARED}, os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
    assert run(f"{code}; {STARTED}").split() == ["''", "false", "False"]


@pytest.mark.parametrize("name", MEMORY)
def test_the_users_memory_settings_stay(name: str) -> None:
    code = f"{SHARED}, sorted(n for n in os.environ if n.startswith('XLA_')))"
    assert run(f"{code}; print(os.environ['{name}'])", **{name: "0.3"}) == f"'' ['{name}']\n0.3"


def test_after_the_start_it_is_too_late(monkeypatch: pytest.MonkeyPatch, backend: JaxBackend) -> None:
    for name in MEMORY:
        monkeypatch.delenv(name, raising=False)
    jax.devices()
    assert "set XLA_PYTHON_CLIENT_PREALLOCATE=false" in backend.required(Memory).share(GPU, 0.5)
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert backend.required(Memory).share(GPU, 0.5) == ""


def test_the_cpu_is_shared_anyway(backend: JaxBackend) -> None:
    assert (
        backend.required(Memory).share(Device("cpu"), 0.5) == "" == backend.required(Memory).share(Device("tpu"), 0.5)
    )


# -- NVIDIA's library, and drivers -------------------------------------------------------------------------------------


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runtime_config, device_info):
        monkeypatch.setattr(module, "visible_nvidia_gpus", lambda: [A, B])


@contextmanager
def plugin(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(runtime_config, "has_plugin", lambda name: name in names)
        patch.setattr(device_info, "has_plugin", lambda name: name in names)
        yield


@pytest.mark.parametrize(
    ("installed", "cuda", "rocm"),
    [((), False, False), (("jax_cuda13_plugin",), True, False), (("jax_rocm60_plugin", "numpy"), False, True)],
)
def test_a_plugin_of_jax_is_there_if_one_of_its_packages_is(
    installed: tuple[str, ...], cuda: bool, rocm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_config, "find_spec", lambda name: name if name in installed else None)
    assert (runtime_config.has_plugin("cuda"), runtime_config.has_plugin("rocm")) == (cuda, rocm)


def test_gpus_count_only_where_jax_can_use_them(cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with plugin(monkeypatch):
        assert runtime_config.expected_count("gpu") == 0
        assert "pip install 'jax[cuda13]'" in device_info.unavailable_reason(GPU, 0)
    with plugin(monkeypatch, "cuda"):
        assert runtime_config.expected_count("gpu") == 2
        assert device_info.unavailable_reason(GPU, 0) == "JAX finds no driver, or the driver finds no device"
        assert device_info.unavailable_reason(Device("gpu", 2), 2) == "JAX sees 2 of this kind"
        assert device_info.unavailable_reason(GPU, 1) == ""


def test_a_gpu_of_nvidia_is_known_by_its_uuid_without_starting_jax(
    cards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plugin(monkeypatch, "cuda"):
        result = device_info.describe(Device("gpu", 1), lambda device: pytest.fail("JAX was started"))
    assert (result.name, result.vendor, result.identity, result.memory_space) == ("Card", "nvidia", B.uuid, B.uuid)
    assert result.total_memory == 8000


def test_other_accelerators_are_described_by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chip:
        device_kind = "TPU v9"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 5, "bytes_in_use": 2, "peak_bytes_in_use": 3}

        def __str__(self) -> str:
            return "TPU_0"

    result = device_info.describe(Device("tpu"), lambda device: Chip())
    assert (result.name, result.vendor, result.identity, result.total_memory) == ("TPU v9", "google", "", 5)
    backend = JaxBackend()
    monkeypatch.setattr(backend, "jax_device", lambda device: Chip())
    figures = backend.required(Memory).memory(Device("tpu"))
    assert (figures.total, figures.free, figures.used, figures.peak) == (5, 3, 2, 3)
    monkeypatch.setattr(Chip, "memory_stats", lambda self: None)
    assert backend.required(Memory).memory(Device("tpu")).total == 0


def test_amd_gpus_are_nodes_that_compute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("0", "cpu_cores_count 8\nsimd_count 0\n"), ("1", "simd_count 304\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "properties").write_text(text)
    monkeypatch.setattr(runtime_config, "AMD_NODES", tmp_path)
    with plugin(monkeypatch, "rocm"):
        assert runtime_config.expected_count("gpu") == 1


def test_the_cpu_has_the_machines_memory(backend: JaxBackend) -> None:
    figures = backend.required(Memory).memory(Device("cpu"))
    assert figures.total == backend.device_info(Device("cpu")).total_memory > figures.free > 0


# -- before JAX is imported ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "cpu:0"),
        ({"JAX_NUM_CPU_DEVICES": "3"}, "cpu:0 cpu:1 cpu:2"),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "cpu:0 cpu:1"),
        ({"JAX_PLATFORMS": "tpu"}, ""),
    ],
)
def test_jax_has_the_devices_that_were_expected_of_it(environment: dict[str, str], expected: str) -> None:
    code = (
        "import sys; before, reason = b.devices(), b.unavailable_reason(Device('gpu'));"
        "early = 'jax' in sys.modules; import jax;"
        "print(early, before == b.devices(), reason == b.unavailable_reason(Device('gpu')), *before)"
    )
    assert cpus(run(code, **environment)) == f"False True True {expected}".rstrip()


def test_the_vendor_is_told_where_the_system_does_not_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SystemDevice(kind="gpu", name="NVIDIA L4", vendor="nvidia", identity="GPU-7")
    monkeypatch.setattr(device_info, "expected_count", lambda kind: {"gpu": 2}.get(kind, 1))
    with plugin(monkeypatch, "cuda"):
        found = device_info.JaxExpectedDevices(None).expected_of_kind("gpu", Machine(devices=(gpu,), visible=(gpu,)))
    assert [(info.name, info.vendor) for info in found or ()] == [("NVIDIA L4", "nvidia"), ("gpu:1", "nvidia")]
    assert device_info.JaxExpectedDevices(None).expected_of_kind("neuron", Machine()) is None
