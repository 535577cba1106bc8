"""The parameters, buffers and submodules of a module by name, including what Keras layers in it hold; and its move."""

# ruff: noqa: SLF001  (registries of modules, which have no public name)

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import MoveError
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line, translate_errors


def submodules(module: nn.Module) -> list[nn.Module]:
    """Return the module and every module in it, each once."""
    known = dict.fromkeys(module.modules())
    for _, part in keras.contents(module).modules:
        known.setdefault(part)
    return list(known)


_OF_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.|$)")
"""Attributes in which `torch.compile` and wrappers of checkpoints keep a module."""


def plain_names(module: nn.Module) -> Callable[[str], str]:
    """Return a function from the name of a tensor to its name without wrappers such as `torch.compile` and DDP.

    Files then fit the module whether it is wrapped or not.
    """
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    prefixes: list[str] = []  # the innermost first
    for path, part in module.named_modules():
        if isinstance(part, wrappers):
            prefixes.insert(0, f"{path}.module." if path else "module.")

    def plain(name: str) -> str:
        for prefix in prefixes:
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name.removeprefix(prefix)
        return _OF_WRAPPERS.sub("", name).removeprefix(".")

    return plain


def parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return trainable and frozen parameters by name, shared ones under their first name; without Keras's states."""
    if keras.outermost(module):
        return keras.contents(module).parameters
    plain = plain_names(module)
    return {plain(name): parameter for name, parameter in module.named_parameters()}


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return persistent buffers by name, and the variables that Keras calls not trainable."""
    if not keras.outermost(module):
        return _persistent("", module, recurse=True)
    contents = keras.contents(module)
    named: dict[str, Tensor] = {}
    for path, part in contents.modules:
        named |= _persistent(f"{path}." if path else "", part, recurse=False)
    return named | contents.states


def _persistent(prefix: str, module: nn.Module, *, recurse: bool) -> dict[str, Tensor]:
    named = dict(module.named_buffers(recurse=recurse))
    if not named:
        return {}
    plain = plain_names(module)
    kept = {plain(name) for name in module.state_dict(keep_vars=True)}
    return {f"{prefix}{plain(name)}": buffer for name, buffer in named.items() if plain(name) in kept}


# -- Moves of a module -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shared:
    """A tensor of a module before it is moved: where it is registered, and what Python code has hung on it."""

    tensor: Tensor
    places: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    hooks: dict[str, Any] = field(default_factory=dict)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def move_module(module: nn.Module, target: torch.device) -> nn.Module:
    """Move a module in place; warn where its parameters could not stay the objects that they were.

    `Module.to` creates new parameters if the types of two devices have nothing in common, as on a chip that is torch's
    PrivateUse1: shared weights become several, and an existing optimizer keeps the old ones. It duplicates a buffer
    that two modules share on every device, and may miss variables of Keras layers.

    Raises:
        MoveError: values of Keras cannot be moved in place, as to torch's `meta`.
    """
    contents = keras.contents(module)
    of_keras: list[Tensor] = [*contents.parameters.values(), *contents.states.values()]
    for _, part in contents.modules:
        of_keras += part.buffers(recurse=False)
    for variable in of_keras:
        if variable.device != target:
            kind = type(module).__name__
            with translate_errors(f"{kind} on {target}"):
                value = variable.detach().to(target)
            try:
                variable.data = value
            except RuntimeError as error:
                raise MoveError(
                    f"{kind} cannot be moved to {target} in place, as required for variables of Keras: "
                    f"{first_line(error)}",
                    hint="create the model inside keras.device(...) of that device",
                ) from error
    shared: dict[int, _Shared] = {}
    future = torch.__future__  # settings by which `to` replaces parameters that are on the device already
    keeps_tensors = not (
        future.get_swap_module_params_on_conversion() or future.get_overwrite_module_params_on_conversion()
    )
    for part in module.modules():
        for registry in (part._parameters, part._buffers):
            for name, tensor in registry.items():
                if tensor is not None:
                    is_plain = type(tensor) in (Tensor, nn.Parameter)  # `to` may replace others
                    keeps_tensors = keeps_tensors and is_plain and tensor.device == target
                    shared.setdefault(id(tensor), _Shared(tensor)).places.append((registry, name))
    if keeps_tensors:  # it is there, and no tensor becomes another
        return module.to(target)
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
    n_replaced = sum(not _restore(entry) for entry in shared.values())
    for part in recurrent:
        part._init_flat_weights()
    if n_replaced:
        warnings.warn(
            f"{type(module).__name__} has new parameters on {target}, because {n_replaced} of the old ones "
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
