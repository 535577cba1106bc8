"""What an optimizer keeps under one name, as tensors: numbers, text, and containers of these and of tensors."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_STRUCTURE = ".json"
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple}


def is_number(value: Any) -> bool:
    """Whether a value is a plain number or a truth value."""
    return isinstance(value, (bool, int, float))


def encode(key: str, value: Any) -> dict[str, Tensor]:
    """A value as tensors by name.

    A tensor is itself; a number is a scalar in 64 bits in host memory. Text, and a list, tuple, deque or dict of all
    these, is text in JSON (`KEY.json`, bytes in UTF-8), with its tensors beside it (`KEY.0`, ...).

    Raises:
        TypeError: it holds another object, or a parameter; or the key is no text or has a slash.
    """
    if not isinstance(key, str) or "/" in key:
        raise TypeError(f"the name {key!r}")
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return {key: value}
    if is_number(value):
        return {key: torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)}
    tensors: list[Tensor] = []
    text = json.dumps(_plain(value, tensors)).encode()
    parts = {f"{key}.{i}": tensor for i, tensor in enumerate(tensors)}
    return {f"{key}{_STRUCTURE}": torch.frombuffer(bytearray(text), dtype=torch.uint8), **parts}


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON: a pair of its kind and its content."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_plain(item, tensors) for item in value]]
    if type(value) is deque:
        return ["deque", [value.maxlen, [_plain(item, tensors) for item in value]]]
    if isinstance(value, dict):
        return ["dict", [[_plain(name, tensors), _plain(item, tensors)] for name, item in value.items()]]
    raise TypeError(type(value).__name__)


def names_of(slots: Iterable[str]) -> set[str]:
    """The names under which values were encoded."""
    slots = set(slots)
    structures = {slot.removesuffix(_STRUCTURE) for slot in slots if slot.endswith(_STRUCTURE)}
    return structures | {slot for slot in slots - _parts(slots, structures) if not slot.endswith(_STRUCTURE)}


def _parts(slots: set[str], structures: set[str]) -> set[str]:
    split = {slot: slot.rpartition(".") for slot in slots}
    return {slot for slot, (name, _, last) in split.items() if name in structures and last.isdigit()}


def decode(slots: Mapping[str, Tensor], like: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Values by name, as copies on `device`.

    Args:
        slots: what `encode` gave.
        like: values of the same names, which say what was a number and what a scalar tensor; may lack some. Scalars in
            64 bits are numbers then.
        device: where tensors go.
    """
    values: dict[str, Any] = {}
    for name in names_of(slots):
        if name in slots:
            values[name] = _scalar_or_tensor(slots[name], like.get(name), device)
        else:
            plain = json.loads(bytes(slots[f"{name}{_STRUCTURE}"].cpu().tolist()))
            values[name] = _rebuilt(plain, [_copied(slots[f"{name}.{i}"], device) for i in _numbers(slots, name)])
    return values


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, copy=True)


def _scalar_or_tensor(tensor: Tensor, like: Any, device: torch.device) -> Any:
    wide = tensor.ndim == 0 and tensor.dtype in (torch.float64, torch.int64, torch.bool)
    if wide and not isinstance(like, Tensor):
        return tensor.item()
    if is_number(like) and tensor.ndim == 0:
        return type(like)(tensor.item())
    return _copied(tensor, like.device if isinstance(like, Tensor) else device)


def _rebuilt(plain: Any, tensors: Sequence[Tensor]) -> Any:
    kind, content = plain
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]([_rebuilt(item, tensors) for item in content])
    if kind == "deque":
        return deque((_rebuilt(item, tensors) for item in content[1]), content[0])
    if kind == "dict":
        return {_rebuilt(name, tensors): _rebuilt(item, tensors) for name, item in content}
    return tensors[content] if kind == "tensor" else content


def _numbers(slots: Mapping[str, Tensor], name: str) -> range:
    """Numbers of the tensors that are beside the text of a value."""
    return range(sum(1 for slot in slots if slot.rpartition(".")[0] == name and slot.rpartition(".")[2].isdigit()))
