"""The blocks of a model: the modules that are placed and streamed as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from torch import Tensor, nn

from anyaccel.errors import StateError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def find_blocks(model: nn.Module, no_split: Collection[str] = (), divided: Collection[str] = ()) -> list[str]:
    """Return the names of a model's blocks in registration order; blocks and `loose` tensors cover all tensors.

    A block is a module of a class in `no_split`, an element of a list of modules, or a module without submodules.
    Elements that are lists themselves are split too.

    Args:
        model: Model to split.
        no_split: Names of classes; those that a transformers model names are added.
        divided: Names of modules that are always split, if they have submodules.
    """
    classes = {*no_split, *(getattr(model, "_no_split_modules", None) or ())}
    names: dict[nn.Module, str] = {}
    for name in _blocks(model, "", classes, set(divided), False):
        names.setdefault(model.get_submodule(name), name)  # a module may be in several places
    return list(names.values())


def _blocks(
    module: nn.Module, name: str, classes: Collection[str], divided: Collection[str], is_element: bool
) -> Iterator[str]:
    has_tensors = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    if not has_tensors:
        return
    children = list(module.named_children())
    whole = type(module).__name__ in classes or (is_element and not isinstance(module, _CONTAINERS))
    if not children or (whole and name not in divided):
        yield name
        return
    inside = isinstance(module, _CONTAINERS)
    for key, child in children:
        yield from _blocks(child, f"{name}.{key}".lstrip("."), classes, divided, inside)


class Place(NamedTuple):
    """The place of a tensor: the dict `kind` (`"_parameters"` or `"_buffers"`) of a module; `name` is its full name."""

    module: nn.Module
    kind: str
    key: str
    name: str
    tensor: Tensor


def places(module: nn.Module, name: str = "") -> Iterator[Place]:
    """Yield every place of a tensor in a module with this name; a module in several places is visited once."""
    for path, inner in module.named_modules():
        for kind in ("_parameters", "_buffers"):
            for key, value in vars(inner)[kind].items():
                if value is not None:
                    yield Place(inner, kind, key, ".".join(filter(None, (name, path, key))), value)


def shared_tensors(model: nn.Module, blocks: Collection[str]) -> set[int]:
    """Return the ids of tensors that several blocks, or modules outside of all blocks, use."""
    names, users = set(blocks), dict[int, set[str]]()
    for place in places(model):
        users.setdefault(id(place.tensor), set()).add(block_around(place.name, names) or "")
    return {key for key, used in users.items() if len(used) > 1 or (used == {""} and names != {""})}


def block_around(name: str, blocks: Collection[str]) -> str | None:
    """Return the block that contains a tensor with this name, or None."""
    path = name.rpartition(".")[0]
    while path not in blocks and path:
        path = path.rpartition(".")[0]
    return path if path in blocks else None


def check_values(where: str, model: nn.Module) -> None:
    """Check that all tensors of a model have values.

    Raises:
        StateError: A tensor has no values.
    """
    for place in places(model):
        if place.tensor.device.type != "meta":
            continue
        if place.kind == "_buffers" and place.key in place.module._non_persistent_buffers_set:  # noqa: SLF001
            raise StateError(
                f"{where}the buffer {place.name} has no values, and no checkpoint contains it, because it is not "
                "persistent",
                hint="create the model with init_empty_weights(), which computes buffers (include_buffers=False); or "
                "register the buffer with persistent=True before you save the checkpoint",
            )
        raise StateError(
            f"{where}{place.name} has no values", hint="load a checkpoint with them: load_checkpoint_and_dispatch"
        )
