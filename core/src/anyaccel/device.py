"""Device: a kind and an index, equal for every way to write the same device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from anyaccel.call_hints import constructor_hints
from anyaccel.errors import DeviceParseError

# alias -> (canonical kind, vendor that the alias implies)
ALIASES: dict[str, tuple[str, str]] = {"cuda": ("gpu", "nvidia"), "rocm": ("gpu", "amd"), "metal": ("mps", "apple")}
USUAL = re.compile(r"\s*(cpu|gpu|mps|sim|xpu|cuda|rocm|metal)(:\d{1,5})?\s*", re.IGNORECASE)  # certainly no requests

REQUEST = re.compile(
    r"""\s*(any|[pv]100|t4|a100|a30|a10g?|a40|l4|l40s?|h100|h200?|gh200|g?b200|b300|mi3[0-9]{2}x|a6000|[345]090
    |rtx-?[\w-]+|tpu-v[\w-]+)([-:\s].*)?|.*([,{\[+*!=]|\d[gt]b\b).*""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Certainly no one device: a product that the distribution of requests knows, or marks that only requests have."""

_SPELLING = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]{0,4}))?")


@constructor_hints
@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A device: a lower-case kind (`cpu`, `gpu`, `mps`, `xpu`, ...; other kinds are allowed) and an index.

    `str()` returns `kind:index`, and `Device.parse` reads it back. Vendor words are aliases: `cuda` and `rocm` mean
    `gpu`.

    Example:
        >>> import anyaccel as aa
        >>> aa.Device.parse("cuda")
        Device(kind='gpu', index=0)
        >>> str(aa.Device("gpu", 1))
        'gpu:1'
    """

    kind: str
    index: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not isinstance(self.index, int) or isinstance(self.index, bool):
            raise _malformed(f"{self.kind}:{self.index!r}")
        if ":" in self.kind:
            problem = f"the kind of a device, {self.kind!r}, has an index"
            raise DeviceParseError(problem, hint=f"write Device.parse({self.kind!r})")
        object.__setattr__(self, "kind", _split(f"{self.kind}:{self.index}")[0])

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def _repr_html_(self) -> str:
        from anyaccel.html import badge  # devices are used where nothing is displayed

        return str(badge(str(self)))

    @classmethod
    def parse(cls, value: Any) -> Device:
        """Return the device that `value` names.

        Args:
            value: Text such as `"gpu:1"`, `"cuda"` or `"cpu"`; a Device; or a framework's own device object, that is
                any object with `type` (str) and `index` (int or None).

        Raises:
            DeviceParseError: `value` does not name a device.

        Example:
            >>> import anyaccel as aa
            >>> aa.Device.parse("gpu:1"), aa.Device.parse("cpu")
            (Device(kind='gpu', index=1), Device(kind='cpu', index=0))
        """
        return value if isinstance(value, cls) else cls(*_split(spelling(value)))


def spelling(value: Any) -> str:
    """Return the lower-case text that names the device `value`; accept everything that `Device.parse` accepts.

    Raises:
        DeviceParseError: `value` is neither text nor a device object.
    """
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, Device):
        return str(value)
    kind, index = getattr(value, "type", None), getattr(value, "index", None)
    if isinstance(kind, str) and (index is None or isinstance(index, int)):
        return str(Device(kind.lower(), index or 0))  # canonical: a framework's word implies no vendor
    raise _malformed(repr(value), hint=f"write 'gpu:{value}', or 'cpu'" if type(value) is int and value >= 0 else "")


def vendor_of(text: str) -> str:
    """Return the vendor that the text of a device implies (`"nvidia"` for `"cuda:1"`), or `""`."""
    kind = text.partition(":")[0]
    return "apple" if kind == "mps" else ALIASES.get(kind, ("", ""))[1]


def _split(text: str) -> tuple[str, int]:
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise _malformed(repr(text))
    return ALIASES.get(match[1], (match[1], ""))[0], int(match[2] or 0)


def _malformed(shown: str, hint: str = "") -> DeviceParseError:
    available = "kind or kind:index, such as 'cpu', 'gpu:1' or 'mps'"
    hint = hint or "run `anyaccel devices` to list the devices of this machine"
    return DeviceParseError(f"{shown} does not name a device", available=available, hint=hint)
