"""Exports compared with the systems that read them: every request to every export, with the real package or schema.

`nox -s schedulers` installs modal, ray, skypilot, kubernetes-validate, cel-python and huggingface_hub; where one is
missing, its tests are skipped, and the names below are what the package had on a day.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from enum import EnumType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import Device, DeviceRequest
from anyaccel.errors import AnyaccelError, ConfigError, DeviceParseError
from anyaccel_resources import InventoryDevice, products
from anyaccel_resources.allocation import is_device_of
from anyaccel_resources.exports import FORMATS, GKE, GKE_TPU, NAMES, RAY, SKYPILOT

# What people write first, here and there: requests of this grammar, and the spellings of other systems.
REQUESTS: list[Any] = [
    *("any", "gpu", "cuda", "rocm", "mps", "cpu", "tpu", "gpu:1", "gpu:0+1", "gpu:*", "any:2", "gpu:any:2"),
    *("nvidia:any:2", "amd:any:8", "H100", "H100:8", "h100!", "H100-80GB", "H100-94GB:2", "H100-NVL", "H100-SXM:8"),
    *("H100-PCIe", "H200", "H200-NVL", "H20", "GH200", "B200", "B200+", "B200+:8", "GB200", "B300", "A100", "A100:8"),
    *("A100-40GB:2", "A100-80GB:4", "A100-SXM-80GB", "A100-80GB-SXM", "A10", "A10G", "A30", "A40", "L4", "L40", "L40S"),
    *("T4:4", "T4!", "P100", "V100", "V100-32GB:8", "RTX-3090", "RTX4090", "RTX-5090:2", "RTX-A6000", "RTX-6000-Ada"),
    *("RTX-PRO-6000:2", "MI300X:8", "MI325X", "MI355X", "TPU-V6E:8", "TPU-V5P:4", "TPU-V4", "40GB+", "40GB+:2"),
    *("NVIDIA:40GB+:2", "amd:128GB+", "gpu:24GB+", "sm>=80", "sm>=90:2", "nvidia:24GB+:2 sm>=89", "gpu[bf16]:0"),
    *("cuda[bf16]", "any[fp8]:2", "H100:2 mem=64GB cores=8", "cpu mem=3GB cores=4", "H100:8 nodes=2"),
    *("H100:8 price<=25", "A100:8 mem=1TB cores=96 price<=12.50", "H100:*", "H100:64", "{A100:8, V100:8}", "H100, T4"),
    ["H100", "A100-40GB:2"],
    ["H100:8", "A100-80GB:8", "40GB+:8"],
    ["nvidia:80GB+:2", "L40S:4"],
    {"L4", "T4", "A10G"},
    {"H100:2", "MI300X:2"},
    {"H100:8 nodes=4", "A100:8 nodes=4"},
    # typed wrong, or as other systems write it: the hint has the request
    *(
        "A100-80",
        "a100 80gb",
        "H100x2",
        "gpu:A10G",
        "8xH100",
        "8x H100-80GB",
        "nvidia-tesla-t4",
        "nvidia-l4",
        "A100-80G",
    ),
    *("nvidia-tesla-a100", "nvidia-h100-mega-80gb", "NVIDIA A100-SXM4-80GB", "NVIDIA-H100-NVL", "Tesla T4", "H100x"),
    *("gpu:a100:2", "--gres=gpu:a100:2", "--gpus=2", "gpu=2", "nvidia.com/gpu: 2", "AMD Instinct MI300X", "2 GPUs"),
    *("t4-small", "l4x4", "l40sx8", "a10g-largex2", "a100-large", "zero-a10g", "v5e-8", "tpu-v5litepod-8", "tpu-v4-8"),
    *('["H100", "A100-40GB:2"]', "{'A100': 8, 'V100': 8}", "{A100: 8, V100: 8}", "H100 or A100", "H100|A100", "sm_80"),
    *("1g.10gb", "nvidia.com/mig-1g.5gb: 2", "H100:0.5", "H10O", "A10GG", "L40X", "MI300", "H100-96GB", "p4d.24xlarge"),
    *(">=40GB", "40 GB+", "40GiB+", "40GB", "nvidia", "amd:H100", "A10G-SXM", "H100 nodes=0", "H100 price<=0"),
]


def requests() -> Iterator[DeviceRequest]:
    """The requests that parse; of the others, those that their hints say to write."""
    for text in REQUESTS:
        try:
            yield DeviceRequest.parse(text)
        except DeviceParseError as error:
            for written in re.findall(r"write '(.+?)'", error.hint) + re.findall(r'write "(.+?)"', error.hint):
                yield DeviceRequest.parse(written)


def exported(to: str) -> list[tuple[DeviceRequest, Any]]:
    """What is exported, of requests that are not refused."""
    made = []
    for request in requests():
        try:
            made.append((request, request.export(to)))
        except ConfigError as error:
            assert (error.hint and str(request.entries[-1]) + "'" in error.problem) or len(request.entries) > 1
    return made


def test_there_are_enough_requests_and_every_system_takes_some():
    assert len(REQUESTS) >= 120
    least = {"modal": 25, "skypilot": 45, "ray": 50, "slurm": 55, "kubernetes": 50, "gke": 45, "dra": 50}
    assert {to: len(exported(to)) >= number for to, number in least.items()} == dict.fromkeys(FORMATS, True)


# -- wrong spellings ---------------------------------------------------------------------------------------------------


MEANT = {
    "A100-80": "A100-80GB",
    "A100-80G": "A100-80GB",
    "a100 80gb": "A100-80GB",
    "A100 80GB:2": "A100-80GB:2",
    "H100x2": "H100:2",
    "8xH100": "H100:8",
    "8 H100s": "H100:8",
    "8x H100-80GB": "H100-80GB:8",
    "2 GPUs": "gpu:any:2",
    "gpu:A10G": "A10G",
    "gpu:a100:2": "A100:2",
    "--gres=gpu:a100:2": "A100:2",
    "--gpus-per-node=h100:8": "H100:8",
    "--gpus=2": "gpu:any:2",
    "gpu=2": "gpu:any:2",
    "nvidia.com/gpu: 2": "nvidia:any:2",
    "amd.com/gpu: 8": "amd:any:8",
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-v100": "V100-16GB",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-l4": "L4",
    "nvidia-h100-80gb": "H100-80GB",
    "nvidia-h100-mega-80gb": "H100-80GB",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM-80GB",
    "NVIDIA-H100-NVL": "H100-NVL",
    "Tesla T4": "T4",
    "AMD Instinct MI300X": "MI300X",
    "a10g-largex2": "A10G:2",
    "t4-small": "T4",
    "l4x4": "L4:4",
    "l40sx8": "L40S:8",
    "a100-large": "A100-80GB",
    "v5e-8": "TPU-V5E:8",
    "tpu-v5litepod-8": "TPU-V5E:8",
    "tpu-v4-8": "TPU-V4:4",  # the number counts TensorCores, of which a chip has two
    '["H100", "A100-40GB:2"]': "H100, A100-40GB:2",
    "{'A100': 8, 'V100': 8}": "{A100:8, V100:8}",
    "{A100: 8, V100: 8}": "{A100:8, V100:8}",
    "H100 or A100": "H100, A100",
    "sm_80": "sm>=80",
    "sm>=8.0": "sm>=80",
    "1g.10gb": "10GB+",
    "nvidia.com/mig-1g.5gb: 2": "5GB+:2",
    ">=40GB": "40GB+",
    "40GB or more": "40GB+",
    "gpu0": "gpu:0",
    "cuda:0,1": "cuda:0+1",
    "0,1": "gpu:0+1",
    "mem=64GB": "any mem=64GB",
    "H100:8, nodes=2": "H100:8 nodes=2",
    "8xH100 mem=64GB price<=9": "H100:8 mem=64GB price<=9",
    "40GiB+": "40GB+",
    "gpu:0-3": "gpu:0+1+2+3",
    "/GPU:0": "gpu:0",
    "/device:GPU:1": "gpu:1",
    "/job:localhost/replica:0/task:0/device:CPU:0": "cpu:0",
    "H100:2 memory=64 cpus=8+": "H100:2 mem=64GB cores=8",
    "H100:8, num_nodes=2": "H100:8 nodes=2",
    "gpu:a100_1g.5gb:2": "5GB+:2",  # a type of Slurm
    "accelerator_type:A100": "A100",  # a resource of Ray
}


@pytest.mark.parametrize(("text", "meant"), MEANT.items())
def test_the_spelling_of_another_system_is_told_what_to_write(text, meant):
    with pytest.raises(DeviceParseError) as error:
        DeviceRequest.parse(text)
    assert error.value.hint == f"write {meant!r}" and DeviceRequest.parse(meant)


def test_an_option_that_requests_do_not_have_is_to_be_left_out():
    with pytest.raises(DeviceParseError, match=r"'region' is not expected here.*Hint: leave it out") as error:
        DeviceRequest.parse("H100:2 region=us-east-1")
    assert "mem=64GB" in error.value.available and DeviceRequest.parse("H100:2")


@pytest.mark.parametrize(
    "text", ["H100-SXM-PCIe", "H100-80GB-94GB", "H100 SXM NVL", "A100-60GB", "H100:2:3", "2x8xH100"]
)
def test_no_part_of_a_spelling_is_left_out(text):
    with pytest.raises(DeviceParseError) as error:
        DeviceRequest.parse(text)
    assert not re.match(r"write '[A-Z]\d+[-\w]*(:\d+)?'$", error.value.hint)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("NVIDIA:40GB+:2", "nvidia:40GB+:2"),
        ("nvidia:H100:8", "H100:8"),
        ("A100-80GB-SXM4", "A100-SXM-80GB"),
        ("AMD-Instinct-MI300X-OAM", "MI300X-OAM"),
        ("RTX4090", "RTX-4090"),
        ("GeForce-RTX-4090", "RTX-4090"),
        ("tpu-v5litepod:8", "TPU-V5E:8"),
        ("cuda:any", "cuda"),
        ("sm >= 80:2", "sm>=80:2"),
        ("H100 price<=2.50 nodes=2", "H100 nodes=2 price<=2.5"),
    ],
)
def test_spellings_that_mean_the_same_are_one_request(text, same):
    assert DeviceRequest.parse(text) == DeviceRequest.parse(same) and str(DeviceRequest.parse(text)) == same


def test_a_mapping_of_skypilot_is_told_the_set():
    with pytest.raises(DeviceParseError, match=r"write {'A100:8', 'V100:8'}"):
        DeviceRequest.parse({"A100": 8, "V100": 8})
    assert DeviceRequest.parse({"A100:8", "V100:8"}).export("skypilot") == {
        "any_of": [{"accelerators": "A100:8"}, {"accelerators": "V100:8"}]
    }


def test_the_hardware_of_hugging_face_is_told_the_request():
    hub = pytest.importorskip("huggingface_hub")
    kinds = (hub.SpaceHardware, getattr(hub, "JobHardware", None))  # the second is an enumeration since 2.0
    flavors = {flavor.value for kind in kinds if isinstance(kind, EnumType) for flavor in kind}
    for flavor in flavors - {"inf2x6"}:  # Inferentia, which the table does not have
        try:
            DeviceRequest.parse(flavor)
        except DeviceParseError as error:
            (written,) = re.findall(r"^write '(.+)'$", error.hint)
            count = re.search(r"x(\d)$", flavor)
            number = int(count.group(1)) if count and written != "cpu" else 1
            assert DeviceRequest.parse(written).count == number, flavor


# -- Modal -------------------------------------------------------------------------------------------------------------


def modal_values(written: Any) -> list[str]:
    return [written] if isinstance(written, str) else written


def test_values_for_modal_are_documented_names_with_the_count():
    for request, written in exported("modal"):
        for entry, value in zip(request.entries, modal_values(written), strict=True):
            name, _, count = value.partition(":")
            assert name in (*NAMES, "any") and int(count or 1) == entry.count
            assert not entry.memory_gb or name not in ("H100", "A100")  # which have several


def test_modal_itself_reads_the_values():
    utils = pytest.importorskip("modal._utils.function_utils")
    for request, written in exported("modal"):
        for entry, value in zip(request.entries, modal_values(written), strict=True):
            config = utils.parse_gpu_config(value)
            assert (config.gpu_type, config.count) == (value.partition(":")[0].upper(), entry.count)
    assert hasattr(pytest.importorskip("modal.experimental"), "clustered")  # which a hint names


# -- Ray ---------------------------------------------------------------------------------------------------------------


# Of the constants of ray.util.accelerators.accelerators 2.60.0, those of products in the table.
RAY_CONSTANTS = {
    *("V100", "P100", "T4", "A10G", "L4", "L40S", "A100", "H100", "H200", "H20", "B200", "B300", "GB200"),
    *("RTX-PRO-6000", "A100-40G", "A100-80G", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI325X-OAM"),
    *("AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E"),
}
# What Ray makes of the driver's name where it has no constant.
RAY_REPORTED = {"A30", "A10", "A40", "L40", "GH200", "RTX-A6000", *(f"GeForce-RTX-{n}" for n in (3090, 4090, 5090))}


def test_accelerator_types_for_ray_are_its_constants_or_what_it_makes_of_drivers_names():
    assert set(RAY.values()) == RAY_CONSTANTS | RAY_REPORTED


def test_ray_itself_has_the_accelerator_types_and_names_nodes_by_them():
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    constants = {value for name, value in vars(accelerators).items() if isinstance(value, str) and name[0] != "_"}
    assert constants >= RAY_CONSTANTS
    assert not constants & RAY_REPORTED
    nvidia = pytest.importorskip("ray._private.accelerators.nvidia_gpu").NvidiaGPUAcceleratorManager
    for product in products():
        for driver, _, _ in product.drivers if product.vendor == "nvidia" else ():
            if product.name in RAY:
                assert nvidia._gpu_name_to_accelerator_type(driver) == RAY[product.name]  # noqa: SLF001 - Ray's own rule


def test_ray_itself_accepts_the_options():
    options = pytest.importorskip("ray._common.ray_option_utils")
    taken = exported("ray")
    for request, made in taken:
        options.validate_task_options(made, in_options=False)
        options.validate_actor_options(made, in_options=False)
        entry = request.entries[0]
        number = made.get("resources", {}).get("TPU", made["num_gpus"])
        assert number == (0 if entry.kind == "cpu" else entry.count)
        assert made.get("memory", 0) == entry.host_memory_gb * 10**9 and made.get("num_cpus", 0) == entry.cores
    with pytest.raises(ValueError, match="no_such_option"):
        options.validate_task_options({"no_such_option": 1}, in_options=False)


# -- SkyPilot ----------------------------------------------------------------------------------------------------------


# Names of its catalogue of schema v8, and the memory that its catalogue states; read 2026-11-28.
SKYPILOT_MEMORY = {
    "A10": 24,
    "A100": 40,
    "A100-80GB": 80,
    "A100-80GB-SXM": 80,
    "A10G": 24,
    "A30": 24,
    "A40": 48,
    "B200": 180,
    "GH200": 96,
    "H100": 80,
    "H100-NVL": 94,
    "H100-SXM": 80,
    "H200": 141,
    "H200-SXM": 141,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "MI300X": 192,
    "P100": 16,
    "RTX3090": 24,
    "RTX4090": 24,
    "RTX5090": 32,
    "RTX6000-Ada": 48,
    "RTXA6000": 48,
    "T4": 16,
    "V100": 16,
    "V100-32GB": 32,
}


def test_names_for_skypilot_are_in_its_catalogue_with_the_memory_that_is_asked_for():
    assert set(SKYPILOT.values()) <= SKYPILOT_MEMORY.keys()
    for name, written in SKYPILOT.items():
        size = re.search(r"-(\d+)GB$", name)
        assert not size or int(size.group(1)) == SKYPILOT_MEMORY[written]


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """SkyPilot with a catalogue of these names, in a home of its own: it reads the catalogue when it is imported."""
    home = tmp_path_factory.mktemp("home")
    rows = {
        "accelerators": ["AcceleratorName,Clouds", *(f"{name},\"['AWS']\"" for name in SKYPILOT_MEMORY)],
        "metadata": [
            "GPU,MemoryGB,Manufacturer",
            *(f"{name},{gb},{'amd' if name[:2] == 'MI' else 'nvidia'}" for name, gb in SKYPILOT_MEMORY.items()),
        ],
    }
    read = home / ".sky/catalogs/v8/common"
    read.mkdir(parents=True)
    for name, lines in rows.items():
        (read / f"{name}.csv").write_text("\n".join([*lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USERPROFILE", str(home))
        yield pytest.importorskip("sky.resources")


def test_skypilot_itself_reads_the_resources(sky: Any):
    schemas = pytest.importorskip("sky.utils.schemas")
    validate = pytest.importorskip("sky.utils.common_utils").validate_schema
    for request, written in exported("skypilot"):
        validate(written, schemas.get_resources_schema(), "not SkyPilot's: ")
        read = sky.Resources.from_yaml_config(copy.deepcopy(written))
        assert isinstance(read, list) == (request.ordered and len(request.entries) > 1)
        counts = {count for resource in read for count in (resource.accelerators or {}).values()}
        assert counts == {entry.count for entry in request.entries if entry.kind != "cpu"}
        assert {resource.max_hourly_cost or 0 for resource in read} == {entry.price for entry in request.entries}
        wanted = {(e.host_memory_gb, e.cores) for e in request.entries}
        host = {(int((r.memory or "0")[:-1] or 0), int((r.cpus or "0")[:-1] or 0)) for r in read}
        assert host == wanted or request.entries[0].kind == "cpu"
        names = [name for resource in read for name in resource.accelerators or {}]
        least = min((entry.memory_gb for entry in request.entries), default=0)
        assert all(SKYPILOT_MEMORY[name] >= least for name in names), request


# -- Slurm: the forms of sbatch(1), version 25.11, for options that take no site's names -------------------------------


OPTIONS = {
    "--nodes": r"\d+",
    "--gpus-per-node": r"(?:[a-z][a-z0-9_]*:)?\d+",
    "--constraint": r"[a-z][a-z0-9_]*(?:\|[a-z][a-z0-9_]*)+",
    "--mem": r"\d+[KMGT]",
    "--cpus-per-task": r"\d+",
}


def test_options_for_slurm_are_those_of_its_manual():
    for request, written in exported("slurm"):
        options = dict(option.split("=", 1) for option in written)
        assert len(options) == len(written)
        assert all(re.fullmatch(OPTIONS[name], value) for name, value in options.items())
        entry = request.entries[0]
        assert int(options["--nodes"]) == entry.nodes
        assert entry.kind == "cpu" or int(options["--gpus-per-node"].split(":")[-1]) == entry.count
        memory = int(options.get("--mem", "0M")[:-1]) * 2**20
        assert 0 <= memory - entry.host_memory_gb * 10**9 < 2**20
        assert int(options.get("--cpus-per-task", 0)) == entry.cores or entry == DeviceRequest.parse("cpu").entries[0]


def test_types_for_slurm_are_parts_of_the_name_that_its_detection_compares_them_with():
    for product in products():
        if product.kind == "gpu":
            names = [name.lower().replace(" ", "_") for name, _, _ in product.drivers]
            (_, option) = DeviceRequest.parse(product.name).export("slurm")
            kind = option.partition("=")[2].partition(":")[0]
            assert all(kind in name for name in names), product.name


# -- Kubernetes --------------------------------------------------------------------------------------------------------


# Name of the driver, MiB that it reports, compute capability; and which requests are for it.
GPUS = [
    ("Tesla T4", 15360, "7.5"),
    ("Tesla V100-SXM2-32GB", 32768, "7.0"),
    ("NVIDIA A10", 23028, "8.6"),
    ("NVIDIA A10G", 22731, "8.6"),  # 23.8e9 bytes of 24 GB
    ("NVIDIA A100-SXM4-40GB", 40960, "8.0"),
    ("NVIDIA A100 80GB PCIe", 81920, "8.0"),
    ("NVIDIA L4", 23034, "8.9"),
    ("NVIDIA L40", 46068, "8.9"),
    ("NVIDIA L40S", 46068, "8.9"),
    ("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    ("NVIDIA H100 NVL", 95830, "9.0"),
    ("NVIDIA GH200 480GB", 97871, "9.0"),
    ("NVIDIA H200", 143771, "9.0"),
    ("NVIDIA GB200", 189471, "10.0"),
    ("NVIDIA B200", 183359, "10.0"),
    ("NVIDIA RTX A5000", 24564, "8.6"),  # not in the table
    ("NVIDIA RTX A4000", 16376, "8.6"),
]
CHOSEN: dict[str, set[str]] = {
    "A10": {"NVIDIA A10"},
    "A10G": {"NVIDIA A10G"},
    "A100": {"NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe"},
    "A100-80GB": {"NVIDIA A100 80GB PCIe"},
    "A100-SXM": {"NVIDIA A100-SXM4-40GB"},
    "L4": {"NVIDIA L4"},
    "L40": {"NVIDIA L40"},
    "L40S": {"NVIDIA L40S"},
    "H100!": {"NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"},
    "H100": {"NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA H200"},  # the upgrade that providers give
    "H100-94GB": {"NVIDIA H100 NVL"},
    "H200": {"NVIDIA H200"},
    "B200": {"NVIDIA B200"},
    "GH200": {"NVIDIA GH200 480GB"},
    "cuda": {name for name, _, _ in GPUS},
    "nvidia:24GB+": {name for name, _, _ in GPUS} - {"Tesla T4", "NVIDIA RTX A4000"},
    "nvidia:80GB+": {name for name, mib, _ in GPUS if mib > 80000},
    "nvidia:81GB+": {name for name, mib, _ in GPUS if mib > 90000},
    "sm>=89": {name for name, _, sm in GPUS if float(sm) >= 8.9},
    "sm>=80": {name for name, _, sm in GPUS if float(sm) >= 8},
    "nvidia:24GB+ sm>=86": {name for name, mib, sm in GPUS if float(sm) >= 8.6 and mib > 20000},
    "cuda[fp8]": {name for name, _, sm in GPUS if float(sm) >= 8.9},
    "B200+": {"NVIDIA B200"},
    "A10+": {"NVIDIA A10", *(name for name, _, sm in GPUS if float(sm) >= 8.9)},
}


def labels(name: str, mib: int, sm: str) -> dict[str, str]:
    """The labels of a node by NVIDIA's feature discovery."""
    major, minor = sm.split(".")
    return {
        "nvidia.com/gpu.product": "-".join(name.split()),
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/gpu.sharing-strategy": "none",
    }


