"""Doctor: checks of a machine and of what is installed on it, each with the command that mends it.

Offers `Machine`, the facts that are checked; `Check`, what a check says; `check_machine`; and what the backends of
plugins use: the capabilities `HealthChecks`, to add checks of their own, and `ExpectedDevices`, to list devices without
importing a framework, and `cuda_driver_checks` for those that use CUDA.
Imports no framework. Stands on `requests` and the kernel.
"""

from anyaccel.doctor.capability import ExpectedDevices, HealthChecks
from anyaccel.doctor.check import Check, worst
from anyaccel.doctor.checkup import check_machine
from anyaccel.doctor.cuda_driver import cuda_driver_checks
from anyaccel.doctor.machine import Machine

__all__ = ["Check", "ExpectedDevices", "HealthChecks", "Machine", "check_machine", "cuda_driver_checks", "worst"]
