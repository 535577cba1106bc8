"""Machine: facts about devices from the operating system; no framework is imported, and nothing is initialized.

Offers `Machine`, the facts; `SystemDevice`, one device of it; and the capability `ExpectedDevices`, which lists the
devices of a backend before its framework is imported, for `anyaccel devices` and `devices()`. Stands on the contract.
"""

from anyaccel.distributions import is_older
from anyaccel.machine.facts import ExpectedDevices, Machine, installed_version, oldest_driver
from anyaccel.machine.system_devices import SystemDevice

__all__ = [
    "ExpectedDevices",
    "Machine",
    "SystemDevice",
    "installed_version",
    "is_older",
    "oldest_driver",
]
