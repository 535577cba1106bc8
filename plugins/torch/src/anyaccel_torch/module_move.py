"""Move modules with `Module.to`, but keep parameters the same objects and shared tensors shared.

`Module.to` creates new parameters if the types of two devices have nothing in common, as on a chip that is torch's
PrivateUse1: shared weights become several, and an existing optimizer keeps the old ones. It duplicates a buffer that
two modules share on every device.
"""

# ruff: noqa: SLF001  (registries of modules, which have no public name)

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class _Shared:
    """A tensor of a module before it is moved: where it is registered, and what Python code has hung on it."""

    tensor: Tensor
    places: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    hooks: dict[str, Any] = field(default_factory=dict)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def move_module(module: nn.Module, target: torch.device) -> nn.Module:
    """Move a module in place; warn where its parameters could not stay the objects that they were."""
    shared: dict[int, _Shared] = {}
    for part in module.modules():
        for registry in (part._parameters, part._buffers):
            for name, tensor in registry.items():
                if tensor is not None:
                    shared.setdefault(id(tensor), _Shared(tensor)).places.append((registry, name))
    for entry in shared.values():
        fields = {"_is_param", *getattr(type(entry.tensor), "__annotations__", ())}  # of its class, such as its values
        entry.attributes = {name: value for name, value in vars(entry.tensor).items() if name not in fields}
        entry.hooks = {name: getattr(entry.tensor, name) for name in _HOOKS}
    with torch.inference_mode(False):  # what is moved there could never be trained
        try:
            moved = module.to(target)
        except RuntimeError as error:  # `set_swap_module_params_on_conversion(True)`, and a parameter is in use
            if "Couldn't swap" not in str(error) or not torch.__future__.get_swap_module_params_on_conversion():
                raise
            torch.__future__.set_swap_module_params_on_conversion(False)
            try:
                moved = module.to(target)
            finally:
                torch.__future__.set_swap_module_params_on_conversion(True)
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    for part in recurrent:  # which lists its parameters once more, with weak references
        part._flat_weights, part._flat_weight_refs = [], []
    replaced = [entry for entry in shared.values() if not _restore(entry)]
    for part in recurrent:
        part._init_flat_weights()
    if replaced:
        warnings.warn(
            f"{type(module).__name__} has new parameters on {target}, because {len(replaced)} of the old ones "
            "are in use: an existing optimizer still has the old ones. Hint: place a model before you compute with "
            "it, and create the optimizer afterwards",
            UserWarning,
            stacklevel=7,
        )
    return moved


def _restore(entry: _Shared) -> bool:
    """Register one tensor everywhere, the old object if it is a parameter; False if that cannot be."""
    registry, name = entry.places[0]
    old, new = entry.tensor, registry[name]
    is_kept = not isinstance(old, nn.Parameter) or new is old
    if not is_kept:
        try:
            for tensor in [registry[name] for registry, name in entry.places]:
                if tensor is not new:
                    tensor.grad = None
            torch.utils.swap_tensors(old, new)  # type: ignore[no-untyped-call]
            new, is_kept = old, True
        except RuntimeError:  # weak references, or a graph of operations that is kept
            pass
    for registry, name in entry.places:
        registry[name] = new
    if isinstance(new, nn.Parameter):  # attributes and hooks are lost where a tensor takes the place of another
        for name, value in entry.attributes.items():
            new.__dict__.setdefault(name, value)
        for name, hooks in entry.hooks.items():
            if hooks:  # the dict is the same, as handles remove hooks from it; autograd is told of it again
                setattr(new, name, None)
                setattr(new, name, hooks)
    return is_kept
