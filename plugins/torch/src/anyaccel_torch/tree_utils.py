"""Containers of torch objects: the tensors in them, and the same container with other contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from anyaccel.errors import MoveError


def tensors_in(obj: Any) -> Iterator[Any]:
    """The tensors that a tensor, module, optimizer (its parameters), dict, list or tuple holds; of others, none."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from chain(obj.parameters(), obj.buffers())
    elif isinstance(obj, torch.optim.Optimizer):
        yield from chain.from_iterable(group["params"] for group in obj.param_groups)
    elif isinstance(obj, (Mapping, list, tuple)):
        for item in obj.values() if isinstance(obj, Mapping) else obj:
            yield from tensors_in(item)


def mapped(obj: Any, fn: Callable[[Any], Any]) -> Any:
    """A dict, list, tuple or named tuple with `fn` applied to its items; the same object where nothing changed."""
    if not isinstance(obj, (Mapping, list, tuple)):
        return obj
    before = list(obj.values() if isinstance(obj, Mapping) else obj)
    after = [fn(item) for item in before]
    if all(a is b for a, b in zip(after, before, strict=True)):
        return obj
    if hasattr(obj, "_make"):
        return obj._make(after)
    make: Callable[[Any], Any] = type(obj)
    return make(zip(obj, after, strict=True) if isinstance(obj, Mapping) else after)


def check_dtypes(obj: Any, where: object, lacking: frozenset[str]) -> None:
    """Nothing, where no tensor in `obj` is of a dtype in `lacking`.

    Raises:
        MoveError: one is; the message says that `where` cannot hold it.
    """
    for name in {str(tensor.dtype).removeprefix("torch.") for tensor in tensors_in(obj)} & lacking if lacking else ():
        raise MoveError(f"{where} cannot hold {name}", available="moves keep dtypes", hint="cast it first: .float()")
