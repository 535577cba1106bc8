"""Checks of arguments at the public entry points. Each returns the value, or raises an error with the name and an
example.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from anyaccel.errors import AnyaccelError
from anyaccel.printable import printable

Error = type[AnyaccelError]
Fits = Callable[[Any], object]


def shown(value: object, longest: int = 200) -> str:
    """Return the `repr` of any value as printable text, cut to `longest` characters. Never raises."""
    try:
        whole = repr(value)
    except Exception as error:  # an int of more digits than Python prints, or a user's own __repr__
        whole = f"<{type(value).__name__}, {type(error).__name__} in repr>"
    return printable(whole if len(whole) <= longest else f"{whole[: longest - 1]}\N{HORIZONTAL ELLIPSIS}")


def check(error: Error, where: str, name: str, value: Any, fits: Fits, wanted: str, example: object) -> Any:
    """Return `value` if `fits` accepts it; an exception in it means no. `example` is a valid value, as code."""
    try:
        if fits(value):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise _refused(error, where, name, value, wanted, example)


def _refused(error: Error, where: str, name: str, value: Any, wanted: str, example: object) -> AnyaccelError:
    return error(f"{where}{name}={shown(value)} is not {wanted}", hint=f"write {name}={example}")


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python, NumPy or another library, and no bool."""
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except (TypeError, ValueError, OverflowError):
        return False


def flag(error: Error, where: str, name: str, value: Any) -> bool:
    """Return True or False; refuse anything else, because text such as `"false"` would be true."""
    if isinstance(value, bool):
        return value
    raise _refused(error, where, name, value, "True or False", True)


def text(error: Error, where: str, name: str, value: Any, wanted: str = "text", example: str = "'NAME'") -> str:
    """Return text that is not empty."""
    try:
        if isinstance(value, str) and value and value.encode():
            return str(value)
    except UnicodeEncodeError:
        pass
    raise _refused(error, where, name, value, wanted, example)


def integer(error: Error, where: str, name: str, value: Any, least: int, example: int | None = None) -> int:
    """Return a Python int from any integer, from `least` to the largest of 64 bits."""
    if is_integer(value) and least <= operator.index(value) < 2**63:
        return operator.index(value)
    example = max(least, 1) if example is None else example
    raise _refused(error, where, name, value, f"an int of at least {least}", example)


def number(error: Error, where: str, name: str, value: Any, fits: Fits, wanted: str, example: object) -> Any:
    """Return a finite real number that fits."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and fits(value):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise _refused(error, where, name, value, wanted, example)


def mapping(error: Error, where: str, name: str, value: Any, example: str = "{'NAME': ...}") -> dict[str, Any]:
    """Return a new dict with text keys; empty for None."""
    value = {} if value is None else value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise _refused(error, where, name, value, "a dict with text keys", example)
