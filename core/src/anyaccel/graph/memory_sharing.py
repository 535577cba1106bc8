"""Memory sharing: frameworks of one graph that use the same device are told to leave memory to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from anyaccel.backend import Backend, Memory
from anyaccel.device import Device
from anyaccel.errors import MemoryShareError
from anyaccel.graph.plan import Plan
from anyaccel.registry import Registry, registry

User = tuple[str, Device]
"""A framework and a device that it uses."""


def share_while_building(frameworks: Iterable[str], registry: Registry) -> None:
    """Make the frameworks of a graph that is being built share every device that several of them could use.

    Building uses the frameworks, which then reserve memory, before devices are assigned. A refusal is ignored here; it
    is an error in `share` if it matters.
    """
    names = set(frameworks)
    users: dict[Device, list[Backend]] = {}
    for backend in registry.backends if len(names) > 1 else ():
        if backend.framework in names and backend.capability(Memory) is not None:
            for device in (device for device in registry.ask(backend, "devices") if device.kind != "cpu"):
                users.setdefault(device, []).append(backend)
    for device, backends in users.items():
        if len({backend.framework for backend in backends}) > 1:
            for backend in backends:
                _share(backend, device, len(backends))


def share(plan: Plan) -> None:
    """Make the frameworks of a plan share their common devices; called before anything is placed.

    Raises:
        MemoryShareError: a framework reserved the memory of a device before; has that framework's hint.
    """
    backends: dict[User, Backend] = {
        (assignment.framework, assignment.device): assignment.backend
        for assignment in plan.assignments
        if assignment.device.kind != "cpu"
    }
    for (framework, device), others in sorted(_shared(backends).items(), key=str):
        refusal = _share(backends[framework, device], device, len(others) + 1)
        if refusal:
            raise MemoryShareError(
                f"phase {plan.phase!r} uses {device} from {framework} and from {', '.join(sorted(others))}: {refusal}"
            )


def _shared(backends: Mapping[User, Backend]) -> dict[User, set[str]]:
    """For each device of a framework that others use too: the other frameworks."""
    shared: dict[User, set[str]] = {}
    for first, second in combinations(sorted(backends, key=str), 2):
        if first[0] != second[0] and _is_same(backends[first], first[1], backends[second], second[1]):
            shared.setdefault(first, set()).add(second[0])
            shared.setdefault(second, set()).add(first[0])
    return shared


def _is_same(first: Backend, device: Device, second: Backend, other: Device) -> bool:
    """Whether two devices are one: by identity if both have one, else by kind and index."""
    ask = registry().ask
    identities = ask(first, "device_info", device).identity, ask(second, "device_info", other).identity
    return identities[0] == identities[1] if all(identities) else device == other


def _share(backend: Backend, device: Device, count: int) -> str:
    memory = backend.capability(Memory)
    return "" if memory is None else memory.share(device, 1 / count)
