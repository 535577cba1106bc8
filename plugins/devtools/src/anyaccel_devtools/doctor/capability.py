"""Capability of backends that check a machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.machine import Machine
from anyaccel_devtools.doctor.check import Check


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
