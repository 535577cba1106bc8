"""The extra state of modules (`get_extra_state`) as tensors by name, so that a state includes and restores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyaccel.errors import StateError
from anyaccel_torch.module_state import plain_names

_NAME = "_extra_state"  # as torch calls it in a state_dict


def extra_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors, arrays, numbers and text in the extra state of all submodules, by name.

    Raises:
        StateError: an extra state has something else; names the submodule.
    """
    return {
        name: leaf
        for path, part in _with_extra_state(module)
        for name, leaf in _leaves(path, part.get_extra_state(), type(part).__name__)
    }


def load_extra(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Restore the extra state of every submodule, in its current form; `arrays` has all of the names."""
    for path, part in _with_extra_state(module):
        part.set_extra_state(_rebuilt(path, part.get_extra_state(), arrays))


def _with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    plain = plain_names(module)
    for path, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            yield plain(f"{path}.{_NAME}" if path else _NAME), part


def _items(value: Any) -> list[tuple[Any, Any]] | None:
    """Keys and items of a dict, list or tuple; None for anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, (list, tuple)) else None


def _leaves(path: str, value: Any, owner: str) -> Iterator[tuple[str, Tensor]]:
    items = _items(value)
    if items is not None:
        for key, item in items:
            yield from _leaves(f"{path}.{key}", item, owner)
    elif isinstance(value, Tensor):
        yield path, value.detach()
    elif isinstance(value, (np.ndarray, np.generic, bool, int, float, complex, str)):
        # text is its bytes in UTF-8; numbers have 64 bits
        array = np.frombuffer(value.encode(), np.uint8).copy() if isinstance(value, str) else np.array(value)
        yield path, torch.as_tensor(array)
    elif value is not None:
        raise StateError(
            f"the extra state of {owner} has a {type(value).__name__!r} object at {path}, which a state cannot contain",
            available="tensors, arrays, numbers, text, and dicts and lists of these",
            hint="return these from get_extra_state",
        )


def _rebuilt(path: str, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return a value of the form of `value` with the numbers of `arrays`."""
    items = _items(value)
    if items is not None:
        rebuilt = {key: _rebuilt(f"{path}.{key}", item, arrays) for key, item in items}
        return rebuilt if isinstance(value, dict) else type(value)(rebuilt.values())
    if value is None:
        return None
    array = np.asarray(arrays[path])
    if isinstance(value, Tensor):
        return torch.from_numpy(array.copy()).to(value.device)
    if isinstance(value, np.ndarray):
        return array.astype(value.dtype)
    convert: Callable[[Any], Any] = type(value)
    return array.tobytes().decode() if isinstance(value, str) else convert(array.item())