def is_selected(pod: Mapping[str, Any], node: Mapping[str, str]) -> bool:
    """Whether a pod runs on a node, as Kubernetes compares labels."""

    def holds(term: Mapping[str, Any]) -> bool:
        value, values = node.get(term["key"]), term["values"]
        answers: dict[str, Callable[[], bool]] = {
            "In": lambda: value in values,
            "NotIn": lambda: value not in values,
            "Gt": lambda: value is not None and int(value) > int(values[0]),
        }
        return answers[term["operator"]]()

    affinity = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = affinity.get("nodeSelectorTerms", [])
    chosen = not terms or any(all(map(holds, term["matchExpressions"])) for term in terms)
    return chosen and all(node.get(key) == value for key, value in pod.get("nodeSelector", {}).items())


@pytest.mark.parametrize(("request_", "names"), CHOSEN.items())
def test_a_pod_runs_on_the_nodes_that_the_request_is_for_and_no_others(request_, names):
    pod = DeviceRequest.parse(request_).export("kubernetes")
    assert {gpu[0] for gpu in GPUS if is_selected(pod, labels(*gpu))} == names


def test_shared_and_divided_devices_are_no_whole_ones():
    shared = labels("NVIDIA A100-SXM4-40GB-SHARED", 40960, "8.0") | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}
    slices = labels("NVIDIA A100-SXM4-40GB-MIG-1g.5gb", 4864, "8.0")
    for request in ("A100", "A100-40GB", "nvidia:40GB+"):
        pod = DeviceRequest.parse(request).export("kubernetes")
        assert not is_selected(pod, shared) and not is_selected(pod, slices)
    assert is_selected(DeviceRequest.parse("nvidia:5GB+").export("kubernetes"), labels("NVIDIA A100 MIG", 5120, "8.0"))


