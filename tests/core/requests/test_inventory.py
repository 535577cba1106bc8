"""Inventories: in words, from files (hostile ones, too), and of this machine as its system tells it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import DeviceRequest, Inventory
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel.requests import bounded_process
from anyaccel.requests import system_devices as system
from anyaccel.requests.inventory import stated_memory
from anyaccel.requests.nvml_probe import nvml_rows
from anyaccel.requests.system_devices import SystemDevice, visible


def shown(inventory: Inventory) -> list[str]:
    return [f"{each.device} {each.label}" for each in inventory.devices]


# -- in words ----------------------------------------------------------------------------------------------------------


def test_words_number_the_devices_of_each_kind():
    inventory = Inventory.parse("2x H100-80GB, T4, 1x mps mem=1TB cores=96")
    assert shown(inventory) == ["gpu:0 H100-80GB", "gpu:1 H100-80GB", "gpu:2 T4", "mps:0 mps:0", "cpu:0 cpu"]
    assert (inventory.host_memory_gb, inventory.cores, inventory.devices[2].memory_gb) == (1000, 96, 16)
    assert str(inventory) == "2x H100-80GB, 1x T4, 1x mps:0, 1x cpu"
    assert shown(Inventory.parse("H100-80GB:2")) == ["gpu:0 H100-80GB", "gpu:1 H100-80GB", "cpu:0 cpu"]
    assert shown(Inventory.parse("cpu")) == ["cpu:0 cpu"]
    assert Inventory.parse(inventory) is inventory


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("8x foo", r"the inventory '8x foo'.*'foo' is neither"),
        ("8x H100", r"does not say which H100 it has.*H100-80GB, H100-94GB"),
        ("0x T4", r"'0x T4' in the inventory .* is not a number of devices"),
        ("9999999x T4", r"is not a number of devices"),
        ("2x T4:2", r"is not a number of devices"),
        ("2x 40GB+", r"is not a number of devices of one product"),
        ("any", r"is not a number of devices of one product"),
        ("T4!", r"is not a number of devices of one product"),
        ("4096x T4, 4096x L4", r"8192 devices is too large"),
        ("", r"'' is not an inventory"),
        (None, r"None is not an inventory"),
    ],
)
def test_words_that_are_no_inventory_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        Inventory.parse(words)


# -- from a file -------------------------------------------------------------------------------------------------------


def test_a_file_says_what_words_say(tmp_path: Path):
    file = tmp_path / "node.json"
    entries = [{"product": "H100-80GB", "count": 2}, {"product": "T4"}]
    file.write_text(json.dumps({"devices": entries, "host_memory_gb": 1000.5, "cores": 96}))
    inventory = Inventory.from_file(file)
    assert shown(inventory) == shown(Inventory.parse("2x H100-80GB, T4"))
    assert (inventory.host_memory_gb, inventory.cores, inventory.source) == (1000.5, 96, "in node.json")
    file.write_text("{}")
    assert shown(Inventory.from_file(str(file))) == ["cpu:0 cpu"]


HOSTILE = {
    "deep": "[" * 100_000,
    "not JSON": "{",
    "not text": b"\xff\xfe\x00",
    "a list": "[]",
    "large": " " * (1 << 20) + "{}",
    "unknown key": '{"device": []}',
    "no list": '{"devices": "T4"}',
    "no product": '{"devices": [{}]}',
    "no object": '{"devices": ["T4"]}',
    "unknown product": '{"devices": [{"product": "foo"}]}',
    "not one": '{"devices": [{"product": "T4, L4"}]}',
    "contradiction": '{"devices": [{"product": "A100-60GB"}]}',
    "negative": '{"devices": [{"product": "T4", "count": -1}]}',
    "huge count": '{"devices": [{"product": "T4", "count": 1e308}]}',
    "no number": '{"devices": [{"product": "T4", "count": true}]}',
    "NaN": '{"host_memory_gb": NaN}',
    "infinite": '{"cores": Infinity}',
    "digits": '{"cores": ' + "9" * 5000 + "}",
    "many": json.dumps({"devices": [{"product": "T4"}] * 5000}),
    "code": '{"devices": [{"product": "__import__(\'os\').system(\'x\')"}]}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_their_name(name, tmp_path: Path):
    file = tmp_path / "hostile.json"
    content = HOSTILE[name]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match="inventory") as caught:
        Inventory.from_file(file)
    assert caught.value.hint and len(str(caught.value)) < 2000


def test_what_is_no_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="it is not a file"):
        Inventory.from_file(tmp_path)
    with pytest.raises(ConfigError, match=r"the inventory in none.json: it is not a file"):
        Inventory.from_file(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="None is not the path of an inventory"):
        Inventory.from_file(None)  # type: ignore[arg-type]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(ConfigError, match="it is not a file"):  # and does not wait for a writer
            Inventory.from_file(tmp_path / "pipe.json")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["devices", "product", "count"]), inner)
    ),
    max_leaves=12,
)


@given(_json)
def test_any_json_is_an_inventory_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, value):
    file = tmp_path_factory.mktemp("files") / "any.json"
    file.write_text(json.dumps(value))
    try:
        Inventory.from_file(file)
    except AnyaccelError as error:
        assert isinstance(error, ConfigError)


# -- of this machine ---------------------------------------------------------------------------------------------------


def test_this_machine_has_a_cpu_and_nothing_is_imported():
    code = """
