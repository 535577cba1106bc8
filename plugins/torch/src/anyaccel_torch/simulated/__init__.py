"""Simulated torch devices, `sim:0`, `sim:1`, …: graphs over several devices, tested on a machine without accelerators.

Enabled by ANYACCEL_TORCH_SIMULATE=2 in the environment, or by `start(2)`, and not disabled again: torch supports one
additional kind of device per process, so use them in a separate process, such as that of a test. Values are computed by
torch's own code for the CPU. The simulation covers their place: a device's own memory, which can run out, transfers and
waits that are counted, a device's own random numbers, and torch's refusal of operations over several devices.

Offers `start` and the handles of the devices. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.call_hints import call_hints
from anyaccel_torch.simulated.sim_device import SWITCH, SimulatedDevice, create, is_wanted, running

__all__ = ["SWITCH", "SimulatedDevice", "is_wanted", "running", "start"]


@call_hints
def start(count: int = 2, *, capacity: int | None = None) -> Sequence[SimulatedDevice]:
    """Register the devices `sim:0` to `sim:count-1` with torch and anyaccel until the process ends.

    A second call with the same arguments changes nothing.

    Args:
        count: Number of devices, at most 64.
        capacity: Bytes that each can hold; None for no limit. It can be changed later, for each device.

    Returns:
        the devices' handles, by index.

    Raises:
        ConfigError: a count or capacity that is not a positive int, or other devices were started earlier.
        CapabilityError: this torch takes no device from Python code, or has been given another one.
    """
    devices = create(count, capacity)
    from anyaccel_torch.simulated.backend import add_to_registry
    from anyaccel_torch.simulated.registration import register

    register()
    add_to_registry()
    return devices
