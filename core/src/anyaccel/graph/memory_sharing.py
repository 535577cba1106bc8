"""Devices that several frameworks of one graph use: each is told that it is not alone, before it takes memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from anyaccel.backend import Backend, Memory
from anyaccel.device import Device
from anyaccel.errors import MemoryShareError
from anyaccel.graph.plan import Plan
from anyaccel.registry import Registry


def announce(frameworks: Iterable[str], found: Registry) -> None:
    """LogEvent the frameworks of a graph that is being built of each other, wherever they might meet.

    Frameworks take memory when they are first used, and building a graph uses them; where its nodes go is not known
    yet. What cannot be granted is no error before it matters.
    """
    names = set(frameworks)
    served: dict[Device, list[Backend]] = {}
    for backend in found.backends if len(names) > 1 else ():
        if backend.framework in names and isinstance(backend, Memory):
            for device in (one for one in backend.devices() if one.kind != "cpu"):
                served.setdefault(device, []).append(backend)
    for device, backends in served.items():
        if len({backend.framework for backend in backends}) > 1:
            for backend in backends:
                _share(backend, device, len(backends))


def share(plan: Plan, found: Registry) -> None:
    """LogEvent the frameworks of a plan that share a device; called before anything is placed.

    Raises:
        MemoryShareError: one took the memory of the device before it was told, and says what to do.
    """
    users = {(one.framework, one.device) for one in plan.assignments if one.device.kind != "cpu"}
    backends = {user: found.serving(*user) for user in users}
    for (framework, device), count in sorted(_shared(backends).items(), key=str):
        refusal = _share(backends[framework, device], device, count)
        if refusal:
            others = sorted({name for name, _ in users} - {framework})
            raise MemoryShareError(
                f"phase {plan.phase!r} uses {device} from {framework} and from {', '.join(others)}: {refusal}"
            )


def _shared(backends: Mapping[tuple[str, Device], Backend]) -> dict[tuple[str, Device], int]:
    """How many frameworks use each device that more than one uses."""
    found: dict[tuple[str, Device], set[str]] = {}
    for one, other in _pairs(backends):
        if one[0] != other[0] and _same(backends[one], one[1], backends[other], other[1]):
            for user in (one, other):
                found.setdefault(user, set()).update((one[0], other[0]))
    return {user: len(names) for user, names in found.items()}


def _pairs(backends: Mapping[tuple[str, Device], Backend]) -> Iterator[tuple[tuple[str, Device], tuple[str, Device]]]:
    return combinations(sorted(backends, key=str), 2)


def _same(one: Backend, device: Device, other: Backend, there: Device) -> bool:
    """Whether two devices are one: by identity where both have one, else by kind and index."""
    mine, its = one.device_info(device).identity, other.device_info(there).identity
    return mine == its if mine and its else device == there


def _share(backend: Backend, device: Device, count: int) -> str:
    return backend.share(device, 1 / count) if isinstance(backend, Memory) else ""