# The devices of Google's machines with GPUs, by the label of their nodes.
GKE_NODES = {
    "nvidia-tesla-t4": ("T4", 16),
    "nvidia-tesla-v100": ("V100", 16),
    "nvidia-l4": ("L4", 24),
    "nvidia-tesla-a100": ("A100", 40),
    "nvidia-a100-80gb": ("A100", 80),
    "nvidia-h100-80gb": ("H100", 80),
    "nvidia-h100-mega-80gb": ("H100", 80),
    "nvidia-h200-141gb": ("H200", 141),
    "nvidia-b200": ("B200", 180),
}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ("A100", lambda name, gb: name == "A100"),
        ("A100-80GB", lambda name, gb: (name, gb) == ("A100", 80)),
        ("V100", lambda name, gb: name == "V100"),
        ("H100!", lambda name, gb: name == "H100"),
        ("H100", lambda name, gb: name in ("H100", "H200")),
        ("L4", lambda name, gb: name == "L4"),
        ("nvidia:40GB+", lambda name, gb: gb >= 40),
        ("24GB+", lambda name, gb: gb >= 24),
        ("sm>=89", lambda name, gb: name in ("L4", "H100", "H200", "B200")),
        ("any[bf16]", lambda name, gb: name not in ("T4", "V100")),
    ],
)
def test_a_pod_runs_on_the_nodes_of_gke_that_the_request_is_for(request_, wanted):
    pod = DeviceRequest.parse(request_).export("gke")
    for label, (name, gb) in GKE_NODES.items():
        assert is_selected(pod, {"cloud.google.com/gke-accelerator": label}) == wanted(name, gb), label


