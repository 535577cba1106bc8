"""Exports: requests as Modal, Ray, SkyPilot, Slurm and Kubernetes write them.

An export requests exactly the same as the request, or is refused: no part of a request is left out, and no name is
    guessed.
The tables below have names of other systems from a certain date; tests compare them with the real packages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anyaccel.arguments import shown
from anyaccel.device import Device
from anyaccel.errors import ConfigError
from anyaccel.suggestions import did_you_mean
from anyaccel_resources.allocation import is_device_of
from anyaccel_resources.entry import VENDORS, RequestEntry
from anyaccel_resources.inventory import InventoryDevice
from anyaccel_resources.products import Product, product_named, products


def refused(entry: RequestEntry, scheduler: str, why: str, available: str = "", hint: str = "") -> ConfigError:
    """Return the error for a scheduler that cannot express a request."""
    problem = f"{scheduler} cannot request {str(entry)!r}: {why}"
    return ConfigError(problem, available=available, hint=hint or "leave this alternative out of the exported request")


def _check_words(
    entry: RequestEntry,
    scheduler: str,
    understood: str,
    hints: Mapping[str, str],
    names: Mapping[str, str] | None = None,
) -> None:
    """Refuse a request with a part that a scheduler has no words for.

    Args:
        understood: The supported parts.
        hints: Replacements, by part.
        names: The supported products; by default all in the table.
    """
    if entry.kind == "cpu" and entry.count > 1:
        raise refused(entry, scheduler, "a machine has one CPU", hint="write 'cpu', and cores= for cores")
    has_form = _written(entry) != _written(replace(entry, form=""))
    parts = {
        "index": (entry.index is not None, "it numbers devices itself"),
        "every": (entry.every, "it takes a number of devices"),
        "form": (has_form, f"it does not distinguish the forms of {entry.product}"),
        "newer": (entry.newer, "it cannot request newer products"),
        "capabilities": (entry.capabilities, "it cannot request compute formats"),
        "sm": (entry.sm, "it cannot request compute capabilities"),
        "memory": (entry.memory_gb and not entry.product, "it does not compare memory"),
        "host": (entry.host_memory_gb or entry.cores, "memory and cores of the host are separate settings"),
        "nodes": (entry.nodes > 1, "the number of machines is a separate setting"),
        "price": (entry.price, "it has no price limit"),
    }
    for part, (is_asked, why) in parts.items():
        if is_asked and part not in understood.split():
            usual = {
                "index": "write 'any', or 'any:2' for two",
                "every": "write a number, such as ':8'",
                "form": f"write '{replace(entry, form='')}'",
                **dict.fromkeys(("capabilities", "sm", "memory", "newer"), "list the acceptable products"),
            }
            by_name = usual.get(part) == "list the acceptable products"
            available = ", ".join(_fitting(entry, names)) if by_name else ""
            raise refused(entry, scheduler, why, available, hints.get(part) or usual.get(part, ""))


def _fitting(entry: RequestEntry, names: Mapping[str, str] | None) -> list[str]:
    """Return the products, of those that a scheduler has, that an alternative asks for."""
    found = []
    for product in products():
        fits = {name: is_device_of(entry, _device(product, name, gb)) for name, gb, _ in product.drivers}
        if fits and all(fits.values()):
            found.append(product.name)
        else:
            sizes = {gb: [fits[name] for name, other, _ in product.drivers if other == gb] for gb in product.memory_gb}
            found += [f"{product.name}-{gb}GB" for gb, those in sizes.items() if those and all(those)]
    return [name for name in found if names is None or name in names]


def _device(product: Product, name: str, gb: int) -> InventoryDevice:
    return InventoryDevice(device=Device(product.kind), name=name, vendor=product.vendor, memory_gb=float(gb))


def _written(entry: RequestEntry) -> str:
    """Return the product of a request with the form, and the memory where the product is sold with several."""
    product = product_named(entry.product)
    only_size = product is not None and len(product.memory_gb) == 1
    size = "" if only_size or not entry.memory_gb else f"-{entry.memory_gb}GB"
    form = f"-{entry.form}" if entry.form and product is not None and len(product.forms) > 1 else ""
    return f"{entry.product}{form}{size}"


def _named(entry: RequestEntry, scheduler: str, names: Mapping[str, Any], why: str) -> Any:
    """Return a scheduler's name of the product of a request."""
    written = _written(entry)
    if written not in names:
        hint = f"write '{replace(entry, memory_gb=0, form='')}'" if entry.product in names else ""
        raise refused(entry, scheduler, why, ", ".join(names), hint)
    return names[written]


