"""Options of Slurm's `sbatch` and `srun`; types of GPUs and features of nodes are named by each site."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.refusal import refused


def slurm(entries: Sequence[RequestEntry], ordered: bool) -> list[str]:
    """The options. Several products of one count are a constraint on the features of nodes.

    Raises:
        ConfigError: wishes that differ in more than the product, or that Slurm has no words for.
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