def test_labels_of_gke_are_read_back_and_known_to_skypilot(sky: Any):
    for label, driver in GKE.items():
        with pytest.raises(DeviceParseError) as error:
            DeviceRequest.parse(label)
        (meant,) = re.findall(r"^write '(.+)'$", error.value.hint)
        entry = DeviceRequest.parse(meant).entries[0]
        assert any(
            entry.product == product.name and driver in [it[0] for it in product.drivers] for product in products()
        )
    formatter = pytest.importorskip("sky.provision.kubernetes.utils").GKELabelFormatter
    for label, topologies in GKE_TPU.values():
        assert {n: formatter.get_tpu_topology_label_value(label, n) for n in topologies} == topologies
    assert formatter.get_accelerator_from_label_value("nvidia-tesla-a100") == "A100"


def test_nodes_of_amd_are_chosen_by_their_own_labels():
    pod = DeviceRequest.parse("MI300X:8").export("kubernetes")
    for name in ("AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI300X"):  # of the board, or of the driver's library
        assert is_selected(pod, {"amd.com/gpu.product-name": name})
    assert not is_selected(pod, {"amd.com/gpu.product-name": "AMD_Instinct_MI325X_OAM"})
    assert not is_selected(pod, labels("NVIDIA H200", 143771, "9.0"))


