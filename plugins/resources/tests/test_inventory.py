"""Inventories: in words, from files (hostile ones, too), and of this machine as its system tells it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import DeviceRequest, Inventory
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel.machine import system_devices as system
from anyaccel.machine.system_devices import SystemDevice
from anyaccel_resources.inventory import stated_memory


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
        ("8x H100", r"does not specify which H100 it has.*H100-80GB, H100-94GB"),
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


@pytest.mark.parametrize(
    ("words", "nbytes", "host"),
    [
        ("2x 24GB, cpu 64GB", [24e9, 24e9], 64e9),
        ("2x gpu-24GB mem=1TB", [24e9, 24e9], 1e12),
        ("40GB, 3x 24GB", [40e9, 24e9, 24e9, 24e9], 0),
        ("cpu 64GB", [], 64e9),
    ],
)
def test_words_have_kinds_and_the_memory_of_the_host(words: str, nbytes: list[float], host: float) -> None:
    machine = Inventory.parse(words)
    assert [each.nbytes for each in machine.devices if each.device.kind != "cpu"] == nbytes
    assert machine.host_nbytes == host


def test_words_have_forms_and_tpus():
    machine = Inventory.parse("2xH100-SXM, 1x H100-NVL, 4x TPU-V6E")
    devices = [(str(it.device), it.label, it.form) for it in machine.devices if it.device.kind != "cpu"]
    assert devices[:3] == [("gpu:0", "H100-80GB", "SXM"), ("gpu:1", "H100-80GB", "SXM"), ("gpu:2", "H100-94GB", "NVL")]
    assert devices[3:] == [(f"tpu:{i}", "TPU-V6E", "") for i in range(4)]
    assert {it.vendor for it in machine.devices[3:7]} == {"google"}


@pytest.mark.parametrize("words", ["8x T4 nodes=2", "8x T4 price<=9", "sm>=80", "2x T4 sm>=75", "2x gpu:40GB+"])
def test_what_is_asked_for_is_no_device(words):
    with pytest.raises(ConfigError, match="in the inventory"):
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
    with pytest.raises(ConfigError, match=r"the inventory in none.json: the file does not exist\. Hint: write {"):
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
    monkeypatch.setattr("anyaccel_resources.inventory.system_devices", lambda: devices)
    assert [each.memory_gb for each in Inventory.detect().devices] == [0, 80, 80, 0]
    assert system.from_json("[" * 100_000) == [] and len(system.from_json(json.dumps(LIES[:1] * 2000))) == 1024
    (smi,) = system.from_smi("0, NVIDIA H100 80GB HBM3, GPU-1, \u00b2\u00b2, 0:4")
    assert smi.nbytes == 0


def test_devices_of_one_name_and_other_memory_are_not_one_product(monkeypatch: pytest.MonkeyPatch):
    """A request for their product's memory gets those alone that have it."""
    sizes = (10**10, 85 * 10**9)
    devices = [SystemDevice(kind="gpu", index=i, name="NVIDIA H100 80GB HBM3", nbytes=n) for i, n in enumerate(sizes)]
    monkeypatch.setattr("anyaccel_resources.inventory.system_devices", lambda: devices)
    machine = Inventory.detect()
    assert list(map(str, DeviceRequest.parse("H100-80GB").resolve(machine).devices)) == ["gpu:1"]
    assert list(map(str, DeviceRequest.parse("40GB+").resolve(machine).devices)) == ["gpu:1"]
