"""The parameters, buffers and submodules of a module by name, including what Keras layers in it hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from anyaccel.errors import MoveError
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line, translate_errors


def submodules(module: nn.Module) -> list[nn.Module]:
    """Return the module and every module in it, each once."""
    known = dict.fromkeys(module.modules())
    return [*known, *(part for _, part in keras.contents(module).modules if part not in known)]


_OF_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Attributes in which `torch.compile` and wrappers of checkpoints keep a module."""


def plain_names(module: nn.Module) -> Callable[[str], str]:
    """Return a function from the name of a tensor to its name without wrappers such as `torch.compile` and DDP.

    Files then fit the module whether it is wrapped or not.
    """
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    inside = [path for path, part in module.named_modules() if isinstance(part, wrappers)]
    prefixes = [f"{path}.module." if path else "module." for path in reversed(inside)]  # the innermost first

    def plain(name: str) -> str:
        for prefix in prefixes:
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name.removeprefix(prefix)
        return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)

    return plain


def parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return trainable and frozen parameters by name, shared ones under their first name; without Keras's states."""
    if not keras.outermost(module):
        plain = plain_names(module)
        return {plain(name): parameter for name, parameter in module.named_parameters()}
    return keras.contents(module).parameters


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


def states(module: nn.Module) -> list[nn.Parameter]:
    """Return Keras's states: parameters that no gradient changes, but a forward pass may."""
    return list(keras.contents(module).states.values())


def seed_states(module: nn.Module) -> list[nn.Parameter]:
    """Return those of the `states` that Keras draws its random numbers from."""
    return keras.contents(module).seeds


def move_keras_variables(module: nn.Module, device: torch.device) -> None:
    """Move in place the variables of Keras layers that `Module.to` may miss.

    Raises:
        MoveError: values cannot be moved in place, as to torch's `meta`.
    """
    for tensor in _keras_tensors(module):
        if tensor.device != device:
            name = type(module).__name__
            with translate_errors(f"{name} on {device}"):
                value = tensor.detach().to(device)
            try:
                tensor.data = value
            except RuntimeError as error:
                raise MoveError(
                    f"{name} cannot be moved to {device} in place, as required for variables of Keras: "
                    f"{first_line(error)}",
                    hint="create the model inside keras.device(...) of that device",
                ) from error


def _keras_tensors(module: nn.Module) -> Iterator[Tensor]:
    contents = keras.contents(module)
    yield from contents.parameters.values()
    yield from contents.states.values()
    for _, part in contents.modules:
        yield from part.buffers(recurse=False)
