"""Strict reading of untrusted JSON: text that two readers could interpret differently is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse(text: bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises:
        ValueError: no JSON; or the same key twice in a dict, a number that is not finite, or too deep.
    """
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def canonical(value: Any) -> bytes:
    """Return a value as text that depends on nothing but the value.

    Raises:
        ValueError: too deep, or not finite.
        TypeError: not plain data.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not a finite number")
