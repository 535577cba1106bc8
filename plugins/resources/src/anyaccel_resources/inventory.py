"""Inventory: the devices, memory and cores of a machine: in words, from a file, or of this one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import class_hints
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel.machine.system_devices import SystemDevice, system_devices, system_host
from anyaccel.suggestions import did_you_mean
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.grammar import LONGEST, Parser
from anyaccel_resources.products import Product, form_of, product_named, product_of

MOST_DEVICES = 4096
_TIMES = re.compile(r"\s*(\d+)\s*[xX*]\s*(?=\S)")
_KINDS = ("cpu", "gpu", "cuda", "rocm", "mps", "xpu", "tpu", "npu", "hpu", "sim")
_SIZED_KIND = re.compile(rf"\s*({'|'.join(_KINDS[1:])})-(\d{{1,6}})GB\b", re.IGNORECASE)
_ANY_GPU = re.compile(r"^\s*(\d{1,6}GB)(?=\s|$)", re.IGNORECASE)
_HOST = re.compile(r"^\s*cpu\s+(\d{1,6}[GT]B)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryDevice:
    """A device of a machine.

    Attributes:
        device: Kind and index.
        name: Its product as reported or written.
        memory_gb: Memory in GB; the maker's figure for a known product, otherwise the reported one; 0 if unknown.
        identity: UUID or PCI address, `""` if unknown.
    """

    device: Device
    name: str = ""
    vendor: str = ""
    memory_gb: float = 0.0
    identity: str = ""

    @property
    def nbytes(self) -> int:
        """Its memory in bytes, 0 if unknown; a GB is 10**9 bytes."""
        return round(self.memory_gb * 1e9)

    @property
    def product(self) -> Product | None:
        """The product in the table; None if the table does not have it."""
        return product_of(self.name)[0]

    @property
    def form(self) -> str:
        """Its form, such as `"SXM"`; `""` if it is not known."""
        product = self.product
        if product is not None and len(product.forms) == 1:
            return product.forms[0]
        return form_of(self.name)

    @property
    def label(self) -> str:
        """The product and its memory, such as `"H100-80GB"`; the reported name if the product is unknown."""
        if self.device.kind == "cpu":
            return "cpu"
        product = self.product
        if product is None and not self.name and self.memory_gb:
            return f"{self.device.kind}-{self.memory_gb:g}GB"
        if product is None or product.memory_gb == (self.memory_gb,):
            return product.name if product else self.name or str(self.device)
        return f"{product.name}-{self.memory_gb:g}GB"


@class_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The devices, memory and cores of a machine.

    Attributes:
        devices: Devices, with a CPU, which every machine has.
        host_memory_gb: Memory of the host in GB, 0 if unknown.
        cores: Cores of the host, 0 if unknown.
        source: Its origin, for messages.

    Example:
        >>> import anyaccel as aa
        >>> machine = aa.Inventory.parse("2x H100-80GB")
        >>> [str(entry.device) for entry in machine.devices]
        ['gpu:0', 'gpu:1', 'cpu:0']
    """

    devices: tuple[InventoryDevice, ...] = field(kw_only=False)
    host_memory_gb: float = 0.0
    cores: int = 0
    source: str = "in words"

    def __post_init__(self) -> None:
        if isinstance(self.devices, str):
            Inventory.parse(self.devices)  # what is wrong in the text is said first
            hint = f"write Inventory.parse({self.devices!r})"
            raise ConfigError(f"Inventory has devices={self.devices!r}, which is text", hint=hint)

    @property
    def host_nbytes(self) -> int:
        """Memory of the host in bytes, 0 if unknown."""
        return round(self.host_memory_gb * 1e9)

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for device in self.devices:
            counts[device.label] = counts.get(device.label, 0) + 1
        return ", ".join(f"{count}x {label}" for label, count in counts.items())

    @classmethod
    def parse(cls, value: Any) -> Inventory:
        """Return the inventory that `value` writes.

        Args:
            value: Text such as `"8x H100-80GB, 2x T4 mem=1TB cores=96"`, `"2x gpu-24GB"` or `"2x 24GB"` for devices of
                no product in the table, `"2x sim-1GB"` for simulated ones, `"cpu 64GB"` for the memory of the host,
                `"cpu"` for a machine without accelerators, or an Inventory.

        Raises:
            ConfigError: not an inventory.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
            hint = "write Inventory.parse('8x H100-80GB')"
            raise ConfigError(f"{shown(value)} is not an inventory", available="text, an Inventory", hint=hint)
        host, counts = {"host_memory_gb": 0, "cores": 0}, []
        for part in value.split(","):
            count, entry = _read_part(part, value)
            host = {name: getattr(entry, name) or before for name, before in host.items()}
            counts.append((count, entry))
        return cls(devices=_numbered(_described(counts, value)), source="in words", **host)

    @classmethod
    def from_file(cls, path: str | Path) -> Inventory:
        """Read an inventory from a JSON file: `{"devices": [{"product": "H100-80GB", "count": 8}], "cores": 96}`.

        Each entry of `devices` has `product` and may have `count`; `host_memory_gb` and `cores` are optional. No code
        is run from the file, and its size and depth are bounded.

        Raises:
            ConfigError: it cannot be read, is not an inventory, or contradicts itself.
        """
        if not isinstance(path, (str, Path)) or not str(path):
            hint = "write Inventory.from_file('node.json')"
            raise ConfigError(f"{shown(path)} is not the path of an inventory", hint=hint)
        content = _mapping(_parsed(Path(path)), path, _KEYS)
        entries = content.get("devices", [])
        if not isinstance(entries, list) or len(entries) > _MOST:
            raise _wrong(path, f"devices={shown(entries, 60)} is not a list of at most {_MOST} entries")
        texts = []
        for entry in entries:
            fields = _mapping(entry, path, ("product", "count"))
            name, count = fields.get("product"), fields.get("count", 1)
            if not isinstance(name, str) or not 1 <= len(name) <= 100 or "," in name:
                raise _wrong(path, f"product={shown(name, 60)} is not the name of a product")
            if not is_integer(count) or not 1 <= count <= _MOST:
                raise _wrong(path, f"count={shown(count, 60)} of {name!r} is not a count from 1 to {_MOST}")
            texts.append(f"{int(count)}x {name}")
        words = texts or ["cpu"]
        host = {name: content.get(name, 0) for name in ("host_memory_gb", "cores")}
        for name, value in host.items():
            is_number = is_integer(value) or (name == "host_memory_gb" and isinstance(value, float))
            if not is_number or not 0 <= value <= _LARGEST_HOST:
                raise _wrong(path, f"{name}={shown(value, 60)} is not a number from 0 to {_LARGEST_HOST}")
        described = (device for text in words for device in _described([_read_part(text, text)], text))
        memory, cores = float(host["host_memory_gb"]), int(host["cores"])
        return cls(devices=_numbered(described), host_memory_gb=memory, cores=cores, source=f"in {Path(path).name}")

    @classmethod
    def detect(cls) -> Inventory:
        """Return the inventory of this machine, from its drivers and system files. Imports no framework, initializes
        nothing.

        Accelerators that only a framework knows are not in it; `anyaccel devices` asks the frameworks.
        """
        memory_gb, cores = system_host()
        devices = tuple(map(_of_system, system_devices()))
        return cls(devices=devices, host_memory_gb=memory_gb, cores=cores, source="this machine")


def _of_system(found: SystemDevice) -> InventoryDevice:
    return InventoryDevice(
        device=Device(found.kind, found.index),
        name=found.name,
        vendor=found.vendor,
        memory_gb=stated_memory(found.name, found.nbytes),
        identity=found.identity,
    )


def stated_memory(name: str, nbytes: int) -> float:
    """Return the maker's memory in GB of a reported device; for unknown products and parts, the reported memory.

    Drivers report a little more or less than the maker: an A10G of 24 GB has 23.7e9 bytes.
    """
    product, written = product_of(name)
    reported = round(nbytes / 1e9, 1)
    if product is None or " MIG " in f" {name} ":
        return reported
    nearest = written if written in product.memory_gb else min(product.memory_gb, key=lambda gb: abs(gb - reported))
    close = not nbytes or abs(nearest - reported) <= 0.12 * nearest
    is_known = nbytes or written == nearest or len(product.memory_gb) == 1
    return float(nearest) if close and is_known else reported


def _read_part(part: str, whole: str) -> tuple[int, RequestEntry]:
    times = _TIMES.match(part)
    what = _HOST.sub(r"cpu mem=\1", _ANY_GPU.sub(r"gpu-\1", part[times.end() :] if times else part))
    sized = _SIZED_KIND.match(what)
    try:
        entries, _ = Parser(sized.group(1) + what[sized.end() :] if sized else what).request()
    except AnyaccelError as error:
        problem = f"the inventory {shown(whole)}: {error.problem}"
        raise ConfigError(problem, available=error.available, hint=error.hint) from None
    entry = replace(entries[0], memory_gb=int(sized.group(2))) if sized else entries[0]
    count = int(times.group(1)) if times and len(times.group(1)) < 6 else 0 if times else entry.count
    is_device = bool(entry.product) or entry.kind in _KINDS
    several = entry.every or entry.more or (times and entry.count > 1)
    at_least = entries[0].memory_gb and not entry.product
    of_devices = (at_least, entry.exact, entry.newer, entry.capabilities, several, entry.sm)
    wishes = any((*of_devices, entry.price, entry.nodes > 1))
    if not is_device or wishes or not 1 <= count <= MOST_DEVICES:
        problem = f"{part.strip()!r} in the inventory {shown(whole)} is not a number of devices of one product"
        raise ConfigError(problem, available=f"at most {MOST_DEVICES}", hint="write '8x H100-80GB'")
    return count, entry


def _described(counts: Iterable[tuple[int, RequestEntry]], whole: str) -> Iterable[InventoryDevice]:
    for count, entry in counts:
        product = product_named(entry.product)
        sizes = product.sizes_of(entry.form) if product else (0,)
        if product and not entry.memory_gb and len(sizes) > 1:
            available = ", ".join(f"{product.name}-{gb}GB" for gb in sizes)
            problem = f"the inventory {shown(whole)} does not specify which {product.name} it has"
            raise ConfigError(problem, available=available, hint="add the memory")
        kind, gb = (product.kind if product else entry.canonical_kind), entry.memory_gb or sizes[0]
        vendor, name = (product.vendor, f"{product.name} {entry.form}".strip()) if product else (entry.vendor, "")
        if kind != "cpu":
            yield from [
                InventoryDevice(device=Device(kind), name=name, vendor=vendor, memory_gb=float(gb))
                for _ in range(count)
            ]


def _numbered(devices: Iterable[InventoryDevice]) -> tuple[InventoryDevice, ...]:
    """Return the devices with their index among those of their kind, and the CPU."""
    numbers: dict[str, int] = {}
    result = []
    for device in devices:
        number = numbers[device.device.kind] = numbers.get(device.device.kind, -1) + 1
        fields: Mapping[str, Any] = {"name": device.name, "vendor": device.vendor, "memory_gb": device.memory_gb}
        result.append(InventoryDevice(device=Device(device.device.kind, number), **fields))
    if len(result) > MOST_DEVICES:
        raise ConfigError(
            f"an inventory of {len(result)} devices is too large", cause=f"at most {MOST_DEVICES} are allowed"
        )
    return (*result, InventoryDevice(device=Device("cpu"), name="cpu"))


# -- inventory file ----------------------------------------------------------------------------------------------------


LARGEST = 1 << 20  # bytes
_MOST = 4096  # entries, and devices of an entry
_LARGEST_HOST = 10_000_000  # GB or cores
_KEYS = ("devices", "host_memory_gb", "cores")
_EXAMPLE = """{"devices": [{"product": "H100-80GB", "count": 8}], "host_memory_gb": 1000, "cores": 96}"""


def _parsed(path: Path) -> Any:
    try:
        if not path.is_file():  # a pipe or device would never end
            raise OSError("it is not a file" if path.exists() else "the file does not exist")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise _wrong(path, f"it is larger than {LARGEST} bytes")
        return json.loads(content)
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deep" if isinstance(error, RecursionError) else f"it is not JSON ({error})"
        raise _wrong(path, problem) from None


def _mapping(value: Any, path: str | Path, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, f"{shown(value, 60)} is not an object")
    for key in value:
        if key not in keys:
            raise _wrong(path, f"unknown key {key!r}", ", ".join(keys), did_you_mean(key, keys, f"write {_EXAMPLE}"))
    return value


def _wrong(path: str | Path, problem: str, available: str = "", hint: str = "") -> ConfigError:
    where = f"the inventory in {Path(path).name}"
    return ConfigError(f"{where}: {problem}", available=available, hint=hint or f"write {_EXAMPLE}")