import sys
from anyaccel import DeviceRequest, Inventory
inventory = Inventory.detect()
assert inventory.host_memory_gb > 0 and inventory.cores > 0 and inventory.source == "this machine"
assert str(inventory.devices[-1].device) == "cpu:0"
print([name for name in ("numpy_backend", "torch", "jax", "tensorflow", "pynvml", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "nbytes", "gb"),
    [
        ("NVIDIA H100 80GB HBM3", 85_520_809_984, 80),
        ("NVIDIA H100 NVL", 100_000_000_000, 94),
        ("NVIDIA A10G", 23_836_000_000, 24),
        ("NVIDIA B200", 192_000_000_000, 180),
        ("Tesla T4", 16_106_127_360, 16),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10_200_547_328, 10.2),
        ("Quadro P400", 2_147_483_648, 2.1),
        ("NVIDIA A100-PCIE", 0, 0),  # two sizes, and nobody says which
        ("NVIDIA H200", 8_000_000_000, 8.0),  # a share of one
        ("NVIDIA H100 80GB HBM3", 10_000_000_000, 10.0),  # whatever its name says
        ("NVIDIA H100 80GB HBM3", 0, 80),
    ],
)
def test_memory_is_what_the_maker_states_unless_it_is_a_part(name, nbytes, gb):
    assert stated_memory(name, nbytes) == gb


GPUS = [SystemDevice(kind="gpu", index=i, identity=f"GPU-{i}abc") for i in range(3)]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-2a, gpu-1ABC", [2, 1]),
        ("GPU-", []),  # of several
        ("99999999", []),
        ("NoDevFiles", []),
    ],
)
def test_masks_of_visible_devices_are_read_as_cuda_does(mask, left):
    assert [device.index for device in visible(GPUS, mask)] == left


def test_devices_in_system_files(tmp_path: Path):
    for number, (model, uuid) in enumerate([("NVIDIA H100 80GB HBM3", "GPU-11"), ("Tesla T4", "GPU-????????")]):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        lines = f"Model: \t\t {model}\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nBus Location: \t 0000:0{number}:00.0\n"
        (folder / "information").write_text(lines)
    card = tmp_path / "sys/class/drm/card0/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    (card / "mem_info_vram_total").write_text(f"{192 << 30}\n")
    (card / "product_name").write_text("AMD Instinct MI300X OAM\n")
    found = system.system_devices(tmp_path, {})
    assert [(d.kind, d.index, d.name, d.vendor) for d in found[:3]] == [
        ("gpu", 0, "NVIDIA H100 80GB HBM3", "nvidia"),
        ("gpu", 1, "Tesla T4", "nvidia"),
        ("gpu", 2, "AMD Instinct MI300X OAM", "amd"),
    ]
    assert [d.identity for d in found[:2]] == ["GPU-11", "0000:01:00.0"] and found[2].nbytes == 192 << 30
    assert next(d.name for d in system.system_devices(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})) == "Tesla T4"
    assert [d.kind for d in system.system_devices(tmp_path / "empty", {})] == ["cpu"]


def test_what_nvidia_smi_prints_is_read():
    answer = "0, NVIDIA H100 80GB HBM3, GPU-11, 81559, 00000000:04:00.0\n1, Tesla T4, GPU-22, [N/A], 0:5\nno devices\n"
    found = system.from_smi(answer)
    assert [(d.name, d.nbytes, d.identity) for d in found] == [
        ("NVIDIA H100 80GB HBM3", 81559 << 20, "GPU-11"),
        ("Tesla T4", 0, "GPU-22"),
    ]


@pytest.mark.parametrize("answer", ["", "x", "[1]", '[{"x": 1}]', "{}", "null"])
def test_nonsense_of_a_driver_is_no_device(answer):
    assert system.from_json(answer) == []


