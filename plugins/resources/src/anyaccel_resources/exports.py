"""Exports: requests as Modal, Ray, SkyPilot, Slurm and Kubernetes write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.suggestions import did_you_mean
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.products import product_named


def refused(entry: RequestEntry, scheduler: str, why: str, available: str = "", hint: str = "") -> ConfigError:
    """Return the error for a scheduler that cannot express a request."""
    problem = f"{scheduler} cannot be asked for {str(entry)!r}: {why}"
    return ConfigError(problem, available=available, hint=hint or "leave this wish out of the request that is exported")


# -- the `gpu=` value of Modal, whose list of names is https://modal.com/docs/guide/gpu (read 2026-11-25) --------------


NAMES = (
    *("T4", "L4", "A10", "L40S", "A100", "A100-40GB", "A100-80GB"),
    *("RTX-PRO-6000", "H100", "H100!", "H200", "B200", "B200+"),
)
"""Values that the documentation lists; `any` is documented as well."""
_ANOTHER_NAME = {"A10G": "A10"}
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
    if entry.capabilities or entry.host_memory_gb or entry.cores:
        why = "gpu= takes a product and a count; memory and cores are settings of their own"
        raise refused(entry, "Modal", why, hint="write memory= and cpu= beside gpu=")
    name = _name(entry)
    most = _MOST.get(name, _OTHERS)
    if entry.count > most:
        raise refused(entry, "Modal", f"a container has at most {most} of them", hint=f"ask for {most} or fewer")
    return f"{name}:{entry.count}" if entry.count > 1 else name


def _name(entry: RequestEntry) -> str:
    if entry.kind in ("gpu", "cuda") and entry.index is None:
        return "any"
    if not entry.kind and not entry.product and not entry.memory_gb:
        return "any"
    product = _ANOTHER_NAME.get(entry.product, entry.product)
    size = f"-{entry.memory_gb}GB" if entry.memory_gb else ""
    mark = "!" if entry.exact else "+" if entry.newer else ""
    exactly_so = {f"{product}{size}{mark}", f"{product}{mark}"} if product != "A100" else {f"{product}{size}{mark}"}
    if entry.exact and product != "H100":
        exactly_so.add(f"{product}{size}")  # nothing but H100 and B200 is upgraded
    name = next((name for name in NAMES if name in exactly_so and product), None)
    if name is None:
        raise refused(entry, "Modal", "its documentation does not list it", available=f"{', '.join(NAMES)}, any")
    return name


# -- options of Ray's tasks and actors, as `@ray.remote(**options)` takes them -----------------------------------------


_TYPES = ("P100", "V100", "T4", "L4", "A10G", "A100", "H100")
"""Products that `ray.util.accelerators` has constants of, which are their names."""


def ray(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return `num_gpus`, `num_cpus`, `memory` in bytes, and `accelerator_type`.

    Raises:
        ConfigError: several alternatives, or one that Ray cannot express.
    """
    entry = entries[0]
    if len(entries) > 1:
        raise refused(entry, "Ray", "it takes one wish", hint="export each wish of its own")
    options: dict[str, Any] = {"num_gpus": 0 if entry.kind == "cpu" else entry.count}
    options |= {"num_cpus": entry.cores} if entry.cores else {}
    options |= {"memory": entry.host_memory_gb * 10**9} if entry.host_memory_gb else {}
    if entry.product:
        if entry.newer or entry.exact or entry.capabilities or entry.memory_gb:
            raise refused(entry, "Ray", "a product is all that it takes", hint=f"write '{entry.product}:{entry.count}'")
        if entry.product not in _TYPES:
            raise refused(entry, "Ray", "it has no such accelerator type", available=", ".join(_TYPES))
        options["accelerator_type"] = entry.product
    elif entry.memory_gb or entry.capabilities or entry.kind not in ("", "gpu", "cuda", "rocm", "cpu"):
        raise refused(entry, "Ray", "it takes products and numbers of GPUs", hint="name a product")
    return options


