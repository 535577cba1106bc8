"""Checks for dtypes that the Apple GPU does not support, before anything is moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from anyaccel.errors import MoveError
from anyaccel_torch.error_translation import first_line

if TYPE_CHECKING:
    import torch

# By unsupported dtype: the closest one, and how to convert a tensor and a module to it.
_CLOSEST = {
    "float64": ("float32", "tensor.float()", "model.float()"),
    "complex128": ("complex64", "tensor.to(torch.complex64)", "model.to(torch.complex64)"),
}
_DEFAULT = ("float32", "tensor.float()", "model.float()")


def check_tensors(obj: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check the dtypes of all tensors in a tensor, a module, or a dict, list or tuple of such.

    Raises:
        MoveError: one is unsupported; names it and its dtype.
    """
    for tensor_name, in_module, tensor in _named_tensors(obj, ""):
        dtype = str(tensor.dtype).removeprefix("torch.")
        reason = "" if dtype in unsupported else refusal(tensor.dtype)
        if dtype in unsupported or reason:
            closest, tensor_call, module_call = _CLOSEST.get(dtype, _DEFAULT)
            raise MoveError(
                f"{tensor_name or 'a tensor'} is {dtype}, which {device} does not support{reason and f': {reason}'}",
                available=closest,
                hint=f"convert it first: {module_call if in_module else tensor_call}",
            )


def check_array(dtype: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check the dtype of a NumPy array.

    Raises:
        MoveError: it is unsupported.
    """
    if dtype.name in unsupported:
        closest = _CLOSEST.get(dtype.name, _DEFAULT)[0]
        raise MoveError(
            f"the array is {dtype.name}, which {device} does not support",
            available=closest,
            hint=f"convert it first: array.astype({closest!r})",
        )


@cache
def refusal(dtype: torch.dtype) -> str:
    """Torch's own message if it cannot make a tensor of a dtype on MPS; `""` if it can, or has no MPS.

    Support of bfloat16 and the 8-bit floats depends on the versions of torch and macOS.
    """
    import torch

    try:
        torch.empty(0, dtype=dtype, device="mps")
    except TypeError as error:
        return first_line(error)
    except Exception:  # no MPS here, which is not about the dtype
        return ""
    return ""


def _named_tensors(obj: Any, path: str) -> Iterator[tuple[str, bool, Any]]:
    """The name of each tensor in `obj`, whether it is a module's, and the tensor."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield path, False, obj
    elif isinstance(obj, torch.nn.Module):
        owner = f"{type(obj).__name__}{' ' + path if path else ''}"
        for kind, named in (("parameter", obj.named_parameters()), ("buffer", obj.named_buffers())):
            for name, tensor in named:
                yield f"{kind} {name!r} of {owner}", True, tensor
    elif isinstance(obj, (Mapping, list, tuple)):
        for key, item in obj.items() if isinstance(obj, Mapping) else enumerate(obj):
            yield from _named_tensors(item, f"{path or 'item '}[{key!r}]")
