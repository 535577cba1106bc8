"""Arrays of MLX, wherever they are, and their dtypes by NumPy's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyaccel import Device
from anyaccel.errors import MoveError


def arrays_in(obj: Any) -> Iterator[Any]:
    """The arrays of an array, a model (which is a dict of its parts), an optimizer, or a tree of these."""
    import mlx.core as mx

    parts = getattr(obj, "state", obj)  # the state of a model is the model
    if isinstance(obj, mx.array):
        yield obj
    elif isinstance(parts, (dict, list, tuple)):
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from arrays_in(part)


def name_of(array: Any) -> str:
    """The dtype of an array by NumPy's name, such as `"float32"`."""
    return str(array.dtype).rpartition(".")[2].rstrip("_")


def dtype_on(device: Device, name: str) -> Any:
    """MLX's dtype of a name; MoveError where MLX or the device lacks it."""
    import mlx.core as mx

    found = getattr(mx, "bool_" if name == "bool" else name, None)
    if not isinstance(found, mx.Dtype) or (name == "float64" and device.kind == "mps"):
        raise MoveError(
            f"MLX has no {name} on {device}", available="float64 is on the CPU only", hint="convert it first"
        )
    return found