# -- the `gpu=` value of Modal, whose list of names is https://modal.com/docs/guide/gpu (read 2026-11-28) --------------


NAMES = (
    *("T4", "L4", "A10", "L40S", "A100", "A100-40GB", "A100-80GB"),
    *("RTX-PRO-6000", "H100", "H100!", "H200", "B200", "B200+"),
)
"""Values that the documentation lists; `any` is documented as well."""
# `H100` may be given as an H200, which has other memory; `H100!` is the H100 with 80 GB.
_MODAL = {name: name for name in NAMES if name[-1] not in "!+"} | {"H100-80GB": "H100!"}
_MOST = {"A10": 4}  # in one container; of others 8
_OTHERS = 8


def modal(entries: Sequence[RequestEntry], ordered: bool) -> str | list[str]:
    """Return the value of `gpu=`: text, or a list in order of preference.

    Raises:
        ConfigError: Modal does not offer it.
    """
    if len(entries) > 1 and not ordered:
        raise refused(entries[0], "Modal", "its list is in order of preference", hint="write a list instead of a set")
    values = [_value(entry) for entry in entries]
    return values[0] if len(values) == 1 else values


def _value(entry: RequestEntry) -> str:
    hints = {
        "host": "write memory= and cpu= next to gpu=",
        "nodes": f"write @modal.experimental.clustered(size={entry.nodes}) above the function",
    }
    newer = "newer" if entry.product == "B200" else ""
    _check_words(entry, "Modal", newer, hints, _MODAL)
    name = "any"
    if entry.product == "A10G":
        why = "its A10 is a different product"
        raise refused(entry, "Modal", why, hint=f"write '{replace(entry, product='A10')}' if either is acceptable")
    if entry.product:
        name = _named(entry, "Modal", _MODAL, "its documentation does not list it")
        name += "+" if entry.newer else "!" if entry.exact and name == "H100" else ""
    elif entry.kind not in ("", "gpu", "cuda"):
        raise refused(
            entry, "Modal", "its GPUs are NVIDIA's", f"{', '.join(NAMES)}, any", "write 'any' for one of these"
        )
    most = _MOST.get(name, _OTHERS)
    if entry.count > most:
        raise refused(entry, "Modal", f"a container can have at most {most} of them", hint=f"request {most} or fewer")
    return f"{name}:{entry.count}" if entry.count > 1 else name


# -- options of Ray's tasks and actors, as `@ray.remote(**options)` takes them -----------------------------------------


# What Ray 2.60.0 calls a node by its devices: constants of `ray.util.accelerators.accelerators` and, where there is
# none, what `NvidiaGPUAcceleratorManager` makes of the driver's name. Nodes get the labels with a size by hand.
RAY = {
    **{name: name for name in ("P100", "V100", "T4", "A100", "A30", "A10", "A10G", "A40", "L4", "L40", "L40S", "H100")},
    **{name: name for name in ("H20", "H200", "GH200", "B200", "GB200", "B300", "RTX-A6000", "RTX-PRO-6000")},
    **{f"RTX-{number}": f"GeForce-RTX-{number}" for number in (3090, 4090, 5090)},
    **{f"A100-{gb}GB": f"A100-{gb}G" for gb in (40, 80)},
    **{f"MI{number}X": f"AMD-Instinct-MI{number}X-OAM" for number in (300, 325, 350, 355)},
    **{name: name for name in ("TPU-V4", "TPU-V5P", "TPU-V6E")},
    "TPU-V5E": "TPU-V5LITEPOD",
}


