"""`torch.sim`: what torch, and code that calls `torch.get_device_module`, expects of the module of a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.simulated import rng, streams
from anyaccel_torch.simulated.memory_ledger import parse_device
from anyaccel_torch.simulated.sim_device import KIND, SimulatedDevice, running


class SimModule:
    """The functions of `torch.cuda` that have a meaning for simulated devices."""

    Stream, Event = streams.SimStream, streams.SimEvent
    current_stream = staticmethod(streams.current)
    stream = staticmethod(streams.stream)
    pinned_empty = staticmethod(streams.pinned_empty)

    def is_initialized(self) -> bool:
        """Always."""
        return True

    def is_available(self) -> bool:
        """Always."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many were started."""
        return len(running())

    def current_device(self) -> int:
        """Always 0: torch does not ask Python for it."""
        return 0

    def set_device(self, device: Any) -> None:
        """Does nothing for `sim:0`.

        Raises:
            NotImplementedError: another device.
        """
        if _handle(device).device.index:
            raise NotImplementedError("the current simulated device is always sim:0: pass the device explicitly")

    def synchronize(self, device: Any = None) -> None:
        """Counts a wait."""
        handle = _handle(device)
        handle.count_sync()
        if handle.timing is not None:
            handle.timing.wait(handle.timing.elapsed())

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""
        rng.seed_all(seed)

    def manual_seed(self, seed: int) -> None:
        """Seed the generator of sim:0."""
        rng.default_generator(0).manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        """State of a device's generator, on the host."""
        return rng.default_generator(_handle(device).device.index).get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        """Set the state of a device's generator."""
        rng.default_generator(_handle(device).device.index).set_state(state)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes; both 0 without a limit."""
        handle = _handle(device)
        return (0, 0) if handle.capacity is None else (max(handle.capacity - handle.used, 0), handle.capacity)

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes of the tensors that exist now."""
        return _handle(device).used

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that existed at once."""
        return _handle(device).peak

    def empty_cache(self) -> None:
        """Counted; nothing is cached."""
        for handle in running():
            handle.flushes += 1

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        """Name, identity and memory."""
        handle = _handle(device)
        name = f"simulated torch device {handle.device.index}"
        return SimpleNamespace(name=name, uuid=f"torch-{handle}", total_memory=handle.capacity or 0)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """None: mixed precision is not simulated."""
        return []


def _handle(device: Any) -> SimulatedDevice:
    return running()[device if isinstance(device, int) else parse_device(device or KIND).index]
