"""Reads an inventory from a JSON file that may be hostile: sizes and depth are bounded, and every value is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyaccel.arguments import is_integer, shown
from anyaccel.errors import ConfigError
from anyaccel.suggestions import did_you_mean

LARGEST = 1 << 20  # bytes
_MOST = 4096  # entries, and devices of an entry
_LARGEST_HOST = 10_000_000  # GB or cores
_KEYS = ("devices", "host_memory_gb", "cores")
_EXAMPLE = """{"devices": [{"product": "H100-80GB", "count": 8}], "host_memory_gb": 1000, "cores": 96}"""


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """The checked content of a file: products and counts, and the host."""

    devices: tuple[tuple[str, int], ...]
    host_memory_gb: float
    cores: int


def read_inventory_file(path: str | Path) -> InventoryFile:
    """The content of a file.

    Raises:
        ConfigError: it cannot be read, is too large or deep, or is not as documented.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise ConfigError(
            f"{shown(path)} is not the path of an inventory", hint="write Inventory.from_file('node.json')"
        )
    content = _parsed(Path(path))
    whole = _mapping(content, path, _KEYS)
    entries = whole.get("devices", [])
    if not isinstance(entries, list) or len(entries) > _MOST:
        raise _wrong(path, f"devices={shown(entries, 60)} is not a list of at most {_MOST} entries")
    devices = []
    for entry in entries:
        fields = _mapping(entry, path, ("product", "count"))
        name, count = fields.get("product"), fields.get("count", 1)
        if not isinstance(name, str) or not 1 <= len(name) <= 100 or "," in name:
            raise _wrong(path, f"product={shown(name, 60)} is not the name of a product")
        if not is_integer(count) or not 1 <= count <= _MOST:
            raise _wrong(path, f"count={shown(count, 60)} of {name!r} is not a count from 1 to {_MOST}")
        devices.append((name, int(count)))
    memory, cores = whole.get("host_memory_gb", 0), whole.get("cores", 0)
    for key, value in (("host_memory_gb", memory), ("cores", cores)):
        number = is_integer(value) or (key == "host_memory_gb" and isinstance(value, float))
        if not number or not 0 <= value <= _LARGEST_HOST:
            raise _wrong(path, f"{key}={shown(value, 60)} is not a number from 0 to {_LARGEST_HOST}")
    return InventoryFile(tuple(devices), float(memory), int(cores))


def _parsed(path: Path) -> Any:
    try:
        if not path.is_file():  # a pipe or device would never end
            raise _wrong(path, "it is not a file")
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