def test_the_schema_of_kubernetes_has_what_is_exported():
    kubernetes = pytest.importorskip("kubernetes_validate")
    for _, written in (*exported("kubernetes"), *exported("gke")):
        container = {"name": "main", "image": "image", "resources": written["resources"]}
        spec = {"containers": [container], **{key: value for key, value in written.items() if key != "resources"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        kubernetes.validate(pod, "1.37", strict=True)
        for term in written.get("affinity", {}).get("nodeAffinity", {}).values():
            for each in term["nodeSelectorTerms"]:
                assert all(len(value) <= 63 for it in each["matchExpressions"] for value in it["values"])
    for _, claim in exported("dra"):
        kubernetes.validate(claim, "1.37", strict=True)
    with pytest.raises(Exception, match="bogus"):
        kubernetes.validate({**claim, "bogus": 1}, "1.37", strict=True)


def expressions(claim: Mapping[str, Any]) -> list[str]:
    (request,) = claim["spec"]["devices"]["requests"]
    devices = [request["exactly"]] if "exactly" in request else request["firstAvailable"]
    return [selector["cel"]["expression"] for device in devices for selector in device["selectors"]]


def matches(expression: str, driver: str, device: Mapping[str, Any]) -> bool:
    """Whether CEL finds that a device matches, with what Kubernetes adds to it."""
    celpy = pytest.importorskip("celpy")
    integer = celpy.celtypes.IntType

    def version(text: Any) -> Any:
        major, minor, patch = map(int, str(text).split("."))
        return integer(major * 10**6 + minor * 10**3 + patch)

    functions = {
        "compareTo": lambda first, second: integer((first > second) - (first < second)),
        "semver": version,
        "quantity": lambda text: integer(int(str(text).removesuffix("G")) * 10**9),
    }
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression), functions=functions)
    attributes = {**device, "cudaComputeCapability": int(version(device.get("cudaComputeCapability", "0.0.0")))}
    memory = attributes.pop("memory")
    context = {"attributes": {driver: attributes}, "capacity": {driver: {"memory": memory}}}
    return bool(program.evaluate({"device": celpy.json_to_cel(context)}))


