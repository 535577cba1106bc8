"""Doctor: checks of a machine and of the software on it, each with the command that fixes a problem.

Offers `Check`, the result of a check; `check_machine`; and, for the backends of plugins, the capability `HealthChecks`,
to add checks, and `cuda_driver_checks` for those that use CUDA. `Machine` and `ExpectedDevices` come from
`anyaccel.machine`. Imports no framework. Stands on `machine` and the kernel.
"""

from anyaccel.machine import ExpectedDevices, Machine
from anyaccel_devtools.doctor.check import Check, worst
from anyaccel_devtools.doctor.checkup import HealthChecks, check_machine
from anyaccel_devtools.doctor.cuda_driver import cuda_driver_checks

__all__ = ["Check", "ExpectedDevices", "HealthChecks", "Machine", "check_machine", "cuda_driver_checks", "worst"]
