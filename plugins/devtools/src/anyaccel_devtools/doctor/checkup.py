"""Checkup: all checks of a machine: of the system, of the plugins, and those that backends add."""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from anyaccel.backend import Backend
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.install_hints import install_line
from anyaccel.machine import Machine, SystemDevice
from anyaccel.plugin_loader import BUILT_IN, Plugin
from anyaccel.suggestions import did_you_mean
from anyaccel_devtools.doctor.check import Check

_PREFIX = "ANYACCEL_"
VARIABLES = ("ANYACCEL_DEVICE", "ANYACCEL_PLUGINS", "ANYACCEL_REPLICA_TIMEOUT", "ANYACCEL_SIMULATE")
"""What core reads; a variable of a plugin has the plugin's name, or that of its framework, after the prefix."""


def check_machine(machine: Machine, plugins: Sequence[Plugin]) -> list[Check]:
    """Return all checks that need no framework, for these facts and these loaded plugins."""
    of_plugins = [check for plugin in plugins for check in plugin_checks(machine, plugin)]
    return [*system_checks(machine), *_variables(machine, plugins), *of_plugins]


def _variables(machine: Machine, plugins: Sequence[Plugin]) -> Iterator[Check]:
    """Yield checks of environment variables that begin like anyaccel's and that nothing reads: a typo has no effect."""
    names = {plugin.name for plugin in plugins} | {it.framework for plugin in plugins for it in plugin.backends}
    of_plugins = tuple(f"{_PREFIX}{re.sub('[^A-Z0-9]', '_', name.upper())}" for name in names - {BUILT_IN})
    for name, value in machine.environment.items():
        if name.startswith(_PREFIX) and name not in VARIABLES and not name.startswith(of_plugins):
            fix = f"unset {name}; {did_you_mean(name, VARIABLES, 'anyaccel reads ' + ', '.join(VARIABLES), cutoff=0.8)}"
            yield Check(name=name, status="WARN", message=f"{name}={value} has no effect", fix=fix)
    allowed = machine.environment.get("ANYACCEL_PLUGINS", "")
    for name in {word.strip() for word in allowed.split(",")} - {plugin.name for plugin in plugins} - {""}:
        yield Check(
            name="ANYACCEL_PLUGINS",
            status="WARN",
            message=f"ANYACCEL_PLUGINS={allowed} names {name!r}, but no plugin with this name is installed",
            fix=did_you_mean(name, [plugin.name for plugin in plugins], "`anyaccel plugins` lists those installed"),
        )


def plugin_checks(machine: Machine, plugin: Plugin) -> Iterator[Check]:
    """Whether a plugin works, whether its frameworks are installed, and what its backends say."""
    if plugin.is_broken:
        yield Check(name=f"plugin {plugin.name}", status="FAIL", message=plugin.cause, fix=plugin.hint)
    elif plugin.delays:
        yield Check(name=f"plugin {plugin.name}", status="WARN", message=plugin.cause, fix=plugin.hint)
    elif plugin.name != BUILT_IN:
        yield Check(
            name=f"plugin {plugin.name}", status="PASS", message=f"{plugin.distribution} {plugin.version}".strip()
        )
    for backend in plugin.backends:
        missing = [] if plugin.name == BUILT_IN else _missing(backend.import_roots)
        if missing:
            yield Check(
                name=backend.framework,
                status="WARN",
                message=f"plugin {plugin.name} is installed, but {missing[0]} is not",
                fix=install_line(missing[0]),
            )
        elif (checks := backend.capability(HealthChecks)) is not None:
            yield from _asked(checks, machine, plugin, backend)


def _missing(roots: Iterable[str]) -> list[str]:
    """Return the first root, if it cannot be found; the others are of packages that may be missing."""
    return [root for root in list(roots)[:1] if root not in sys.modules and find_spec(root) is None]


def _asked(checks: HealthChecks, machine: Machine, plugin: Plugin, backend: Backend) -> list[Check]:
    try:
        return list(checks.health_checks(machine))
    except Exception as error:
        problem = f"its checks of the machine fail: {type(error).__name__}: {error}"
        package, package_of_backend = (type(it).__module__.partition(".")[0] for it in (checks, backend))
        if package != package_of_backend:  # another plugin has brought them
            return [Check(name=f"checks of {package}", status="FAIL", message=problem, fix=f"update {package}")]
        return [Check(name=f"plugin {plugin.name}", status="FAIL", message=problem, fix=f"update {plugin.source}")]


# -- system checks: drivers, masks of devices, and limits of this machine; those that need no plugin -------------------


MASKS = {
    "CUDA_VISIBLE_DEVICES": "nvidia",
    "HIP_VISIBLE_DEVICES": "amd",
    "ROCR_VISIBLE_DEVICES": "amd",
}
_SHARED_MEMORY = 1 << 30
"""What containers get by default, 64 MiB, ends the workers of a loader with a bus error."""
_LOCKED_MEMORY = 64 << 20
_INSTALL = {"nvidia": "NVIDIA's driver", "amd": "the amdgpu driver and ROCm"}