def ray(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return `num_gpus`, `num_cpus`, `memory` in bytes, `resources` and `accelerator_type`.

    Raises:
        ConfigError: several alternatives, or one that Ray cannot express.
    """
    entry = entries[0]
    if len(entries) > 1:
        raise refused(entry, "Ray", "it takes one alternative", hint="export each alternative separately")
    hints = {
        "newer": f"write '{replace(entry, newer=False)}'",
        "nodes": "export the request without nodes=, as bundles of a placement group of the strategy STRICT_SPREAD",
        **dict.fromkeys(("memory", "capabilities", "sm"), "name a product"),
    }
    _check_words(entry, "Ray", "host", hints, RAY)
    product = product_named(entry.product)
    if not product and entry.kind not in ("", "gpu", "cpu", "tpu"):
        raise refused(entry, "Ray", "num_gpus counts GPUs of any vendor", hint="write 'gpu', or name a product")
    kind = product.kind if product else entry.kind
    options: dict[str, Any] = {"num_gpus": entry.count if kind in ("", "gpu") else 0}
    options |= {"num_cpus": entry.cores} if entry.cores else {}
    options |= {"memory": entry.host_memory_gb * 10**9} if entry.host_memory_gb else {}
    if kind == "tpu":
        options["resources"] = {"TPU": entry.count}
        if entry.count not in (1, 2, 4, 8):
            raise refused(entry, "Ray", "a machine has 1, 2, 4 or 8 TPUs", "1, 2, 4, 8", "request one of these numbers")
    if product:
        options["accelerator_type"] = _named(entry, "Ray", RAY, "it has no such accelerator type")
    return options


# -- the mapping below `resources:` of a task of SkyPilot -------------------------------------------------------------


# Names in its catalogue, schema v8 (`catalogs/v8/common/accelerators.csv` of skypilot-org/skypilot-catalog, read
# 2026-11-28), of SkyPilot 0.14.1. Its A100 has 40 GB and its V100 16 GB; its H100 has 80 or 94 GB, as the cloud has it.
SKYPILOT: Mapping[str, str] = {
    **{name: name for name in ("A10", "A10G", "A30", "A40", "B200", "GH200", "H100", "H200", "L4", "L40", "L40S")},
    **{name: name for name in ("MI300X", "P100", "T4", "A100", "A100-80GB", "V100", "V100-32GB")},
    **{name: name for name in ("H100-SXM", "H100-NVL", "H200-SXM")},
    **{f"RTX-{number}": f"RTX{number}" for number in (3090, 4090, 5090)},
    "RTX-A6000": "RTXA6000",
    "RTX-6000-Ada": "RTX6000-Ada",
    "A100-40GB": "A100",
    "A100-SXM-80GB": "A100-80GB-SXM",
    "V100-16GB": "V100",
    "H100-SXM-80GB": "H100-SXM",
    "H100-94GB": "H100-NVL",
    "H100-NVL-94GB": "H100-NVL",
}


def skypilot(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return the mapping below `resources:`.

    Raises:
        ConfigError: SkyPilot has no words for it.
    """
    resources = [_resources(entry) for entry in entries]
    if len(resources) == 1:
        return resources[0]
    if any(entry.memory_gb and not entry.product for entry in entries):
        # SkyPilot reads memory sizes in `accelerators` alone, and not in the items of `ordered` and `any_of`.
        wishes = [resource.pop("accelerators", "") for resource in resources]
        if any(resource != resources[0] for resource in resources) or not all(wishes):
            why = "a memory size and another alternative differ in more than the accelerator"
            raise refused(entries[0], "SkyPilot", why, hint="export each alternative separately")
        counts = dict(wish.rsplit(":", 1) for wish in wishes)
        unordered = {name: int(count) for name, count in counts.items()}
        return {"accelerators": wishes if ordered else unordered, **resources[0]}
    return {"ordered" if ordered else "any_of": resources}


def _resources(entry: RequestEntry) -> dict[str, Any]:
    hints = {
        "nodes": f"write num_nodes: {entry.nodes} next to resources:",
    }
    _check_words(entry, "SkyPilot", f"memory host price {'form' * (_written(entry) in SKYPILOT)}", hints, SKYPILOT)
    host: dict[str, Any] = {"memory": f"{entry.host_memory_gb}+"} if entry.host_memory_gb else {}
    host |= {"cpus": f"{entry.cores}+"} if entry.cores else {}
    host |= {"max_hourly_cost": entry.price} if entry.price else {}
    if entry.kind == "cpu" and not entry.memory_gb and entry.count == 1:
        return {**({} if entry.cores or entry.host_memory_gb else {"cpus": "1+"}), **host}
    product = product_named(entry.product)
    if product is not None and product.kind == "tpu":
        why = "its TPU names contain the size of the slice, such as tpu-v6e-8"
        raise refused(
            entry, "SkyPilot", why, hint="write accelerators: tpu-v6e-8 yourself, with the size that you need"
        )
    if product is not None:
        why = f"it is not in its catalogue{' with this memory' if entry.memory_gb else ''}"
        accelerators = f"{_named(entry, 'SkyPilot', SKYPILOT, why)}:{entry.count}"
    else:
        if not entry.memory_gb or entry.kind not in ("", "cuda", "rocm"):
            word = f"{entry.vendor}:16GB+" if entry.vendor in VENDORS else "16GB+"
            raise refused(
                entry, "SkyPilot", "it takes products and memory sizes", hint=f"write '{word}' for any accelerator"
            )
        accelerators = f"{f'{entry.vendor}:' if entry.vendor else ''}{entry.memory_gb}GB+:{entry.count}"
    return {"accelerators": accelerators, **host}


# -- options of Slurm's `sbatch` and `srun`; types of GPUs and features of nodes are named by each site ----------------


def slurm(entries: Sequence[RequestEntry], ordered: bool) -> list[str]:
    """Return the options. A set of products of one count is a constraint on the features of nodes.

    Raises:
        ConfigError: alternatives that differ in more than the product, or that Slurm cannot express.
    """
    first, several = entries[0], len(entries) > 1
    for entry in entries:
        bare = replace(entry, memory_gb=0, form="")
        by_hand = f"write '{bare}', and add your site's name for it yourself (sinfo -o '%G %f' lists them)"
        hints = {"index": "write 'gpu', or 'gpu:any:2' for two", "form": by_hand}
        _check_words(entry, "Slurm", "host nodes", hints)
        product = product_named(entry.product)
        if entry.kind not in ("", "gpu", "cpu") or (product is not None and product.kind != "gpu"):
            raise refused(
                entry, "Slurm", "each site names its GPUs, but no vendors", hint="write 'gpu', or name a product"
            )
        if _written(entry) != entry.product:
            raise refused(entry, "Slurm", "each site defines its own sizes", hint=by_hand)
        alike = replace(entry, product="", exact=False) == replace(first, product="", exact=False)
        if several and entry.nodes > 1:  # sbatch --test-only of Slurm 22.05 mixes them, with [h100|a100] too
            raise refused(
                entry, "Slurm", "its machines may have several products", hint="export each alternative separately"
            )
        if several and not (entry.product and alike):
            raise refused(
                entry, "Slurm", "alternatives must have the same count", hint="export each alternative separately"
            )
    if len(entries) > 1 and ordered:
        products_ = ", ".join(map(str, entries))
        why = "a constraint has no order of preference"
        raise refused(first, "Slurm", why, hint=f"write '{{{products_}}}' if all of them are equally acceptable")
    nodes = [f"--nodes={first.nodes}"]
    # A gigabyte is 2**30 bytes to Slurm, and a megabyte the least that it counts.
    host = [f"--mem={math.ceil(first.host_memory_gb * 10**9 / 2**20)}M"] if first.host_memory_gb else []
    host += [f"--cpus-per-task={first.cores}"] if first.cores else []
    if first.kind == "cpu":
        return [*nodes, *(host or ["--cpus-per-task=1"])]
    if len(entries) == 1:
        kind = f"{_feature(first)}:" if first.product else ""
        return [*nodes, f"--gpus-per-node={kind}{first.count}", *host]
    return [*nodes, f"--gpus-per-node={first.count}", f"--constraint={'|'.join(map(_feature, entries))}", *host]


def _feature(entry: RequestEntry) -> str:
    return entry.product.lower().replace("-", "_")


# -- requests for Kubernetes: limits and labels of nodes for a pod, and a claim of dynamic resource allocation ---------


_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}
_CLASSES = {"nvidia": "gpu.nvidia.com", "amd": "gpu.amd.com"}
_TYPES = {"nvidia": "gpu", "amd": "amdgpu"}  # of whole devices


