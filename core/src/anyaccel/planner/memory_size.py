"""Amounts of memory as users write them: bytes, or text such as "20GiB"."""

from __future__ import annotations

from typing import Any

from anyaccel.arguments import integer
from anyaccel.errors import AnyaccelError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def memory_size(error: type[AnyaccelError], where: str, name: str, value: Any) -> int:
    """Bytes of a number, or of text such as "20GiB" or "500MB".

    Raises:
        AnyaccelError: an `error`, if it is neither.
    """
    if not isinstance(value, str):
        return integer(error, where, name, value, 0, 2**34)
    digits = value.strip().rstrip("abikmgtABIKMGT").strip()
    unit = _UNITS.get(value.strip()[len(digits) :].strip().upper())
    try:
        found = int(float(digits) * unit)  # type: ignore[operator]
    except (TypeError, ValueError, OverflowError):
        found = -1
    if found < 0:
        raise error(f"{where}{name}={value!r} is no size", hint="write bytes, or '20GiB' or '500MB'")
    return found
