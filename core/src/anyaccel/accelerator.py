"""Accelerator: what the user asks for, said once. It names no framework.

Stands above the registry because its methods ask it; what is below (contract, registry) speaks of `Device` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from anyaccel.device import Device, spelling, vendor_of
from anyaccel.errors import ConfigError, DeviceUnavailableError, FrameworkError
from anyaccel.html import badge, faint, joined
from anyaccel.registry import registry


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Accelerator:
    """A request for a device, with options: `Accelerator("gpu:0", pin_memory=True)`.

    Equal if the place and the options are: `Accelerator("cuda") == Accelerator("gpu:0")`. What was written is kept for
    display and for `get_config`, and a vendor word (`cuda`, `rocm`) stays a constraint when it is resolved. Making
    one asks nothing of the machine; a device that is not there is an error when a plan is made or `check` is called.

    Args:
        device: `"cpu"`, `"gpu:1"`, `"mps"`, any `kind[:index]`; a Device; or a framework's own device object.
        pin_memory: a wish for copies from page-locked memory; without effect where they cannot be had.

    Raises:
        DeviceParseError: the spelling names no place.
    """

    device: Device
    pin_memory: bool
    spec: str = field(compare=False)

    def __init__(self, device: Any = "cpu", *, pin_memory: bool = False) -> None:
        if not isinstance(pin_memory, bool):
            raise ConfigError(f"pin_memory={pin_memory!r} is neither True nor False")
        object.__setattr__(self, "device", Device.parse(device))
        object.__setattr__(self, "pin_memory", pin_memory)
        object.__setattr__(self, "spec", spelling(device))

    def __repr__(self) -> str:
        return f"Accelerator({self.spec!r}{', pin_memory=True' if self.pin_memory else ''})"

    def __str__(self) -> str:
        return str(self.device)

    def _repr_html_(self) -> str:
        said = [f"written {self.spec}"] if self.spec != str(self.device) else []
        said += ["pinned memory"] if self.pin_memory else []
        return str(joined(["Accelerator ", badge(str(self.device)), faint(f" {', '.join(said)}") if said else None]))

    @classmethod
    def of(cls, value: Accelerator | Device | str | Any) -> Accelerator:
        """`value` as an Accelerator: itself, or made from a device or its spelling."""
        return value if isinstance(value, cls) else cls(value)

    @classmethod
    def cpu(cls) -> Accelerator:
        """The CPU."""
        return cls("cpu")

    @classmethod
    def gpu(cls, index: int = 0, *, pin_memory: bool = False) -> Accelerator:
        """A GPU of any vendor."""
        return cls(Device("gpu", index), pin_memory=pin_memory)

    @classmethod
    def cuda(cls, index: int = 0, *, pin_memory: bool = False) -> Accelerator:
        """A GPU of NVIDIA."""
        return cls(f"cuda:{index}", pin_memory=pin_memory)

    @classmethod
    def mps(cls) -> Accelerator:
        """The GPU of an Apple machine."""
        return cls("mps")

    @property
    def vendor(self) -> str:
        """The vendor that the spelling insists on, `""` for any."""
        return vendor_of(self.spec)

    def is_available(self, framework: str | None = None) -> bool:
        """Whether the device is on this machine now: for that framework, or for any that is served here."""
        return any(self._there(name) for name in ([framework] if framework else registry().frameworks))

    def check(self, framework: str) -> None:
        """Raise what stands in the way of using this device with a framework.

        Raises:
            FrameworkError: the framework is not served here, or not on this kind of device.
            DeviceUnavailableError: the device is not on this machine.
        """
        registry().serving(framework, self.device, vendor=self.vendor)

    def _there(self, framework: str) -> bool:
        try:
            self.check(framework)
        except (FrameworkError, DeviceUnavailableError):
            return False
        return True

    def device_string(self, framework: str) -> str:
        """A framework's own name for the device, such as `"cuda:0"`."""
        return registry().find(framework, self.device.kind).device_string(self.device)

    def scope(self, framework: str) -> AbstractContextManager[Any]:
        """New tensors of the framework made inside land on the device."""
        return registry().serving(framework, self.device, vendor=self.vendor).scope(self.device)

    def move(self, obj: Any, *, framework: str | None = None) -> Any:
        """The same as `anyaccel.move(obj, self, framework=framework)`."""
        from anyaccel.placement import move  # placement coerces to Accelerator, so it stands above

        return move(obj, self, framework=framework)

    def place(self, obj: Any) -> Any:
        """The same as `anyaccel.place(obj, self)`."""
        from anyaccel.placement import place  # as in `move`

        return place(obj, self)

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back; keeps the vendor word."""
        return {"device": self.spec, "pin_memory": self.pin_memory}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Accelerator:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: unknown keys, or `config` is not a dict.
        """
        if not isinstance(config, Mapping) or set(config) - {"device", "pin_memory"} or "device" not in config:
            raise ConfigError(
                f"{config!r} is not the configuration of an accelerator",
                available="keys device and pin_memory",
                hint="write {'device': 'gpu:0', 'pin_memory': False}",
            )
        return cls(config["device"], pin_memory=config.get("pin_memory", False))