LIES = [
    {"name": 5, "identity": None, "nbytes": "x"},
    {"name": "NVIDIA H100 80GB HBM3", "identity": "a", "nbytes": -5},
    {"name": "NVIDIA H100 80GB HBM3", "identity": "b", "nbytes": 10**40},
    {"name": "x" * 100_000, "identity": "y" * 100_000, "nbytes": 1.5},
]


def test_a_driver_that_lies_gives_devices_whose_figures_are_unknown(monkeypatch: pytest.MonkeyPatch):
    devices = system.from_json(json.dumps(LIES))
    assert [(len(each.name), len(each.identity), each.nbytes) for each in devices] == [
        (0, 0, 0),
        (21, 1, 0),
        (21, 1, 0),
        (200, 200, 0),
    ]
    monkeypatch.setattr("anyaccel.requests.inventory.system_devices", lambda: devices)
    assert [each.memory_gb for each in Inventory.detect().devices] == [0, 80, 80, 0]
    assert system.from_json("[" * 100_000) == [] and len(system.from_json(json.dumps(LIES[:1] * 2000))) == 1024
    (smi,) = system.from_smi("0, NVIDIA H100 80GB HBM3, GPU-1, \u00b2\u00b2, 0:4")
    assert smi.nbytes == 0


def test_devices_of_one_name_and_other_memory_are_not_one_product(monkeypatch: pytest.MonkeyPatch):
    """A request for their product's memory gets those alone that have it."""
    sizes = (10**10, 85 * 10**9)
    devices = [SystemDevice(kind="gpu", index=i, name="NVIDIA H100 80GB HBM3", nbytes=n) for i, n in enumerate(sizes)]
    monkeypatch.setattr("anyaccel.requests.inventory.system_devices", lambda: devices)
    machine = Inventory.detect()
    assert list(map(str, DeviceRequest.parse("H100-80GB").resolve(machine).devices)) == ["gpu:1"]
    assert list(map(str, DeviceRequest.parse("40GB+").resolve(machine).devices)) == ["gpu:1"]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(system, "PATIENCE", 0.3)
    monkeypatch.setattr(system, "hanging", [])
    system.nvidia_driver.cache_clear()
    yield
    system.nvidia_driver.cache_clear()


HANGING = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_driver_that_hangs_is_waited_for_only_once(patience: None):
    assert system.output_of([sys.executable, "-c", "print(1)"]) == "1\n"
    assert system.output_of([sys.executable, "-c", "raise SystemExit(3)"]) == ""
    assert system.output_of(["/no/such/tool"]) == ""
    assert system.output_of(HANGING) == ""
    assert system.output_of([sys.executable, "-c", "print(1)"]) == ""


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch):
    """As one that hangs in the kernel: here, `kill` does nothing."""
    left: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(bounded_process, "_left", left)
    monkeypatch.setattr(bounded_process, "_GRACE", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda self: None)
        with pytest.raises(subprocess.TimeoutExpired):
            bounded_process.run_bounded(HANGING, 0.1)
    (child,) = left
    child.kill()
    assert child.wait(10) and child.stdout.closed  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform == "win32", reason="a script stands in for nvidia-smi")
def test_a_machine_whose_driver_hangs_is_told_without_it(patience: None, monkeypatch, tmp_path: Path):
    """The file system of a driver is there, and `nvidia-smi` is asked, but does not answer."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(system, "_ROOT", tmp_path)
    monkeypatch.setattr(system, "find_spec", lambda name: None)
    assert [each.kind for each in system.system_devices(tmp_path, {})] == ["cpu"]
    assert [command[0] for command in system.hanging] == [str(smi)]


class Nvml:
    """A driver with a divided device and a whole one."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMigMode(self, handle):
        if handle:
            raise self.NVMLError
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index == 1:
            raise self.NVMLError
        return f"part {index}"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H100" if handle == 1 else "NVIDIA H100 MIG 1g.10gb"

    def nvmlDeviceGetUUID(self, handle):
        return f"ID-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Info", (), {"total": 10})


def test_a_divided_device_is_its_parts():
    rows = nvml_rows(Nvml())
    assert [row["identity"] for row in rows] == ["ID-part 0", "ID-part 2", "ID-1"]
    assert [row["name"] for row in rows][1:] == ["NVIDIA H100 MIG 1g.10gb", "NVIDIA H100"]
    assert system.from_json(json.dumps(rows))[2] == SystemDevice(
        kind="gpu", vendor="nvidia", name="NVIDIA H100", identity="ID-1", nbytes=10
    )
