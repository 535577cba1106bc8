"""Exports: every form that a scheduler takes, checked against its documented names; what it cannot say is refused."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import Device, DeviceRequest
from anyaccel.errors import AnyaccelError, ConfigError, DeviceParseError
from anyaccel_resources import InventoryDevice, RequestEntry, products
from anyaccel_resources.allocation import is_device_of
from anyaccel_resources.exports import FORMATS, GKE, NAMES, export


def exported(request, to):
    return DeviceRequest.parse(request).export(to)


FORMS = [
    ("modal", "H100:8", "H100:8"),
    ("modal", "h100!", "H100!"),
    ("modal", "H100-80GB:2", "H100!:2"),  # an H100 may be given as an H200, which has other memory
    ("modal", "B200+:2", "B200+:2"),
    ("modal", "A100-80GB:2", "A100-80GB:2"),
    ("modal", "A100", "A100"),
    ("modal", "A10", "A10"),
    ("modal", "T4!", "T4"),
    ("modal", "T4-16GB", "T4"),
    ("modal", "any", "any"),
    ("modal", "gpu", "any"),
    ("modal", "nvidia:any:2", "any:2"),
    ("modal", ["H100", "A100-40GB:2"], ["H100", "A100-40GB:2"]),
    ("skypilot", "H100:8", {"accelerators": "H100:8"}),
    ("skypilot", "H100!", {"accelerators": "H100:1"}),
    ("skypilot", "H100-NVL:2", {"accelerators": "H100-NVL:2"}),
    ("skypilot", "A100-80GB", {"accelerators": "A100-80GB:1"}),
    ("skypilot", "A100-40GB", {"accelerators": "A100:1"}),
    ("skypilot", "V100-32GB:4", {"accelerators": "V100-32GB:4"}),
    ("skypilot", "RTX-4090", {"accelerators": "RTX4090:1"}),
    ("skypilot", "40GB+:2 mem=64GB cores=8", {"accelerators": "40GB+:2", "memory": "64+", "cpus": "8+"}),
    ("skypilot", "NVIDIA:40GB+:2", {"accelerators": "nvidia:40GB+:2"}),
    ("skypilot", "H100 price<=3.50", {"accelerators": "H100:1", "max_hourly_cost": 3.5}),
    ("skypilot", ["L4", "T4"], {"ordered": [{"accelerators": "L4:1"}, {"accelerators": "T4:1"}]}),
    ("skypilot", {"L4", "T4"}, {"any_of": [{"accelerators": "L4:1"}, {"accelerators": "T4:1"}]}),
    ("skypilot", ["L4", "amd:40GB+"], {"accelerators": ["L4:1", "amd:40GB+:1"]}),
    ("skypilot", {"L4", "40GB+:2"}, {"accelerators": {"40GB+": 2, "L4": 1}}),
    ("skypilot", "cpu cores=4", {"cpus": "4+"}),
    (
        "ray",
        "H100:2 mem=64GB cores=8",
        {"num_gpus": 2, "num_cpus": 8, "memory": 64 * 10**9, "accelerator_type": "H100"},
    ),
    ("ray", "any", {"num_gpus": 1}),
    ("ray", "gpu:any:2", {"num_gpus": 2}),
    ("ray", "H100!", {"num_gpus": 1, "accelerator_type": "H100"}),
    ("ray", "A100-80GB", {"num_gpus": 1, "accelerator_type": "A100-80G"}),
    ("ray", "L40S", {"num_gpus": 1, "accelerator_type": "L40S"}),
    ("ray", "MI300X:8", {"num_gpus": 8, "accelerator_type": "AMD-Instinct-MI300X-OAM"}),
    ("ray", "TPU-V5E:4", {"num_gpus": 0, "resources": {"TPU": 4}, "accelerator_type": "TPU-V5LITEPOD"}),
    ("ray", "cpu cores=2", {"num_gpus": 0, "num_cpus": 2}),
    ("slurm", "H100:8", ["--nodes=1", "--gpus-per-node=h100:8"]),
    ("slurm", "H100:8 nodes=2", ["--nodes=2", "--gpus-per-node=h100:8"]),
    ("slurm", "any:2", ["--nodes=1", "--gpus-per-node=2"]),
    # 64 GB are 61,035.2 of what Slurm calls a megabyte
    ("slurm", "gpu mem=64GB cores=8", ["--nodes=1", "--gpus-per-node=1", "--mem=61036M", "--cpus-per-task=8"]),
    ("slurm", {"H100:2", "A100:2"}, ["--nodes=1", "--gpus-per-node=2", "--constraint=a100|h100"]),
    (
        "kubernetes",
        "A100-SXM-80GB:2 mem=64GB cores=8",
        {
            "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 8, "memory": "64G"}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        },
    ),
    (
        "kubernetes",
        "A10G",
        {
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A10G"},
        },
    ),
    ("kubernetes", "cuda", {"resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {}}),
    ("kubernetes", "amd:any:2", {"resources": {"limits": {"amd.com/gpu": 2}}, "nodeSelector": {}}),
    (
        "gke",
        "A100-40GB:2 cores=8",
        {
            "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 8}},
            "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"},
        },
    ),
    ("gke", "any:4", {"resources": {"limits": {"nvidia.com/gpu": 4}}, "nodeSelector": {}}),
    (
        "gke",
        "TPU-V6E:8",
        {
            "resources": {"limits": {"google.com/tpu": 8}},
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                "cloud.google.com/gke-tpu-topology": "2x4",
            },
        },
    ),
    ("kubernetes", "cpu cores=2", {"resources": {"limits": {"cpu": 2}}, "nodeSelector": {}}),
]


@pytest.mark.parametrize(("to", "request_", "expected"), FORMS)
def test_a_request_is_written_as_documented(to, request_, expected):
    assert exported(request_, to) == expected


def test_a_claim_has_a_class_a_count_and_exact_names():
    claim = exported("A10:2", "dra")
    assert (claim["apiVersion"], claim["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com" and request["exactly"]["count"] == 2
    (selector,) = request["exactly"]["selectors"]
    of_gpus = "device.attributes['gpu.nvidia.com']"
    expected = f"{of_gpus}.type == 'gpu' && {of_gpus}.productName in ['NVIDIA A10']"  # and not A100 or A10G
    assert selector["cel"]["expression"] == expected
    (several,) = exported(["H100:2", "nvidia:40GB+"], "dra")["spec"]["devices"]["requests"]
    assert [each["count"] for each in several["firstAvailable"]] == [2, 1] and "exactly" not in several


@pytest.mark.parametrize(
    ("to", "request_", "told"),
    [
        ("modal", "RTX-4090", "its documentation does not list it. Available: T4, L4"),
        ("modal", "A10G", "a different product.*write 'A10' if"),
        ("modal", "A10:8", "at most 4"),
        ("modal", "H100:9", "at most 8"),
        ("modal", "H100-94GB:2", "does not list it.*write 'H100:2'"),
        ("modal", "H100-SXM", "distinguish the forms of H100.*write 'H100'"),
        ("modal", "mps", "its GPUs are NVIDIA's"),
        ("modal", "rocm", "its GPUs are NVIDIA's"),
        ("modal", "H100 mem=64GB", "separate settings"),
        ("modal", "H100 nodes=2", r"clustered\(size=2\)"),
        ("modal", "H100 price<=3", "no price limit"),
        ("modal", "H100:*", "a number of devices"),
        ("modal", "40GB+", "does not compare memory. Available: A100, L40S, H100"),
        ("modal", "{H100, T4}", "order of preference"),
        ("skypilot", "any", "write '16GB\\+'"),
        ("skypilot", "cuda", "write 'nvidia:16GB\\+'"),
        ("skypilot", "B200+", "newer products. Available: B200"),
        ("skypilot", "H100-80GB", "not in its catalogue with this memory"),
        ("skypilot", "H20", "not in its catalogue"),
        ("skypilot", "sm>=80", "cannot request compute capabilities. Available: A100, A30"),
        ("skypilot", "H100 nodes=4", "write num_nodes: 4 next to resources:"),
        ("skypilot", ["40GB+", "H100 cores=8"], "differ in more than the accelerator"),
        ("skypilot", "TPU-V6E:8", "tpu-v6e-8"),
        ("ray", "H100, T4", "it takes one alternative"),
        ("ray", "cuda:1", "it numbers devices itself"),
        ("ray", "cuda", "GPUs of any vendor"),
        ("ray", "H100:*", "a number of devices"),
        ("ray", "RTX-6000-Ada", "no such accelerator type"),  # Ray's name of it is that of the RTX 6000 of Turing, too
        ("ray", "H100-94GB", "no such accelerator type.*write 'H100'"),
        ("ray", "40GB+", "name a product"),
        ("ray", "TPU-V6E:3", "1, 2, 4 or 8"),
        ("slurm", "gpu:1", "numbers devices itself.*write 'gpu', or 'gpu:any:2' for two"),
        ("slurm", "rocm", "no vendors"),
        ("slurm", "A100-80GB:2", "its own sizes.*write 'A100:2'"),
        ("slurm", "40GB+", "does not compare memory. Available: A100, A40"),
        ("slurm", "{H100:2, A100}", "the same count"),
        ("slurm", "{H100:2 nodes=2, L4:2 nodes=2}", "machines may have several products"),
        ("slurm", "H100:2, A100:2", "no order of preference.*write '{H100:2, A100:2}'"),
        ("kubernetes", "H100, T4", "--export dra"),
        ("kubernetes", "gpu", "one vendor.*write 'cuda' or 'rocm'"),
        ("kubernetes", "40GB+", "write 'nvidia:40GB\\+'"),
        ("kubernetes", "amd:64GB+", "no number to compare memory with.*--export dra"),
        ("kubernetes", "amd:any sm>=80", "no compute capability"),
        ("kubernetes", "cpu[bf16]", "cannot request compute formats"),
        ("kubernetes", "H100 nodes=2", "completions: 2"),
        ("kubernetes", "TPU-V6E:4", "topologies"),
        ("gke", "H100, T4", "one alternative"),
        ("gke", "MI300X", "no node of it has such a device. Available: nvidia-tesla-p100"),
        ("gke", "L40S", "no node of it has such a device"),
        ("gke", "A100-PCIe", "no node of it has such a device"),
        ("gke", "TPU-V6E:2", "that many of them. Available: TPU-V5E:1"),
        ("gke", "TPU-V4:4", "that many of them"),
        ("dra", "{H100, T4}", "order of preference"),
        ("dra", ", ".join(["H100"] * 9), "at most 8 alternatives"),
        ("dra", "H100:64", "at most 32"),
        ("dra", "H100 cores=8", "the pod's limits"),
        ("pbs", "H100", "'pbs' is not a format of requests. Available: modal, skypilot"),
        (3, "H100", "3 is not a format"),
    ],
)
def test_what_a_scheduler_cannot_be_asked_for_is_refused(to, request_, told):
    with pytest.raises(ConfigError, match=told) as error:
        exported(request_, to)
    for written in re.findall(r"write '(\S+?)'", error.value.hint):  # what it says to write is a request
        assert DeviceRequest.parse(written)


# What is given to either request is what both ask for: `any` is any GPU there, and Modal has none but NVIDIA's; these
# give no upgrades.
NARROWER = {
    *(("kind", to) for to in ("modal", "ray", "slurm", "gke")),
    *(("exact", to) for to in ("ray", "skypilot", "slurm")),
}
ALL = [
    InventoryDevice(device=Device(product.kind), name=name, vendor=product.vendor, memory_gb=float(gb))
    for product in products()
    for name, gb, _ in product.drivers
]
CHANGES = {
    "kind": ("gpu", "cuda", "rocm", "cpu", "tpu", "mps"),
    "index": (0, 1),
    "more": ((1,),),
    "every": (True,),
    "product": ("T4", "A100", "L4", "MI300X"),
    "form": ("SXM", "PCIe"),
    "memory_gb": (16, 40, 80),
    "exact": (True,),
    "newer": (True,),
    "capabilities": (("bf16",),),
    "sm": (80,),
    "count": (2,),
    "host_memory_gb": (64,),
    "cores": (8,),
    "nodes": (2,),
    "price": (2.5,),
}
BASES = [
    RequestEntry(),
    RequestEntry(kind="cuda"),
    RequestEntry(kind="rocm"),
    RequestEntry(kind="cpu", cores=4),
    RequestEntry(product="H100"),
    RequestEntry(product="T4"),
    RequestEntry(product="B200"),
    RequestEntry(product="A100", memory_gb=80),
    RequestEntry(kind="cuda", memory_gb=40),
    RequestEntry(memory_gb=40),
]


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("base", BASES, ids=str)
def test_no_part_of_a_request_is_left_out(to, base):
    """Each field of a request changes what is exported, or the request is refused, or asks for the same devices."""
    assert CHANGES.keys() == {field.name for field in fields(RequestEntry)}
    try:
        before = export([base], True, to)
    except ConfigError:
        return
    for name, value in ((name, value) for name, values in CHANGES.items() for value in values):
        changed = replace(base, **{name: value})
        try:
            is_request = DeviceRequest.parse(str(changed)).entries == (changed,) != (base,)
        except DeviceParseError:
            is_request = False
        if not is_request:
            continue
        try:
            after = export([changed], True, to)
        except ConfigError as error:
            assert error.hint
            continue
        of_devices = name not in ("index", "more", "every", "count", "host_memory_gb", "cores", "nodes", "price")
        there = [device for device in ALL if to != "gke" or device.name in GKE.values()]
        alike = of_devices and all(is_device_of(base, device) == is_device_of(changed, device) for device in there)
        assert after != before or alike or (name, to) in NARROWER, changed


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("modal.gpu.A100(size='80GB', count=2)", "write 'A100-80GB:2'"),
        ("gpu.H100()", "write 'H100'"),
        ("modal.gpu.Any()", "write 'any'"),
    ],
)
def test_the_retired_objects_of_modal_are_told_the_text_of_today(text, hint):
    with pytest.raises(DeviceParseError, match=hint) as error:
        DeviceRequest.parse(text)
    written = re.search(r"write '(.*)'", error.value.hint).group(1)
    assert DeviceRequest.parse(DeviceRequest.parse(written).export("modal")) == DeviceRequest.parse(written)


WISHES = st.builds(
    "{}{}{}".format,
    st.sampled_from([product.name for product in products()] + ["any", "gpu", "40GB+", "A100-80GB", "H100!", "B200+"]),
    st.sampled_from(["", ":2", ":8"]),
    st.sampled_from(["", " mem=64GB", " cores=8"]),
)


@given(st.lists(WISHES, min_size=1, max_size=3), st.sampled_from(sorted(FORMATS)))
def test_every_export_is_plain_json_or_an_error_with_a_hint(wishes, to):
    try:
        request = DeviceRequest.parse(wishes)
        written = request.export(to)
    except AnyaccelError as error:
        assert error.hint or error.available
        return
    assert json.loads(json.dumps(written)) == written
    if to == "modal":  # Modal's values are requests of this grammar, and its names are those that it documents
        values = [written] if isinstance(written, str) else written
        assert all(value.partition(":")[0] in (*NAMES, "any") for value in values)
        assert DeviceRequest.parse(values).export("modal") == written
