"""Buffers whose shape changes when their own module loads them, as in torch's observers and fake quantization."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import nn

from anyaccel.adapter.loadable_shapes import LoadableShapes
from anyaccel.segment import TensorSpec
from anyaccel_torch.module_state import plain_names

_PREFIX = "buffers/"  # of buffers in a state
Shape = tuple[int, ...]


class TorchLoadableShapes(LoadableShapes):
    """Values that modules with their own loading accept, such as observers."""

    def loadable_shapes(self, model: nn.Module, given: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the shapes that such modules can load, found with copies of them."""
        plain, shapes = plain_names(model), {name: spec.shape for name, spec in given.items()}
        return {
            (key := _key(plain, path, name)): given[key]
            for path, part in model.named_modules()
            if (wanted := _local(plain, path, part, shapes))
            for name in _taken(copy.deepcopy(part), wanted)
        }


def resize(module: nn.Module, shapes: Mapping[str, Shape]) -> None:
    """Give buffers that take them other shapes; their values are undefined then.

    They are other tensors: torch breaks one that it resizes in place while NumPy has a view of it.
    """
    plain = plain_names(module)
    for path, part in module.named_modules():
        for name, shape in _local(plain, path, part, shapes).items():
            setattr(part, name, part.get_buffer(name).new_empty(shape))


def _key(plain: Callable[[str], str], path: str, name: str) -> str:
    return _PREFIX + plain(f"{path}.{name}" if path else name)


def _local(plain: Callable[[str], str], path: str, part: nn.Module, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shapes for a module's own buffers that differ from theirs."""
    named = {name: (_key(plain, path, name), buffer) for name, buffer in part.named_buffers(recurse=False)}
    return {name: shapes[key] for name, (key, buffer) in named.items() if shapes.get(key, buffer.shape) != buffer.shape}


def _taken(probe: nn.Module, shapes: Mapping[str, Shape]) -> list[str]:
    """Return the buffers that have these shapes once a module, which this changes, has loaded a state with such."""
    state = probe.state_dict()  # with the versions of its parts, which decide what loading fills in
    state.update({name: probe.get_buffer(name).new_zeros(shape) for name, shape in shapes.items()})
    try:
        probe.load_state_dict(state)
    except RuntimeError:  # of torch, for a shape that the module does not take
        return []
    return [name for name, shape in shapes.items() if probe.get_buffer(name).shape == shape]
