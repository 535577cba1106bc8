"""Doctor: checks of a machine and of what is installed on it, each with the command that mends it.

Offers `Machine`, the facts that are checked; `Check`, what a check says; `HealthChecks`, the capability by which the
backend of a plugin adds checks of its own, and `cuda_driver_checks` for those that use CUDA; and `check_machine`.
Imports no framework. Stands on `requests` and the kernel.
"""

from anyaccel.doctor.capability import HealthChecks
from anyaccel.doctor.check import Check, worst
from anyaccel.doctor.checkup import check_machine
from anyaccel.doctor.cuda_driver import cuda_driver_checks
from anyaccel.doctor.machine import Machine

__all__ = ["Check", "HealthChecks", "Machine", "check_machine", "cuda_driver_checks", "worst"]
