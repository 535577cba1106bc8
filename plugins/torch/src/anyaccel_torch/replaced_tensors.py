"""Call modules with other tensors, and restore the original ones afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def tensor_places(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module by the name of each place; a module that has several names counts with its
    first.
    """
    places: dict[str, Tensor] = {}
    for path, inner in module.named_modules():
        for own in (inner._parameters, inner._buffers):  # noqa: SLF001  (named_parameters leaves tied ones out)
            places |= {f"{path}.{key}".lstrip("."): tensor for key, tensor in own.items() if tensor is not None}
    return places


def tensor_names(module: nn.Module) -> dict[str, str]:
    """Return the first name of the tensor in each place of `tensor_places`: one for those that are tied."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensor_places(module).items()}


def call_with(
    module: nn.Module, tensors: dict[str, Tensor], names: Mapping[str, str], *args: Any, **kwargs: Any
) -> Any:
    """Return the result of a module with these tensors.

    Args:
        module: The module to call.
        tensors: Tensors by first name; by default the module's own. One that the call replaces is replaced here, and
            not in the module.
        names: Output of `tensor_names`. Torch's own search for tied tensors (`tie_weights=True`) replaces those of a
            module in two places twice, and restores its first replacement.
        args, kwargs: Arguments of the call.
    """
    named = {name: tensors[first] for name, first in names.items() if first in tensors}
    try:
        return torch.func.functional_call(module, named, args, kwargs, tie_weights=False)
    finally:
        tensors.update((name, tensor) for name, tensor in named.items() if name in tensors)
