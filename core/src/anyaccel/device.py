"""Device: one place to compute, one value, however it was spelt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from anyaccel.errors import DeviceParseError

# The one alias table: word -> (canonical kind, vendor that the word names).
ALIASES: dict[str, tuple[str, str]] = {
    "cuda": ("gpu", "nvidia"),
    "rocm": ("gpu", "amd"),
    "metal": ("mps", "apple"),
}

_SPELLING = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]{0,4}))?")


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A place: a lower-case kind (`cpu`, `gpu`, `mps`, `xpu`, ... an open set) and an index, always a number.

    `str()` gives `kind:index` and parses back to an equal value. Vendor words are aliases:
    `Device.parse("cuda") == Device("gpu", 0)`.
    """

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.index, int) or isinstance(self.index, bool):
            raise _malformed(f"{self.kind}:{self.index!r}")
        kind, _ = _split(f"{self.kind}:{self.index}")
        object.__setattr__(self, "kind", kind)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def _repr_html_(self) -> str:
        from anyaccel.html import badge  # a value that nobody looks at needs none

        return str(badge(str(self)))

    @classmethod
    def parse(cls, value: Any) -> Device:
        """Read a device from its spelling, from another Device, or from a framework's own device object.

        Args:
            value: `"gpu:1"`, `"cuda"`, `"cpu"`; a Device; or an object with `type` (str) and `index` (int or None).

        Raises:
            DeviceParseError: the spelling names no place.
        """
        if isinstance(value, cls):
            return value
        return cls(*_split(spelling(value)))


def spelling(value: Any) -> str:
    """The text by which `value` names a device, lower case; see `Device.parse` for what it may be.

    Raises:
        DeviceParseError: `value` is neither text nor a device object.
    """
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, Device):
        return str(value)
    kind, index = getattr(value, "type", None), getattr(value, "index", None)
    if isinstance(kind, str) and (index is None or isinstance(index, int)):
        return str(Device(kind.lower(), index or 0))  # canonical: what a framework says is no wish for a vendor
    raise _malformed(repr(value))


def vendor_of(text: str) -> str:
    """The vendor that a spelling insists on (`"nvidia"` for `"cuda:1"`), or `""` where it names none."""
    return ALIASES.get(text.partition(":")[0], ("", ""))[1]


def _split(text: str) -> tuple[str, int]:
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise _malformed(repr(text))
    word, index = match.groups()
    return ALIASES.get(word, (word, ""))[0], int(index or 0)


def _malformed(shown: str) -> DeviceParseError:
    return DeviceParseError(
        f"{shown} does not name a device",
        available="devices are written kind or kind:index, such as 'cpu', 'gpu:1' or 'mps'",
        hint="write one of these; `anyaccel devices` lists what is on this machine",
    )
