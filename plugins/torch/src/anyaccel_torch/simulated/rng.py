"""Random numbers on simulated devices: a generator for each, and `torch.Generator` for those that users create."""

# ruff: noqa: SLF001  (private names of torch, which `registration` checks first)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anyaccel_torch.simulated.device_rules import OperatorTraits
from anyaccel_torch.simulated.sim_device import KIND, running

_defaults: dict[int, torch.Generator] = {}
_TorchGenerator: Any = torch._C.Generator
_devices: dict[int, torch.device] = {}


def default_generator(index: int) -> torch.Generator:
    """Return the generator of a device, which draws where no other is given."""
    if index not in _defaults:
        _defaults[index] = Generator(f"{KIND}:{index}")
    return _defaults[index]


def seed_all(seed: int) -> None:
    """Seed the generators of all devices, as `torch.manual_seed` does."""
    for handle in running():
        default_generator(handle.device.index).manual_seed(seed)


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _TorchGenerator)


class Generator(_TorchGenerator, metaclass=_GeneratorType):  # type: ignore[misc]
    """Replace `torch.Generator`; one of a simulated device draws the same numbers as one of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        parsed = torch.device(device)
        if parsed.type != KIND:
            return _TorchGenerator(parsed)
        generator = super().__new__(cls, "cpu")
        _devices[generator._cdata] = torch.device(KIND, parsed.index or 0)
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """The device whose tensors it may fill."""
        return _devices[self._cdata]

    def __del__(self) -> None:
        _devices.pop(self._cdata, None)


def call_random(
    func: Any, traits: OperatorTraits, device: torch.device, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Call a random operator with the given generator, or else with the device's own.

    Raises:
        RuntimeError: a generator of another kind of device is given, in torch's own words.
    """
    generator = kwargs.get("generator") or next((value for value in args if isinstance(value, _TorchGenerator)), None)
    if generator is not None:
        where = _devices.get(generator._cdata, generator.device)
        if where.type != KIND:
            raise RuntimeError(f"Expected a '{KIND}' device type for generator but found '{where.type}'")
        return func(*args, **kwargs)
    own = default_generator(device.index)
    if traits.takes_generator:
        return func(*args, **{**kwargs, "generator": own})
    before = torch.get_rng_state()
    torch.set_rng_state(own.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        own.set_state(torch.get_rng_state())
        torch.set_rng_state(before)