# -- skypilot ----------------------------------------------------------------------------------------------------------


def skypilot(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return the mapping below `resources:`.

    Raises:
        ConfigError: SkyPilot has no words for it.
    """
    each = [_resources(entry) for entry in entries]
    if len(each) == 1:
        return each[0]
    return {"ordered" if ordered else "any_of": each}


def _resources(entry: RequestEntry) -> dict[str, Any]:
    host: dict[str, Any] = {"memory": f"{entry.host_memory_gb}+"} if entry.host_memory_gb else {}
    host |= {"cpus": f"{entry.cores}+"} if entry.cores else {}
    if entry.kind == "cpu":
        return host or {"cpus": "1+"}
    return {"accelerators": _accelerators(entry), **host}


def _accelerators(entry: RequestEntry) -> str:
    if entry.capabilities or entry.exact or entry.newer:
        raise refused(entry, "SkyPilot", "it takes products and memory sizes", hint="name the products that will do")
    if entry.product:
        size = f"-{entry.memory_gb}GB" if entry.product == "A100" and entry.memory_gb == 80 else ""
        return f"{entry.product}{size}:{entry.count}"
    if entry.memory_gb:
        return f"{entry.memory_gb}GB+:{entry.count}"
    raise refused(entry, "SkyPilot", "it takes products and memory sizes", hint="write '16GB+' for any accelerator")


# -- options of Slurm's `sbatch` and `srun`; types of GPUs and features of nodes are named by each site ----------------


def slurm(entries: Sequence[RequestEntry], ordered: bool) -> list[str]:
    """Return the options. Several products of one count are a constraint on the features of nodes.

    Raises:
        ConfigError: alternatives that differ in more than the product, or that Slurm cannot express.
    """
    first = entries[0]
    for entry in entries:
        _check(entry, first, len(entries) > 1)
    host = [f"--mem={first.host_memory_gb}G"] if first.host_memory_gb else []
    host += [f"--cpus-per-task={first.cores}"] if first.cores else []
    if first.kind == "cpu":
        return host or ["--cpus-per-task=1"]
    if len(entries) == 1:
        kind = f"{_feature(first)}:" if first.product else ""
        constraint = [f"--constraint={_feature(first)}{first.memory_gb}gb"] if first.memory_gb else []
        return [f"--gpus={kind}{first.count}", *constraint, *host]
    return [f"--gpus={first.count}", f"--constraint={'|'.join(map(_feature, entries))}", *host]


def _feature(entry: RequestEntry) -> str:
    return entry.product.lower().replace("-", "_")


def _check(entry: RequestEntry, first: RequestEntry, several: bool) -> None:
    if entry.kind not in ("", "gpu", "cuda", "rocm", "cpu") or entry.index is not None:
        raise refused(entry, "Slurm", "it gives GPUs, and numbers them itself", hint="write 'gpu'")
    if entry.capabilities or entry.newer or (entry.memory_gb and not entry.product):
        raise refused(entry, "Slurm", "it knows names of products alone", hint="name the products that will do")
    alike = (entry.count, entry.host_memory_gb, entry.cores) == (first.count, first.host_memory_gb, first.cores)
    if several and not (entry.product and alike):
        raise refused(entry, "Slurm", "alternatives are products of one count", hint="export each wish of its own")


# -- A request for Kubernetes: limits and a node selector of a pod, and a claim of dynamic resource allocation ---------


_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
# The label `nvidia.com/gpu.product` of NVIDIA's feature discovery has the driver's name of the product.
_LABELS = {
    "P100": "Tesla-P100-SXM2-16GB",
    "V100-16GB": "Tesla-V100-SXM2-16GB",
    "V100-32GB": "Tesla-V100-SXM2-32GB",
    "T4": "Tesla-T4",
    "A100-40GB": "NVIDIA-A100-SXM4-40GB",
    "A100-80GB": "NVIDIA-A100-SXM4-80GB",
    "A10": "NVIDIA-A10",
    "A10G": "NVIDIA-A10G",
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
    "H100-80GB": "NVIDIA-H100-80GB-HBM3",
    "H200": "NVIDIA-H200",
    "B200": "NVIDIA-B200",
}
_CLASSES = {"nvidia": "gpu.nvidia.com", "amd": "gpu.amd.com"}


def kubernetes(entries: Sequence[RequestEntry], ordered: bool) -> dict[str, Any]:
    """Return `resources` of a container and `nodeSelector` of its pod.

    Raises:
        ConfigError: several alternatives, or one that a node selector cannot express.
    """
    entry = entries[0]
    if len(entries) > 1:
        hint = "export a claim, which takes alternatives: --export dra"
        raise refused(entry, "a Kubernetes node selector", "it takes one wish", hint=hint)
    if entry.newer or entry.capabilities or (entry.memory_gb and not entry.product):
        why = "it compares labels for equality"
        raise refused(entry, "a Kubernetes node selector", why, hint="export a claim: --export dra")
    limits: dict[str, Any] = {}
    if entry.kind != "cpu":
        limits[_RESOURCES[_vendor(entry)]] = entry.count
    limits |= {"cpu": entry.cores} if entry.cores else {}
    limits |= {"memory": f"{entry.host_memory_gb}G"} if entry.host_memory_gb else {}
    selector = {"nvidia.com/gpu.product": _label(entry)} if entry.product else {}
    return {"resources": {"limits": limits}, "nodeSelector": selector}


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
        each = [{"name": f"wish-{place}", **_devices(entry)} for place, entry in enumerate(entries)]
        request = {"name": "accelerators", "firstAvailable": each}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "accelerators"},
        "spec": {"devices": {"requests": [request]}},
    }


def _vendor(entry: RequestEntry) -> str:
    product = product_named(entry.product)
    if entry.kind not in ("", "gpu", "cuda", "rocm") or entry.index is not None:
        raise refused(entry, "Kubernetes", "it gives GPUs, and numbers them itself", hint="write 'gpu'")
    return product.vendor if product else entry.vendor or "nvidia"


def _label(entry: RequestEntry) -> str:
    product = product_named(entry.product)
    sizes = product.memory_gb if product else ()
    size = entry.memory_gb or (sizes[0] if len(sizes) == 1 else 0)
    label = _LABELS.get(f"{entry.product}-{size}GB") or _LABELS.get(entry.product)
    if label is None:
        hint = f"write the memory, too: '{entry.product}-{sizes[0]}GB'" if len(sizes) > 1 else "export a claim"
        raise refused(entry, "a Kubernetes node selector", "its label is not known", ", ".join(_LABELS), hint)
    return label


def _devices(entry: RequestEntry) -> dict[str, Any]:
    if entry.capabilities or entry.newer or entry.host_memory_gb or entry.cores:
        why = "its selectors here have products and memory"
        raise refused(entry, "a ResourceClaim", why, hint="ask for memory and cores in the pod's limits")
    name = _CLASSES[_vendor(entry)]
    terms = [f"device.attributes['{name}'].productName.lowerAscii().contains('{entry.product.lower()}')"]
    terms = terms if entry.product else []
    if entry.memory_gb:
        # Drivers report a little less or more than makers state.
        terms.append(f"device.capacity['{name}'].memory.compareTo(quantity('{round(entry.memory_gb * 0.9)}G')) >= 0")
    devices: dict[str, Any] = {"deviceClassName": name, "allocationMode": "ExactCount", "count": entry.count}
    if terms:
        devices["selectors"] = [{"cel": {"expression": " && ".join(terms)}}]
    return devices


# -- the formats by name -----------------------------------------------------------------------------------------------


FORMATS: Mapping[str, Callable[[Sequence[RequestEntry], bool], Any]] = {
    "modal": modal,
    "skypilot": skypilot,
    "ray": ray,
    "slurm": slurm,
    "kubernetes": kubernetes,
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