def _vendor(entry: RequestEntry) -> str:
    """Return the vendor whose devices are asked for: Kubernetes counts them by vendor."""
    product = product_named(entry.product)
    vendor = product.vendor if product else entry.vendor or ("nvidia" if entry.sm else "")
    if product is not None and vendor not in _RESOURCES:
        why, hint = "its nodes with TPUs have topologies", "request google.com/tpu and a topology yourself"
        raise refused(entry, "Kubernetes", why, hint=hint)
    if entry.sm and vendor == "amd":
        raise refused(entry, "Kubernetes", "devices of AMD have no compute capability", hint="leave sm>= out")
    if vendor not in _RESOURCES:
        what = f"{entry.memory_gb}GB+" if entry.memory_gb else "any"
        hint = f"write 'nvidia:{what}' or 'amd:{what}'" if entry.memory_gb else "write 'cuda' or 'rocm'"
        raise refused(entry, "Kubernetes", "it counts GPUs of one vendor only", "nvidia.com/gpu, amd.com/gpu", hint)
    return vendor


def _drivers(vendor: str, fits: Callable[[InventoryDevice], bool]) -> list[str]:
    """Return the names that drivers report for the products of a vendor that fit."""
    return [
        name
        for product in products()
        if product.vendor == vendor
        for name, gb, _ in product.drivers
        if fits(_device(product, name, gb))
    ]


