"""Dtypes that the Apple GPU lacks, told before anything is moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from anyaccel.errors import MoveError
from anyaccel_torch.error_translation import first_line

if TYPE_CHECKING:
    import torch

# What is closest to a dtype that is lacking, and how a tensor, a module and a NumPy array are brought to it.
_CLOSEST = {
    "float64": ("float32", "tensor.float()", "model.float()"),
    "complex128": ("complex64", "tensor.to(torch.complex64)", "model.to(torch.complex64)"),
}
_OTHER = ("float32", "tensor.float()", "model.float()")


def check(obj: Any, where: object, lacking: frozenset[str]) -> None:
    """Nothing, where every tensor in a tensor, module, or dict, list or tuple of such can be on the Apple GPU.

    Raises:
        MoveError: one cannot; names it, its dtype and the remedy.
    """
    for what, in_module, tensor in _named(obj, ""):
        name = str(tensor.dtype).removeprefix("torch.")
        why = "" if name in lacking else refusal(tensor.dtype)
        if name in lacking or why:
            _, for_tensor, for_module = _CLOSEST.get(name, _OTHER)
            raise MoveError(
                f"{what or 'a tensor'} is {name}, which {where} cannot hold",
                available=why or _there(name),
                hint=f"convert it first: {for_module if in_module else for_tensor}",
            )


def check_array(dtype: Any, where: object, lacking: frozenset[str]) -> None:
    """The same for NumPy's dtype of an array.

    Raises:
        MoveError: MPS lacks it.
    """
    if dtype.name in lacking:
        raise MoveError(
            f"an array of {dtype.name} was given, which {where} cannot hold",
            available=_there(dtype.name),
            hint=f"convert it first: array.astype({_CLOSEST.get(dtype.name, _OTHER)[0]!r})",
        )


@cache
def refusal(dtype: torch.dtype) -> str:
    """Why this torch on this macOS cannot make a tensor of a dtype, in its own words; `""` if it can, or has no MPS.

    The dtypes that MPS lacks differ between versions of both: bfloat16 and the 8-bit floats came one by one.
    """
    import torch

    try:
        torch.empty(0, dtype=dtype, device="mps")
    except TypeError as error:
        return first_line(error)
    except Exception:  # no MPS here: whatever is to be said of that, it is not about the dtype
        return ""
    return ""


def _there(name: str) -> str:
    return f"its closest is {_CLOSEST.get(name, _OTHER)[0]}; moves keep dtypes"


def _named(obj: Any, path: str) -> Iterator[tuple[str, bool, Any]]:
    """What each tensor in `obj` is called, whether it is a module's, and the tensor."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield path, False, obj
    elif isinstance(obj, torch.nn.Module):
        owner = f"{type(obj).__name__}{' ' + path if path else ''}"
        for word, named in (("parameter", obj.named_parameters()), ("buffer", obj.named_buffers())):
            for name, tensor in named:
                yield f"{word} {name!r} of {owner}", True, tensor
    elif isinstance(obj, (Mapping, list, tuple)):
        for key, item in obj.items() if isinstance(obj, Mapping) else enumerate(obj):
            yield from _named(item, f"{path or 'item '}[{key!r}]")