def system_checks(machine: Machine) -> Iterator[Check]:
    """Yield every check of the system, in the order of the report."""
    vendors = sorted({*machine.pci_vendors, *(device.vendor for device in machine.devices)} & set(_INSTALL))
    for vendor in vendors:
        gpus, version = machine.gpus(vendor), machine.driver_versions.get(vendor, "")
        if gpus:
            driver = f", driver {version}" if version else ""
            yield Check(name=f"{vendor} driver", status="PASS", message=f"{_listed(gpus)}{driver}")
            continue
        yield Check(
            name=f"{vendor} driver",
            status="FAIL",
            message=f"a card of {vendor} is on the PCI bus, but its driver does not answer",
            fix=f"install {_INSTALL[vendor]}, restart, and check that it lists the card"
            + (": nvidia-smi" if vendor == "nvidia" else ": rocminfo"),
        )
    if not vendors:
        others = [device for device in machine.devices if device.vendor not in _INSTALL]
        yield Check(name="accelerators", status="PASS", message=_listed(others) if others else "only the CPU")
    for name, vendor in MASKS.items():
        mask, every = machine.environment.get(name), machine.gpus(vendor)
        if mask is None or not every:
            continue
        visible = [device for device in machine.visible if device.vendor == vendor]
        if len(visible) == len(every) and [d.identity for d in visible] == [d.identity for d in every]:
            yield Check(name=name, status="PASS", message=f"{name}={mask} leaves all of {len(every)}")
        else:
            yield Check(name=name, status="WARN", message=_masked(name, mask, every, visible), fix=f"unset {name}")
    yield from _threads(machine)
    yield from _shared_memory(machine)
    yield from _locked_memory(machine)


def _masked(name: str, mask: str, every: list[SystemDevice], visible: list[SystemDevice]) -> str:
    hidden = len(every) - len(visible)
    told = f"{name}={mask} hides {hidden} of {len(every)} GPUs" if hidden else f"{name}={mask} reorders the GPUs"
    numbers = [f"gpu:{new} is number {every.index(old)}" for new, old in _renumbered(every, visible)]
    return f"{told}; {', '.join(numbers)}" if numbers else told


def _renumbered(every: list[SystemDevice], visible: list[SystemDevice]) -> list[tuple[int, SystemDevice]]:
    """Return the new number of each GPU that another number has in the system, with the GPU there."""
    by_identity = {device.identity: device for device in every if device.identity}
    pairs = [(device.index, by_identity.get(device.identity)) for device in visible]
    return [(new, old) for new, old in pairs if old is not None and every.index(old) != new]


def _threads(machine: Machine) -> Iterator[Check]:
    text = machine.environment.get("OMP_NUM_THREADS", "")
    if not machine.cores:
        return
    levels = [level.strip() for level in text.split(",")]  # of nested threads; the first one counts here
    if text and not all(level.isascii() and level.isdigit() and int(level) for level in levels):
        yield Check(
            name="threads",
            status="WARN",
            message=f"OMP_NUM_THREADS={text} is not a number of threads, so it has no effect",
            fix=f"export OMP_NUM_THREADS={machine.cores}",
        )
    elif text and int(levels[0]) > machine.cores:
        yield Check(
            name="threads",
            status="WARN",
            message=f"OMP_NUM_THREADS={text} is more than the {machine.cores} cores that this process may use",
            fix=f"export OMP_NUM_THREADS={machine.cores}",
        )
    else:
        yield Check(
            name="threads", status="PASS", message=f"{text or 'as many as frameworks choose'}, {machine.cores} cores"
        )


def _shared_memory(machine: Machine) -> Iterator[Check]:
    size = machine.shared_memory
    if not size:
        return
    if size < _SHARED_MEMORY:
        yield Check(
            name="shared memory",
            status="WARN",
            message=f"/dev/shm has {size >> 20} MiB; workers of a loader end with a bus error when it is full",
            fix="start the container with --shm-size=8g, or with --ipc=host",
        )
    else:
        yield Check(name="shared memory", status="PASS", message=f"/dev/shm has {size / 2**30:.1f} GiB")


def _locked_memory(machine: Machine) -> Iterator[Check]:
    """Check locked memory if there are GPUs: InfiniBand and ROCm lock host memory, which is limited."""
    limit = machine.locked_memory
    if not machine.devices or machine.system != "linux":
        return
    if limit is not None and limit < _LOCKED_MEMORY:
        yield Check(
            name="locked memory",
            status="WARN",
            message=f"the limit of locked memory is {limit >> 10} KiB, which InfiniBand and ROCm can exceed",
            fix="ulimit -l unlimited, or start the container with --ulimit memlock=-1",
        )
    else:
        told = "no limit" if limit is None else f"{limit >> 20} MiB"
        yield Check(name="locked memory", status="PASS", message=told)


def _listed(devices: Iterable[SystemDevice]) -> str:
    names = [device.name or device.kind for device in devices]
    return ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))


# -- Capability of backends that check a machine -----------------------------------------------------------------------


class HealthChecks(Capability):
    """Capability `health_checks`: a backend reports what keeps its framework from using a machine.

    `anyaccel doctor` calls it. Other backends are checked to the extent that core can.
    """

    @abstractmethod
    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """Return checks of the installed framework on a machine with these facts. Must not import the framework."""

    def device_checks(self, device: Device) -> Iterable[Check]:
        """Return checks of a device, which may import the framework and use it; run in a separate process. Default:
        none.
        """
        return ()