def _names(entry: RequestEntry, vendor: str) -> list[str]:
    """Return the drivers' names of all devices in the table of products that an alternative asks for."""
    names = _drivers(vendor, lambda device: is_device_of(entry, device))
    if not names:
        why = "no driver name in the product table belongs to such a device"
        raise refused(entry, "Kubernetes", why, hint="request less, or another product")
    return names


def _in_labels(name: str, vendor: str) -> str:
    """Return a driver's name as the labels of nodes, and the attributes of AMD's devices, have it."""
    return name.replace(" ", "_" if vendor == "amd" else "-")


def kubernetes(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return `resources` of a container, and `nodeSelector` of its pod or, for several labels, `affinity`.

    The labels come from NVIDIA's feature discovery and AMD's node labeller.

    Raises:
        ConfigError: several alternatives, or one that labels of nodes cannot express.
    """
    entry = entries[0]
    where = "a Kubernetes node selector"
    if len(entries) > 1:
        hint = "export a claim, which takes alternatives: --export dra"
        raise refused(entry, where, "it takes one alternative", hint=hint)
    hints = {
        "index": f"write '{replace(entry, index=None, more=())}'",
        "nodes": f"write completions: {entry.nodes} and parallelism: {entry.nodes} in a Job",
    }
    _check_words(entry, where, "host" if entry.kind == "cpu" else "form newer capabilities sm memory host", hints)
    limits: dict[str, Any] = {}
    pod: dict[str, Any] = {"nodeSelector": {}}
    if entry.kind != "cpu":
        vendor = _vendor(entry)
        limits[_RESOURCES[vendor]] = entry.count
        pod = _on_nodes(_terms(entry, vendor), _LABELS[vendor])
    limits |= {"cpu": entry.cores} if entry.cores else {}
    limits |= {"memory": f"{entry.host_memory_gb}G"} if entry.host_memory_gb else {}
    return {"resources": {"limits": limits}, **pod}


def _terms(entry: RequestEntry, vendor: str) -> list[list[dict[str, Any]]]:
    """Return the conditions on labels of nodes: one of the lists, and all in it."""
    label = _LABELS[vendor]
    if vendor == "amd" and entry.memory_gb and not entry.product:
        why = "AMD's labels have no number to compare memory with"
        raise refused(entry, "a Kubernetes node selector", why, hint="export a claim: --export dra")
    if not (entry.product or entry.capabilities or entry.memory_gb):
        return _compute_capability(entry.sm) if entry.sm else []
    terms = [[_label(label, "In", [_in_labels(name, vendor) for name in _names(entry, vendor)])]]
    if entry.memory_gb and not entry.product and not entry.capabilities:
        # Devices that the table does not have count with the memory in their label, in 2**20 bytes.
        others = [_in_labels(name, vendor) for name in _drivers(vendor, lambda device: True)]
        at_least = [
            _label(label, "NotIn", others),
            _label("nvidia.com/gpu.memory", "Gt", [str(math.ceil(entry.memory_gb * 10**9 / 2**20) - 1)]),
            _label("nvidia.com/gpu.sharing-strategy", "NotIn", ["time-slicing", "mps"]),
        ]
        terms += [[*at_least, *newer] for newer in (_compute_capability(entry.sm) if entry.sm else [[]])]
    return terms


def _compute_capability(sm: int) -> list[list[dict[str, Any]]]:
    major, minor = (f"nvidia.com/gpu.compute.{part}" for part in ("major", "minor"))
    newer = [_label(major, "Gt", [str(sm // 10)])]
    return [newer, [_label(major, "In", [str(sm // 10)]), _label(minor, "Gt", [str(sm % 10 - 1)])]]


def _label(key: str, operator: str, values: list[str]) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": values}


def _on_nodes(terms: list[list[dict[str, Any]]], label: str) -> dict[str, Any]:
    match terms:
        case []:
            return {"nodeSelector": {}}
        case [[{"operator": "In", "values": [name]}]]:
            return {"nodeSelector": {label: name}}
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


# Labels `cloud.google.com/gke-accelerator` of nodes of Google's clusters, and the device of each (read 2026-11-28).
GKE = {
    "nvidia-tesla-p100": "Tesla P100-PCIE-16GB",
    "nvidia-tesla-v100": "Tesla V100-SXM2-16GB",
    "nvidia-tesla-t4": "Tesla T4",
    "nvidia-tesla-a100": "NVIDIA A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA A100-SXM4-80GB",
    "nvidia-l4": "NVIDIA L4",
    "nvidia-h100-80gb": "NVIDIA H100 80GB HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA H100 80GB HBM3",
    "nvidia-h200-141gb": "NVIDIA H200",
    "nvidia-b200": "NVIDIA B200",
    "nvidia-gb200": "NVIDIA GB200",
    "nvidia-rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
# Labels of nodes with TPUs, and the topology of those of one machine by their number.
GKE_TPU: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "TPU-V5E": ("tpu-v5-lite-podslice", {1: "1x1", 4: "2x2", 8: "2x4"}),
    "TPU-V5P": ("tpu-v5p-slice", {4: "2x2x1"}),
    "TPU-V6E": ("tpu-v6e-slice", {1: "1x1", 4: "2x2", 8: "2x4"}),
}


def gke(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return what `kubernetes` returns, with the labels of Google's clusters, whose GPUs are NVIDIA's.

    Raises:
        ConfigError: several alternatives, or a device that these clusters do not have.
    """
    entry = entries[0]
    if len(entries) > 1:
        raise refused(entry, "GKE", "a node selector takes one alternative", hint="export each alternative separately")
    hints = {
        "index": f"write '{replace(entry, index=None, more=())}'",
        "nodes": f"write completions: {entry.nodes} and parallelism: {entry.nodes} in a Job",
    }
    _check_words(entry, "GKE", "host" if entry.kind == "cpu" else "form newer capabilities sm memory host", hints)
    host: dict[str, Any] = {"cpu": entry.cores} if entry.cores else {}
    host |= {"memory": f"{entry.host_memory_gb}G"} if entry.host_memory_gb else {}
    if entry.kind == "cpu":
        return {"resources": {"limits": host}, "nodeSelector": {}}
    product = product_named(entry.product)
    if product is not None and product.kind == "tpu":
        label, topologies = GKE_TPU.get(product.name, ("", {}))
        if entry.count not in topologies:
            numbers = ", ".join(f"{name}:{number}" for name, (_, those) in GKE_TPU.items() for number in those)
            raise refused(entry, "GKE", "no machine has that many of them", numbers, "use one of these")
        nodes = {
            "cloud.google.com/gke-tpu-accelerator": label,
            "cloud.google.com/gke-tpu-topology": topologies[entry.count],
        }
        return {"resources": {"limits": {"google.com/tpu": entry.count, **host}}, "nodeSelector": nodes}
    names = _drivers("nvidia", lambda device: is_device_of(entry, device))
    labels = [label for label, name in GKE.items() if name in names]
    if not labels:
        raise refused(entry, "GKE", "no node of it has such a device", ", ".join(GKE), "request one of these")
    is_any = len(labels) == len(GKE) and not entry.sm and not entry.memory_gb
    terms = [] if is_any else [[_label("cloud.google.com/gke-accelerator", "In", labels)]]
    pod = _on_nodes(terms, "cloud.google.com/gke-accelerator")
    return {"resources": {"limits": {"nvidia.com/gpu": entry.count, **host}}, **pod}


def resource_claim(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return a ResourceClaim of `resource.k8s.io/v1`; several alternatives are a prioritized list.

    Raises:
        ConfigError: an alternative that selectors cannot express.
    """
    if len(entries) == 1:
        request: dict[str, Any] = {"name": "accelerators", "exactly": _devices(entries[0])}
    else:
        if not ordered:
            raise refused(entries[0], "a ResourceClaim", "its list is in order of preference", hint="write a list")
        if len(entries) > 8:
            raise refused(entries[8], "a ResourceClaim", "its list has at most 8 alternatives", hint="request fewer")
        alternatives = [{"name": f"wish-{place}", **_devices(entry)} for place, entry in enumerate(entries)]
        request = {"name": "accelerators", "firstAvailable": alternatives}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "accelerators"},
        "spec": {"devices": {"requests": [request]}},
    }


def _devices(entry: RequestEntry) -> dict[str, Any]:
    hints = {
        "host": "set memory and cores in the pod's limits",
        "index": f"write '{replace(entry, index=None, more=())}'",
        "nodes": f"write completions: {entry.nodes} and parallelism: {entry.nodes} in a Job",
    }
    _check_words(entry, "a ResourceClaim", "form newer capabilities sm memory", hints)
    vendor = _vendor(entry)
    if entry.count > 32:
        raise refused(entry, "a ResourceClaim", "it allocates at most 32 devices", hint="request 32 or fewer")
    attributes, capacity = (f"device.{what}['{_CLASSES[vendor]}']" for what in ("attributes", "capacity"))
    terms = [f"{attributes}.type == '{_TYPES[vendor]}'"]
    newer = f"{attributes}.cudaComputeCapability.compareTo(semver('{entry.sm // 10}.{entry.sm % 10}.0')) >= 0"
    if entry.product or entry.capabilities or entry.memory_gb:
        in_table = f"{attributes}.productName in {_quoted(_names(entry, vendor), vendor)}"
        if entry.memory_gb and not entry.product and not entry.capabilities:
            # Devices that the table does not have count with the memory that they report.
            others = _quoted(_drivers(vendor, lambda device: True), vendor)
            at_least = f"{capacity}.memory.compareTo(quantity('{entry.memory_gb}G')) >= 0"
            unknown = f"!({attributes}.productName in {others}) && {at_least}"
            in_table = f"({in_table} || ({unknown}{f' && {newer}' if entry.sm else ''}))"
        terms.append(in_table)
    elif entry.sm:
        terms.append(newer)
    return {
        "deviceClassName": _CLASSES[vendor],
        "allocationMode": "ExactCount",
        "count": entry.count,
        "selectors": [{"cel": {"expression": " && ".join(terms)}}],
    }


def _quoted(names: Iterable[str], vendor: str) -> str:
    return f"[{', '.join(repr(_in_labels(name, vendor) if vendor == 'amd' else name) for name in names)}]"


# -- the formats by name -----------------------------------------------------------------------------------------------


FORMATS: Mapping[str, Callable[[Sequence[RequestEntry], bool], Any]] = {
    "modal": modal,
    "skypilot": skypilot,
    "ray": ray,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "gke": gke,
    "dra": resource_claim,
}


def export(entries: Sequence[RequestEntry], ordered: bool, to: str) -> Any:
    """Return alternatives in the format of a scheduler.

    Raises:
        ConfigError: an unknown format, or an alternative that the scheduler cannot express.
    """
    if not isinstance(to, str) or to not in FORMATS:
        hint = did_you_mean(to if isinstance(to, str) else "", FORMATS, "use one of these")
        raise ConfigError(f"{shown(to)} is not a format of requests", available=", ".join(FORMATS), hint=hint)
    return FORMATS[to](entries, ordered)
