"""Messages: plain values between replicas whose framework gathers arrays of one size. For plugins."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np

_LEAST_BYTES = 256
"""Messages are of so many bytes, or twice, four times and so on: frameworks prepare for each size once."""


def gather_plain(value: Any, gather: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
    """Return the plain values that all replicas give, by rank: as JSON, lengths first. See `ReplicaGroup.gather`.

    Args:
        value: Value of this replica.
        gather: The arrays of all replicas, [replicas, ...], given that of this one, of the same shape and dtype in all.

    Raises:
        TypeError: it is not plain.
    """
    message = np.frombuffer(to_bytes(value), np.uint8)
    lengths = gather(np.array([len(message)], np.int32)).ravel()
    padded = np.zeros(max(_LEAST_BYTES, 1 << (int(lengths.max()) - 1).bit_length()), np.uint8)
    padded[: len(message)] = message
    texts = [row[:length].tobytes() for row, length in zip(gather(padded), lengths, strict=True)]
    return [from_bytes(text) for text in texts]


def to_bytes(value: Any) -> bytes:
    """Return a plain value as JSON.

    Raises:
        TypeError: it is not plain.
    """
    return json.dumps(value, default=_as_text).encode()


def from_bytes(text: bytes) -> Any:
    """Return the value of `to_bytes`."""
    return json.loads(text, object_hook=_from_text)


def _as_text(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"replicas exchange plain values, not {type(value).__name__}")


def _from_text(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value
