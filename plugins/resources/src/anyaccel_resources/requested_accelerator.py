"""RequestedAccelerator: an Accelerator that is a request, resolved on this machine when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from anyaccel.accelerator import SCALARS, Accelerator
from anyaccel.containers import leaves
from anyaccel.device import Device, spelling
from anyaccel.errors import ConfigError, DeviceParseError
from anyaccel.html import badge, faint, joined
from anyaccel.registry import Registry, registry
from anyaccel.specs import assign_fields
from anyaccel_resources.device_request import DeviceRequest, with_count
from anyaccel_resources.grammar import KINDS
from anyaccel_resources.inventory_registry import machine_of
from anyaccel_resources.products import product_named


def accelerator_class(device: Any) -> type[Accelerator]:
    """Return the class of `Accelerator(device)`: that of requests, or for one device of any kind, Accelerator itself.

    An extension of the point `accelerator_class`. Kinds are an open set, so a word that is not a product may be the
    kind of a plugin.
    """
    if not isinstance(device, (str, list, tuple, set, frozenset, DeviceRequest)):
        return Accelerator
    if isinstance(device, str):
        word = spelling(device).partition(":")[0]
        try:
            Device.parse(device)
        except DeviceParseError:
            return RequestedAccelerator if word else Accelerator
        return RequestedAccelerator if word == "any" or (word not in KINDS and product_named(word)) else Accelerator
    return RequestedAccelerator


class RequestedAccelerator(Accelerator):
    """An Accelerator that is a request: `Accelerator("H100, any")`. Equal if request and options are equal.

    Each use resolves it on this machine, among the devices of the frameworks in use.
    """

    __slots__ = ("request",)
    is_request = True
    request: DeviceRequest

    def __init__(self, device: Any = "any", *, pin_memory: bool = False) -> None:
        options = Accelerator(pin_memory=pin_memory)  # checks them
        request = DeviceRequest.parse(device)
        assign_fields(self, request=request, vendor="", pin_memory=options.pin_memory, spec=str(request))

    @property
    def device(self) -> Device:
        """The first device that the request gets on this machine, for any framework."""
        return self.request.resolve().devices[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestedAccelerator):
            return NotImplemented
        return (self.request, self.pin_memory) == (other.request, other.pin_memory)

    def __hash__(self) -> int:
        return hash((self.request, self.pin_memory))

    def __reduce__(self) -> Any:
        return partial(RequestedAccelerator, pin_memory=self.pin_memory), (self.spec,)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`; the request as text, or as a list if the text alone would be one
        device.
        """
        is_device = accelerator_class(self.spec) is Accelerator
        return {"device": [self.spec] if is_device else self.spec, "pin_memory": self.pin_memory}

    def __deepcopy__(self, memo: Any) -> RequestedAccelerator:
        return self

    def __str__(self) -> str:
        return self.spec

    def _repr_html_(self) -> str:
        pinned = faint(" pinned memory") if self.pin_memory else None
        return str(joined(["Accelerator ", badge(self.spec), pinned]))

    def check(self, framework: str) -> None:
        """Raise FrameworkError or DeviceUnavailableError if a framework has no device that fits."""
        self.on_one_device(framework).check(framework)

    def device_string(self, framework: str) -> str:
        """Return a framework's own name for the device that the request gets."""
        return self.on_one_device(framework).device_string(framework)

    def scope(self, framework: str) -> AbstractContextManager[Any]:
        return self.on_one_device(framework).scope(framework)

    def place(self, obj: Any) -> Any:
        return self.on_one_device(*_owners(obj)).place(obj)

    def move(self, obj: Any, *, framework: str | None = None) -> Any:
        frameworks = [framework] if framework is not None else _owners(obj)
        return self.on_one_device(*frameworks).move(obj, framework=framework)

    def on_one_device(self, *frameworks: str, strict: bool = False, known: Registry | None = None) -> Accelerator:
        """Return an Accelerator for the one device that the request gets on this machine.

        Args:
            frameworks: Consider only devices supported by all of them.
            strict: The first alternative or nothing.
            known: See `machine_of`.

        Raises:
            ConfigError: the request is for several devices.
            DeviceUnavailableError: nothing fits; the message has the reasons.
            FrameworkError: no plugin runs a framework.
        """
        devices = self.request.resolve(machine_of(frameworks, known=known), strict=strict).devices
        if len(devices) > 1:
            problem = f"the request {self.spec!r} is for {len(devices)} devices, but an object is on one"
            hint = (
                f"request one, or pass it to a TrainPhase and run that with anyaccel run --replicas {len(devices)} "
                "SCRIPT"
            )
            raise ConfigError(problem, available=", ".join(map(str, devices)), hint=hint)
        return self.at(devices[0])

    def requested_devices(
        self,
        frameworks: Sequence[str],
        known: Registry | None = None,
        *,
        replicas: int | None = None,
        strict: bool = False,
    ) -> Sequence[Device]:
        """Return all devices that the request gets of a machine: as many as it is for, or where it is for one,
        `replicas`.
        """
        request = with_count(self.request, replicas) if replicas and self.request.count == 1 else self.request
        return request.resolve(machine_of(frameworks, of_all=False, known=known), strict=strict).devices

    def refused(
        self, frameworks: Sequence[str], known: Registry, *, of_all: bool, strict: bool
    ) -> Sequence[tuple[str, str]]:
        """Return the candidates that the request did not get of a machine, as `WISH on DEVICE`, each with the
        reason.
        """
        candidates = self.request.resolve(machine_of(frameworks, of_all=of_all, known=known), strict=strict).candidates
        return [(f"{it.wish} on {it.label}", it.reason) for it in candidates if not it.chosen]


def _owners(obj: Any) -> list[str]:
    installed = registry()
    return sorted({installed.owner(leaf) for leaf in leaves(obj, installed.owners) if not isinstance(leaf, SCALARS)})
