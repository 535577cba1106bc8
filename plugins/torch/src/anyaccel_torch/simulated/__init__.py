"""Simulated torch devices, `sim:0`, `sim:1`, …: graphs over several devices, tested on a machine that has none.

They are switched on by ANYACCEL_TORCH_SIMULATE=2 in the environment, or by `start(2)`, and cannot be switched off
again: torch knows one further kind of device for each process, so that this belongs into a process of its own, such as
that of a test. Values are computed by torch's own code for the CPU. What is simulated is where they are: memory of a
device's own that can run out, transfers and waits that are counted, random numbers of its own, and torch's refusal of
operations over several devices.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel_torch.simulated.sim_device import SWITCH, SimulatedDevice, is_wanted, make, running

__all__ = ["SWITCH", "SimulatedDevice", "is_wanted", "running", "start"]


def start(count: int = 2, *, capacity: int | None = None) -> Sequence[SimulatedDevice]:
    """Give torch, and anyaccel, the devices `sim:0` to `sim:count-1` until the process ends.

    A second call with the same arguments changes nothing.

    Args:
        count: how many, at most 64.
        capacity: bytes that each can hold; None for no limit. It can be changed later, for each device.

    Returns:
        the devices' handles, by index.

    Raises:
        ConfigError: a count or capacity that is not a positive int, or other devices were started before.
        CapabilityError: this torch cannot be given a device by Python code, or another one was given to it.
    """
    devices = make(count, capacity)
    from anyaccel_torch.simulated.backend import enter
    from anyaccel_torch.simulated.inside import prepare

    prepare()
    enter()
    return devices
