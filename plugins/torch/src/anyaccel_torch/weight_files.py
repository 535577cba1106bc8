"""Names of weights as in a `state_dict`, and files that `torch.save` wrote of one, read without running their code."""

from __future__ import annotations

import errno
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from anyaccel.errors import ENVIRONMENT_ERRORS, StateError
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.host_transfer import as_array, readable
from anyaccel_torch.module_state import plain_names

_REFUSED = re.compile(r"GLOBAL (\S+)")
"""The class in the error of `torch.load` for one that it does not make."""
_PARTS = ("state_dict", "model_state_dict", "model", "module", "net")
"""Where training scripts keep the weights in a dict of more."""


def state_dict_names(module: nn.Module, named: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the name in a state for each name in `module.state_dict()`, without wrappers' prefixes.

    Shared tensors have several names in `state_dict()`.

    With Keras layers in the module they are the paths of its attributes, as on the other frameworks of Keras.

    Args:
        module: The module with the names.
        named: Its tensors, by their names in a state.
    """
    keys = {id(tensor): key for key, tensor in named.items()}
    tensors = {} if keras.outermost(module) else module.state_dict(keep_vars=True)
    plain = plain_names(module)
    names = {plain(name): keys[id(value)] for name, value in tensors.items() if id(value) in keys}
    with_names = set(names.values())
    return names | {key.partition("/")[2]: key for key in named if key not in with_names}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name, on a private mapping of it if its format allows that.

    Raises:
        StateError: it is damaged, or holds anything else than named tensors.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in load_tensors(path, mapped=True).items():
        try:
            arrays[name] = as_array(tensor.detach())
        except (TypeError, RuntimeError) as error:
            problem = f"{name} in {str(path)!r} is {tensor.dtype} ({tensor.layout}), which NumPy does not support"
            raise StateError(problem, hint="save it again as a dense tensor of numbers") from error
    return arrays


def load_tensors(path: Path, *, mapped: bool = False) -> Mapping[str, Tensor]:
    """Return the tensors of a file by name, on the CPU.

    Args:
        path: Path of the file.
        mapped: Whether values are read when they are used, if the file format allows it.

    Raises:
        StateError: it is damaged, or holds anything other than named tensors.
    """
    try:
        mapped = mapped and zipfile.is_zipfile(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ENVIRONMENT_ERRORS as error:
        if isinstance(error, OSError) and error.errno == errno.EINVAL:  # a place before the start of a file cut short
            raise _unreadable(path, error) from error
        raise
    except Exception as error:  # of many kinds: archives, bytes, and what torch refuses to make
        raise _unreadable(path, error) from error
    if not isinstance(tensors, Mapping):
        raise StateError(
            f"{str(path)!r} holds a {type(tensors).__name__}, not names and tensors",
            hint="save it again with torch.save(model.state_dict(), 'weights.pt')",
        )
    others = [str(name) for name, value in tensors.items() if not isinstance(value, Tensor)]
    if others:
        part = next((name for name in _PARTS if isinstance(tensors.get(name), Mapping)), "NAME")
        loaded = f"torch.load({str(path)!r}, weights_only=True)[{part!r}]"
        raise StateError(
            f"{str(path)!r} holds more than names and tensors: {', '.join(others[:10])}",
            hint=f"pass its part with the weights: load_weights({loaded})",
        )
    return {str(name): value for name, value in tensors.items()}


def write_weights(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file that `torch.load(path, weights_only=True)` reads as a `state_dict`."""
    torch.save({name: readable(array) for name, array in arrays.items()}, path)


def _unreadable(path: Path, error: Exception) -> StateError:
    refused = _REFUSED.search(str(error))
    if refused is None:
        problem = f"{str(path)!r} cannot be read as a torch file: {type(error).__name__}: {first_line(error)}"
        return StateError(problem, hint="copy or download it again")
    return StateError(
        f"{str(path)!r} holds more than tensors: a {refused[1]}, which would need code to be run",
        hint="if you trust the file, load it with torch yourself, and call load_weights(model.state_dict())",
    )