@pytest.mark.parametrize(("request_", "names"), CHOSEN.items())
def test_a_claim_gets_the_devices_that_the_request_is_for_and_no_others(request_, names):
    (expression,) = expressions(DeviceRequest.parse(request_).export("dra"))
    for name, mib, sm in GPUS:
        device = {"type": "gpu", "productName": name, "memory": mib * 2**20, "cudaComputeCapability": f"{sm}.0"}
        assert matches(expression, "gpu.nvidia.com", device) == (name in names), name
        assert not matches(expression, "gpu.nvidia.com", {**device, "type": "mig"})
    assert len(expression) <= 10 * 1024  # the most that Kubernetes takes


def test_claims_for_devices_of_amd_have_their_names_and_whole_devices():
    (expression,) = expressions(DeviceRequest.parse("MI300X").export("dra"))
    device = {"type": "amdgpu", "productName": "AMD_Instinct_MI300X_OAM", "memory": 206 * 10**9}
    assert matches(expression, "gpu.amd.com", device)
    assert not matches(expression, "gpu.amd.com", {**device, "type": "amdgpu-partition"})
    assert not matches(expression, "gpu.amd.com", {**device, "productName": "AMD_Instinct_MI325X_OAM"})
    (expression,) = expressions(DeviceRequest.parse("amd:200GB+").export("dra"))
    assert not matches(expression, "gpu.amd.com", device)  # it has 192 GB, as its maker counts
    assert matches(expression, "gpu.amd.com", {**device, "productName": "AMD_Instinct_MI325X_OAM"})


