"""The tensors in nested containers of torch objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from anyaccel.errors import MoveError
from anyaccel_torch.host_transfer import BFLOAT16, numpy_dtype


def tensors_in(obj: Any) -> Iterator[Any]:
    """Yield the tensors in a tensor, module, optimizer (its parameters), dict, list or tuple; none in other objects."""
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


def dtype_name(dtype: Any) -> str:
    """Return NumPy's name of a torch dtype; NumPy knows bfloat16 from now on."""
    name = str(dtype).removeprefix("torch.")
    return numpy_dtype(name).name if name == BFLOAT16 else name


def check_dtypes(obj: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check that no tensor in `obj` has a dtype that `device` cannot hold.

    Raises:
        MoveError: a tensor has a dtype in `unsupported`.
    """
    if not unsupported:
        return
    for name in {dtype_name(tensor.dtype) for tensor in tensors_in(obj)} & unsupported:
        raise MoveError(f"{device} cannot hold {name}, and a move keeps the dtype", hint="cast it first: .float()")
