"""Capabilities of backends that look at a machine before their framework is imported."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from anyaccel.backend import DeviceInfo
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.doctor.check import Check
from anyaccel.doctor.machine import Machine


class ExpectedDevices(Capability):
    """Capability `expected_devices`: tells the devices that the framework will have, without importing it.

    The backend's `devices` gives these until the framework (`import_roots[0]`) is imported.
    """

    def expected_devices(self, machine: Machine) -> dict[Device, DeviceInfo] | None:
        """What `devices` and `device_info` will say once the framework is imported; None where that is not certain."""
        found: dict[Device, DeviceInfo] = {}
        for kind in self.backend.kinds:
            infos = self.expected_of_kind(kind, machine)
            if infos is None:
                return None
            found.update((Device(kind, index), info) for index, info in enumerate(infos))
        return found

    @abstractmethod
    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """The devices of a kind that the framework will have; imports nothing.

        By how the installed framework was built, its settings, and the facts of the machine. None where these do not
        tell, as with a driver too old or a library that may be missing: then the framework itself is asked.
        """


class HealthChecks(Capability):
    """Capability `health_checks`: a backend says what keeps its framework from using a machine.

    `anyaccel doctor` asks for it. Other backends are checked as far as core can.
    """

    @abstractmethod
    def health_checks(self, machine: Machine) -> Iterable[Check]:
        """Checks of the installed framework beside these facts. Imports no framework and initialises nothing."""

    def device_checks(self, device: Device) -> Iterable[Check]:
        """Checks of a device that may import the framework and use it; asked in a process of its own. Default: none."""
        return ()
