"""The settings of a node whose model is larger than a device: `device_map`, `max_memory` and `offload`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import check, is_integer
from anyaccel.device import Device
from anyaccel.errors import GraphError

_OFFLOADS = ("no", "cpu", "disk")
_EXAMPLE = "{'embed': 'gpu:0', 'layers': 'cpu'}"
Settings = tuple[str | dict[str, str | int] | None, dict[str | int, int] | None, str]
"""A device map, the memory that a planned one may use, and where weights may rest."""


def offload_settings(where: str, device_map: Any, max_memory: Any, offload: Any) -> Settings:
    """The settings as they are kept; a map is planned if `max_memory` or `offload` is given alone.

    Raises:
        GraphError: a wrong value, or settings that contradict each other.
    """
    check(GraphError, where, "offload", offload, _OFFLOADS.__contains__, "'no', 'cpu' or 'disk'", "'cpu'")
    limits = None if max_memory is None else _limits(where, max_memory)
    if device_map is None and (limits is not None or offload != "no"):
        device_map = "auto"
    if isinstance(device_map, Mapping):
        if limits is not None or offload != "no":
            name = "max_memory" if limits is not None else "offload"
            raise GraphError(
                f"{where}device_map is a mapping, and {name} is for maps that are planned",
                hint=f"leave {name} out, or write device_map='auto'",
            )
        return _entries(where, device_map), None, offload
    check(GraphError, where, "device_map", device_map, (None, "auto").__contains__, "a mapping or 'auto'", "'auto'")
    return device_map, limits, offload


def settings_config(device_map: Any, max_memory: Any, offload: str) -> dict[str, Any]:
    """The settings as plain data for JSON, without those that are not set."""
    memory = None if max_memory is None else {str(name): size for name, size in max_memory.items()}
    entries = {"device_map": device_map, "max_memory": memory, "offload": None if offload == "no" else offload}
    return {name: value for name, value in entries.items() if value is not None}


def _entries(where: str, given: Mapping[Any, Any]) -> dict[str, str | int]:
    fits = lambda it: it and all(isinstance(key, str) for key in it)  # noqa: E731
    check(GraphError, where, "device_map", given, fits, "a dict of names of parts and devices", _EXAMPLE)
    return {name: _place(where, f"device_map[{name!r}]", value) for name, value in given.items()}


def _limits(where: str, given: Any) -> dict[str | int, int]:
    fits = lambda it: isinstance(it, Mapping) and bool(it)  # noqa: E731
    check(GraphError, where, "max_memory", given, fits, "bytes for each device", "{'gpu:0': '20GiB', 'cpu': '60GiB'}")
    from anyaccel.planner import values as memory_size  # may not be installed

    return {
        _place(where, "max_memory", name): memory_size(GraphError, where, f"max_memory[{name!r}]", size)
        for name, size in given.items()
    }


def _place(where: str, name: str, given: Any) -> str | int:
    """A device as text or as its index, or a tier."""
    fits = lambda it: isinstance(it, str | Device) or (is_integer(it) and it >= 0)  # noqa: E731
    check(GraphError, where, name, given, fits, "a device, 'cpu' or 'disk'", "'gpu:0'")
    return int(given) if is_integer(given) or str(given).isdecimal() else str(given)
