"""What a module holds, by name: torch's own view of it, or, where Keras layers are in it, what these hold beside."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from anyaccel.errors import MoveError
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line, telling


def parts(module: nn.Module) -> list[nn.Module]:
    """The module and every module in it, once."""
    found = dict.fromkeys(module.modules())
    return [*found, *(part for _, part in keras.contents(module).parts if part not in found)]


def parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by name, those that are shared under their first; not what is a parameter for Keras's sake only."""
    if not keras.outermost(module):
        return dict(module.named_parameters())
    return keras.contents(module).parameters


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """What the module keeps beside its parameters: persistent buffers, and what Keras calls not trainable."""
    if not keras.outermost(module):
        return _persistent("", module, recurse=True)
    found = keras.contents(module)
    kept = [_persistent(f"{path}." if path else "", part, recurse=False) for path, part in found.parts]
    return {name: buffer for named in kept for name, buffer in named.items()} | found.states


def _persistent(prefix: str, module: nn.Module, *, recurse: bool) -> dict[str, Tensor]:
    own = dict(module.named_buffers(recurse=recurse))
    kept = module.state_dict(keep_vars=True) if own else {}
    return {f"{prefix}{name}": buffer for name, buffer in own.items() if name in kept}


def states(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that no gradient changes, but a forward pass may: Keras keeps its buffers so."""
    return list(keras.contents(module).states.values())


def seeds(module: nn.Module) -> list[nn.Parameter]:
    """Those of the `states` that Keras draws its random numbers from."""
    return keras.contents(module).seeds


def bring(module: nn.Module, device: torch.device) -> None:
    """Let what torch's `to` may miss in Keras layers hold its values on a device; the objects stay the same.

    Raises:
        MoveError: values cannot change places in this way, as with torch's `meta`.
    """
    for tensor in _hidden(module):
        if tensor.device != device:
            _carry(tensor, device, type(module).__name__)


def _carry(tensor: Tensor, device: torch.device, name: str) -> None:
    with telling(f"{name} on {device}"):
        value = tensor.detach().to(device)
    try:
        tensor.data = value
    except RuntimeError as error:
        asked = f"{name} cannot be moved to {device}: {first_line(error)}"
        there = "Keras's variables hold on to the tensors that they have, and these cannot become ones of that device"
        raise MoveError(
            asked, available=there, hint="make the model inside keras.device(...) of that device"
        ) from error


def _hidden(module: nn.Module) -> Iterator[Tensor]:
    found = keras.contents(module)
    yield from found.parameters.values()
    yield from found.states.values()
    for _, part in found.parts:
        yield from part.buffers(recurse=False)