# -- round trips -------------------------------------------------------------------------------------------------------


NAMED = [
    name for product in products() for name in (product.name, *(f"{product.name}-{gb}GB" for gb in product.memory_gb))
]
WISHES = st.builds(
    "{}{}".format,
    st.sampled_from([*NAMED, "any", "gpu", "40GB+", "nvidia:80GB+", "amd:192GB+", "H100!", "B200+", "H100-NVL"]),
    st.sampled_from(["", ":2", ":4", ":8"]),
)


def readable(to: str, written: Any) -> Any:
    """The part of an export that is a request of this grammar; None if there is none."""
    if to == "modal":
        return written
    if to == "ray" and "accelerator_type" in written:
        number = written["num_gpus"] or written["resources"]["TPU"]
        return f"{written['accelerator_type']}:{number}"
    return written.get("accelerators") if to == "skypilot" else None


@given(st.lists(WISHES, min_size=1, max_size=3, unique=True), st.sampled_from(["modal", "ray", "skypilot"]))
def test_what_an_export_wrote_is_read_back_and_exported_alike(wishes, to):
    """Values of Modal, accelerators of SkyPilot and types of Ray are requests, or hints say which."""
    try:
        written = DeviceRequest.parse(wishes).export(to)
    except AnyaccelError as error:
        assert error.hint
        return
    text = readable(to, written)
    if text is None:
        return
    try:
        again = DeviceRequest.parse(text)
    except DeviceParseError as error:
        (meant,) = re.findall(r"^write '(.+)'$", error.hint)
        again = DeviceRequest.parse(meant)
    assert again.export(to) == written


@given(st.sampled_from(NAMED), st.sampled_from([(p, driver) for p in products() for driver in p.drivers]))
def test_a_device_is_that_of_its_own_product_alone(name, reported):
    product, (driver, gb, _) = reported
    device = InventoryDevice(device=Device(product.kind), name=driver, vendor=product.vendor, memory_gb=float(gb))
    entry = DeviceRequest.parse(f"{name}!").entries[0]
    assert is_device_of(entry, device) == (entry.product == product.name and entry.memory_gb in (0, gb))
