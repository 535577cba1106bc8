"""Random numbers of the simulated devices: a generator for each, and `torch.Generator` for those that users make."""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anyaccel_torch.simulated.device_rules import Facts
from anyaccel_torch.simulated.sim_device import KIND, running

_defaults: dict[int, torch.Generator] = {}
_Original: Any = torch._C.Generator
_homes: dict[int, torch.device] = {}


def default(index: int) -> torch.Generator:
    """The generator of a device, which draws where no other is given."""
    if index not in _defaults:
        _defaults[index] = Generator(f"{KIND}:{index}")
    return _defaults[index]


def seed_all(seed: int) -> None:
    """Start the generators of all devices from one seed, as `torch.manual_seed` does."""
    for one in running():
        default(one.device.index).manual_seed(seed)


class _Kind(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Original)


class Generator(_Original, metaclass=_Kind):  # type: ignore[misc]
    """As `torch.Generator`, which it stands in for; those of a simulated device draw as those of the CPU do."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        if wanted.type != KIND:
            return _Original(wanted)
        made = super().__new__(cls, "cpu")
        _homes[made._cdata] = torch.device(KIND, wanted.index or 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """The device whose tensors it may fill."""
        return _homes[self._cdata]

    def __del__(self) -> None:
        _homes.pop(self._cdata, None)


def drawing(func: Any, facts: Facts, device: torch.device, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a random operator, whose numbers come from the device's own generator unless one is given.

    Raises:
        RuntimeError: a generator of another kind of device is given, in torch's own words.
    """
    given = kwargs.get("generator") or next((one for one in args if isinstance(one, _Original)), None)
    if given is not None:
        where = _homes.get(given._cdata, given.device)
        if where.type != KIND:
            raise RuntimeError(f"Expected a '{KIND}' device type for generator but found '{where.type}'")
        return func(*args, **kwargs)
    own = default(device.index)
    if facts.takes_generator:
        return func(*args, **{**kwargs, "generator": own})
    before = torch.get_rng_state()
    torch.set_rng_state(own.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        own.set_state(torch.get_rng_state())
        torch.set_rng_state(before)
