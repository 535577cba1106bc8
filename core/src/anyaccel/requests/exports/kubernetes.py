"""A request for Kubernetes: limits and a node selector of a pod, and a claim of dynamic resource allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.refusal import refused
from anyaccel.requests.products import product_named

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
    """`resources` of a container and `nodeSelector` of its pod.

    Raises:
        ConfigError: several wishes, or one that a node selector cannot say.
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
    """A ResourceClaim of `resource.k8s.io/v1`; several wishes are a prioritized list.

    Raises:
        ConfigError: a wish that selectors cannot say.
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
