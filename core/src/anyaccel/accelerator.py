"""Accelerator: the user's request for a device, with options, for every framework."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from anyaccel.attribute_hints import AttributeHints
from anyaccel.backend import Backend, Exchange
from anyaccel.call_hints import constructor_hints
from anyaccel.containers import map_leaves
from anyaccel.device import REQUEST, USUAL, Device, spelling, vendor_of
from anyaccel.distributions import missing
from anyaccel.errors import (
    CapabilityError,
    ConfigError,
    DeviceUnavailableError,
    FrameworkError,
    MissingRequestsError,
    MoveError,
)
from anyaccel.extensions import extensions
from anyaccel.html import badge, faint, joined
from anyaccel.registry import Registry, registry
from anyaccel.specs import assign_fields

_SEVERAL = (list, tuple, set, frozenset)  # of texts: requests in order of preference, or whichever is best
SCALARS = (str, bytes, bool, int, float, complex, type(None))  # on no device: `move` and `device_of` pass over them


@constructor_hints
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Accelerator(AttributeHints):
    """Request a device, with options: `Accelerator("gpu:0", pin_memory=True)`.

    Creating an Accelerator does not look at the machine. If the device is missing, an error is raised when it is used.
    Two accelerators are equal if their device, vendor (`cuda` and `rocm` imply one, other words imply `""`) and options
    are equal. `spec` stores the text as you wrote it.

    Args:
        device: A device as text such as `"gpu:1"` (any `kind[:index]`), a Device, or a framework's own device object.
            With anyaccel-resources also a request, as DeviceRequest takes it.
        pin_memory: Copy from pinned memory where it is available.

    Raises:
        DeviceParseError: `device` does not name a device.

    Example:
        >>> import anyaccel as aa
        >>> aa.Accelerator("cuda:1").device == aa.Accelerator("gpu:1").device
        True
        >>> aa.Accelerator("cpu").is_available()
        True
    """

    device: Device
    vendor: str
    pin_memory: bool
    spec: str = field(compare=False)
    is_request: ClassVar[bool] = False
    attribute_hints: ClassVar[Mapping[str, str]] = {
        "to send_to_device": "write place(model) for models, and move(batch) for tensors",
        "prepare backward accumulate autocast clip_grad_norm_ gather reduce unwrap_model is_main_process": (
            "your own training loop has it: loop = anyaccel.Loop('cpu'), and loop.prepare(model, optimizer, loader)"
        ),
        "devices device_count": "write anyaccel.devices('gpu')",
    }

    def __new__(cls, device: Any = "cpu", *, pin_memory: bool = False) -> Accelerator:
        if cls is Accelerator and not USUAL.fullmatch(str(device)):
            classes = (choose(device) for choose in extensions("accelerator_class"))
            chosen = next(filter(None, classes), None)
            is_text = isinstance(device, str)
            if chosen is None and (REQUEST.fullmatch(device) if is_text else isinstance(device, _SEVERAL)):
                raise missing("anyaccel-resources", f"the request {device!r}", MissingRequestsError)
            cls = chosen or Accelerator
        return object.__new__(cls)

    def __init__(self, device: Any = "cpu", *, pin_memory: bool = False) -> None:
        if not isinstance(pin_memory, bool):
            raise ConfigError(f"pin_memory must be True or False, got {pin_memory!r}", hint="write pin_memory=True")
        is_device = isinstance(device, Device)
        spec = str(device) if is_device else spelling(device)
        named = device if is_device else Device.parse(spec)
        assign_fields(self, device=named, vendor=vendor_of(spec), pin_memory=pin_memory, spec=spec)

    def __repr__(self) -> str:
        return f"Accelerator({self.spec!r}{', pin_memory=True' if self.pin_memory else ''})"

    def __str__(self) -> str:
        return str(self.device)

    def _repr_html_(self) -> str:
        notes = [f"written {self.spec}"] * (self.spec != str(self.device)) + ["pinned memory"] * self.pin_memory
        return str(joined(["Accelerator ", badge(str(self.device)), faint(f" {', '.join(notes)}") if notes else None]))

    @classmethod
    def of(cls, value: Accelerator | Device | str | Any) -> Accelerator:
        """Return `value` itself if it is an Accelerator; otherwise return `Accelerator(value)`.

        Example:
            >>> import anyaccel as aa
            >>> aa.Accelerator.of("gpu:1").device
            Device(kind='gpu', index=1)
        """
        return value if isinstance(value, cls) else cls(value)

    @classmethod
    def cpu(cls) -> Accelerator:
        """Request the CPU."""
        return cls("cpu")

    @classmethod
    def gpu(cls, index: int = 0, *, pin_memory: bool = False) -> Accelerator:
        """Request a GPU of any vendor."""
        return cls(Device("gpu", index), pin_memory=pin_memory)

    @classmethod
    def cuda(cls, index: int = 0, *, pin_memory: bool = False) -> Accelerator:
        """Request an NVIDIA GPU."""
        return cls(f"cuda:{index}", pin_memory=pin_memory)

    @classmethod
    def mps(cls) -> Accelerator:
        """Request the GPU of an Apple computer."""
        return cls("mps")

    def at(self, device: Device) -> Accelerator:
        """Return an Accelerator for this device that has the same options and shows the same text."""
        made = Accelerator(device, pin_memory=self.pin_memory)
        assign_fields(made, spec=self.spec, vendor=self.vendor)
        return made

    def on_one_device(self, *frameworks: str, strict: bool = False, known: Registry | None = None) -> Accelerator:
        """Return this accelerator; for a request, return the accelerator of the device that it gets on this machine."""
        return self

    def requested_devices(
        self,
        frameworks: Sequence[str],
        known: Registry | None = None,
        *,
        replicas: int | None = None,
        strict: bool = False,
    ) -> Sequence[Device]:
        """Return the devices that a request gets on a machine, `replicas` of them if set; nothing if this names one
        device.
        """
        return ()

    def refused(
        self, frameworks: Sequence[str], known: Registry, *, of_all: bool, strict: bool
    ) -> Sequence[tuple[str, str]]:
        """Return the devices that a request could have got but did not, each with the reason; nothing if this names one
        device.
        """
        return ()

    def is_available(self, framework: str | None = None) -> bool:
        """Return whether the device can be used now, by this framework or, if None, by any framework."""
        if not isinstance(framework, str | None):
            self.check(framework)
        for name in registry().frameworks if framework is None else [framework]:
            with suppress(FrameworkError, DeviceUnavailableError):
                self.check(name)
                return True
        return False

    def check(self, framework: str) -> None:
        """Raise FrameworkError or DeviceUnavailableError if a framework cannot use the device."""
        self._backend(framework)

    def _backend(self, framework: str) -> Backend:
        return registry().serving(framework, self.device, vendor=self.vendor)

    def device_string(self, framework: str) -> str:
        """Return the framework's own name for the device, such as `"cuda:0"`; raise FrameworkError if there is no name.

        Example:
            >>> import anyaccel as aa
            >>> aa.Accelerator("cpu").device_string("numpy")
            'cpu'
        """
        registered = registry()
        return str(
            registered.ask(registered.find(framework, self.device.kind), "device_string", self.device, required=True)
        )

    def scope(self, framework: str) -> AbstractContextManager[Any]:
        """Return a context that creates new tensors of `framework` on this device; see `anyaccel.scope`."""
        return self._backend(framework).scope(self.device)

    def place(self, obj: Any) -> Any:
        """Put a model, an optimizer or a container on this device, and return it; see `anyaccel.place`."""
        registered, backend = registry(), functools.cache(self._backend)
        used_backends: list[Backend] = []

        def owned(leaf: Any) -> Any:
            if not isinstance(leaf, SCALARS):
                used_backends.append(backend(registered.owner(leaf)))
            return leaf

        map_leaves(obj, owned, registered.owners)  # raises before anything moves
        backends = iter(used_backends)
        results: dict[int, tuple[Any, Any]] = {}  # what is in a container twice is so afterwards

        def placed(leaf: Any) -> Any:
            if isinstance(leaf, SCALARS):
                return leaf
            leaf_backend = next(backends)
            if id(leaf) not in results:
                results[id(leaf)] = leaf, leaf_backend.place(leaf, self.device)
            return results[id(leaf)][1]

        return map_leaves(obj, placed, registered.owners)

    def move(self, obj: Any, *, framework: str | None = None) -> Any:
        """Copy tensors to this device; see `anyaccel.move`.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> with aa.simulate(1):
            ...     batch = aa.Accelerator("sim:0").move({"x": np.zeros(3, "float32")})
            ...     print(aa.device_of(batch["x"]))
            sim:0
        """
        registered, backend = registry(), functools.cache(self._backend)
        from_host = None
        if framework is not None:
            exchange = self._backend(framework)
            if not isinstance(exchange, Exchange):
                problem = f"the backend of {framework} cannot create tensors from NumPy arrays"
                raise CapabilityError(problem, hint="create the tensor with the framework")
            from_host = exchange.from_host
        results: dict[int, tuple[Any, Any]] = {}  # as in `place`

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, SCALARS):
                return leaf
            if id(leaf) in results:
                return results[id(leaf)][1]
            if from_host is not None and isinstance(leaf, (np.ndarray, np.generic)):
                result = from_host(np.asarray(leaf), self.device, pinned=self.pin_memory)
            else:
                if isinstance(leaf, np.ndarray) and not registered.serves("numpy", self.device.kind):
                    available = f"numpy on {', '.join(registered.kinds('numpy'))}"
                    hint = "name the framework of the new tensor: move(..., framework='...')"
                    raise FrameworkError(f"a NumPy array cannot be on {self.spec!r}", available=available, hint=hint)
                owner = registered.owner(leaf)
                if framework not in (None, owner):
                    problem = f"a {type(leaf).__name__} of {owner} cannot be moved to {framework}"
                    hint = f"convert it to a NumPy array first: move(np.asarray(x), ..., framework={framework!r})"
                    raise MoveError(problem, hint=hint)
                result = backend(owner).move(leaf, self.device, pinned=self.pin_memory)
            results[id(leaf)] = leaf, result
            return result

        return map_leaves(obj, moved, registered.owners)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`. A vendor word such as `cuda` is kept."""
        return {"device": self.spec, "pin_memory": self.pin_memory}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Accelerator:
        """Rebuild an accelerator from the output of `get_config`; raise ConfigError or DeviceParseError for anything
        else.
        """
        if not isinstance(config, Mapping) or set(config) - {"device", "pin_memory"} or "device" not in config:
            hint = "Accelerator.from_config({'device': 'gpu:0', 'pin_memory': False})"
            problem, available = f"{config!r} is not the configuration of an accelerator", "keys device and pin_memory"
            raise ConfigError(problem, available=available, hint=hint)
        return cls(config["device"], pin_memory=config.get("pin_memory", False))
