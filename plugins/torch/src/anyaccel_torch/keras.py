"""Keras layers that run on torch: they are modules, but keep values, seeds and sublayers where torch does not look.

Keras is never imported here: a model can be of it only where somebody has imported it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from anyaccel import rng

_Seen = dict[int, Any]  # by id; the objects are held, so that no id is given twice


class Contents(NamedTuple):
    """What a module that is, or holds, Keras layers has. Names are the attributes that lead there: `layers.0.kernel`.

    Attributes:
        modules: every module in it, itself among them, with its name.
        parameters: what gradients train, and what the user has frozen of it.
        states: what changes in other ways: moving statistics and seeds, which Keras keeps as parameters too.
        seeds: those of the states that random numbers are drawn from.
    """

    modules: list[tuple[str, nn.Module]]
    parameters: dict[str, nn.Parameter]
    states: dict[str, nn.Parameter]
    seeds: list[nn.Parameter]


def loaded() -> Any:
    """The keras module where somebody has imported it and it runs on torch, else None."""
    found: Any = sys.modules.get("keras")
    return found if hasattr(found, "Layer") and found.config.backend() == "torch" else None


def is_layer(obj: Any) -> bool:
    """Whether an object is a Keras layer or model."""
    return loaded() is not None and isinstance(obj, loaded().Layer)


def is_functional(layer: Any) -> bool:
    """Whether a Keras layer is a functional model; Keras names that class nowhere public."""
    return any(base.__name__ == "Functional" for base in type(layer).__mro__)


def is_loss(own: Any) -> bool:
    """Whether a loss of the user's is Keras's: a class derived from its Loss, an object of one, or a function."""
    if loaded() is None:
        return False
    base = loaded().losses.Loss
    own_class = own if isinstance(own, type) else type(own)
    return issubclass(own_class, base) or str(getattr(own, "__module__", "")).startswith("keras.src.losses.")


def is_optimizer(own: Any) -> bool:
    """Whether an optimizer of the user's is Keras's, a class or an object."""
    if loaded() is None:
        return False
    return issubclass(own if isinstance(own, type) else type(own), loaded().optimizers.Optimizer)


def outermost(module: nn.Module) -> list[Any]:
    """The Keras layers in a module that are in no other Keras layer; the module itself if it is one."""
    return list(dict.fromkeys(_outermost(module))) if loaded() is not None else []


def _outermost(module: nn.Module) -> Iterator[Any]:
    if is_layer(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


def unbuilt(module: nn.Module) -> list[Any]:
    """The outermost Keras layers that have no weights yet."""
    return [layer for layer in outermost(module) if not layer.built]


def contents(module: nn.Module) -> Contents:
    """What a module has, if Keras layers are in it; else all is empty."""
    tops = outermost(module)
    if not tops:
        return Contents([], {}, {}, [])
    own = {id(one.value): one.value for top in tops for one in top.variables}
    found: dict[int, tuple[str, nn.Parameter]] = {}
    parts: list[tuple[str, nn.Module]] = []
    trained: set[int] = set()
    seeds: list[nn.Parameter] = []
    for path, one in _everything(module, "", {}):
        if isinstance(one, nn.Module):
            parts.append((path, one))
            # not Keras's own method, which makes an unbuilt layer remember that it has no variables
            plain = {_joined(path, name): value for name, value in nn.Module.named_parameters(one, recurse=False)}
            found |= {id(value): (name, value) for name, value in plain.items() if id(value) not in found}
            trained.update(map(id, plain.values()), _made_to_train(one))
        elif isinstance(one, loaded().random.SeedGenerator):
            seeds.append(one.state.value)
        elif id(one.value) in own:
            found.setdefault(id(one.value), (path, one.value))
    for number, value in enumerate(own.values()):
        found.setdefault(id(value), (f"variables.{number}", value))
    named = _unique(found.values())
    parameters = {name: value for name, value in named.items() if id(value) in trained}
    return Contents(parts, parameters, {k: v for k, v in named.items() if k not in parameters}, seeds)


def _made_to_train(part: nn.Module) -> set[int]:
    """Ids of the values that a layer made to be trained; what is trained now says less: a layer may be frozen."""
    if not is_layer(part):
        return set()
    layer: Any = part
    return {id(one.value) for one in getattr(layer, "_trainable_variables", layer.trainable_variables)}


def _unique(found: Any) -> dict[str, nn.Parameter]:
    named: dict[str, nn.Parameter] = {}
    for path, value in found:
        name, again = path, 2
        while name in named:
            name, again = f"{path}_{again}", again + 1
        named[name] = value
    return named


# -- walking ---------------------------------------------------------------------------------------------------------


def _everything(obj: Any, path: str, seen: _Seen) -> Iterator[tuple[str, Any]]:
    """The modules, layers, Keras variables and seed generators that an object holds, once, and the path to each."""
    if id(obj) in seen:
        return
    seen[id(obj)] = obj
    if isinstance(obj, (nn.Module, loaded().Variable, loaded().random.SeedGenerator)):
        yield path, obj
    for key, child in _children(obj):
        yield from _everything(child, _joined(path, key.lstrip("_")), seen)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((str(key), child) for key, child in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(obj))
    elif isinstance(obj, loaded().random.SeedGenerator):
        yield "state", obj.state
    elif is_layer(obj):
        if is_functional(obj) or isinstance(obj, loaded().Sequential):  # these have no other names
            yield "layers", list(obj.layers)
        held = {**vars(obj), **dict(obj.named_children())}
        known = [item for item in held.items() if item[0] not in _of_torch()]
        yield from sorted(known, key=lambda item: 2 if item[0] in _of_keras() else int(item[0].startswith("_")))
    elif isinstance(obj, nn.Module):
        yield from obj.named_children()


@cache
def _of_torch() -> frozenset[str]:
    """What every module has among its attributes, and where Keras shows torch its variables under long names."""
    return frozenset(vars(nn.Module())) | {"_torch_params"}


@cache
def _of_keras() -> frozenset[str]:
    """What every Keras layer has among its attributes; its own come first."""
    return frozenset(vars(loaded().Layer(name="any")))


# -- building --------------------------------------------------------------------------------------------------------


@contextmanager
def seeded_initialization(module: nn.Module, seed: int) -> Iterator[None]:
    """Inside, unbuilt Keras layers get their weights from a seed, but for those whose initializer has one already.

    The generators of Python and NumPy, which Keras draws seeds from, go on as before afterwards.
    """
    if not unbuilt(module):
        yield
        return
    for path, one in list(_everything(module, "", {})):
        if is_layer(one) and not one.built:
            _reseed(one, rng.key(seed, path))
    kept = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


def _reseed(layer: Any, key: int) -> None:
    for name, value in vars(layer).items():
        if isinstance(value, loaded().Initializer) and _is_unseeded(value):
            value.seed = rng.key(key, name) % 2**31


def _is_unseeded(initializer: Any) -> bool:
    try:
        return hasattr(initializer, "seed") and initializer.get_config().get("seed", 0) is None
    except NotImplementedError:  # one of the user's own, which is asked for no configuration
        return False


def draw(seeds: Sequence[nn.Parameter], key: int) -> None:
    """Let the states of seed generators follow from a 64-bit key."""
    with torch.no_grad():
        for number, state in enumerate(seeds):
            state.copy_(torch.tensor([rng.key(key, "keras", number) % 2**31, 0], dtype=state.dtype))


# -- telling ---------------------------------------------------------------------------------------------------------


def unbuilt_dtype(module: nn.Module) -> str | None:
    """Dtype of the weights that an unbuilt layer will have; a model's own says nothing of its layers'."""
    for _, one in _everything(module, "", {}) if unbuilt(module) else ():
        if is_layer(one) and not hasattr(one, "layers"):
            return str(one.variable_dtype) if "float" in str(one.variable_dtype) else None
    return None


def data_format(layer: Any) -> tuple[str, str]:
    """As `Compute.data_format`: of a layer for images, or a Sequential that begins or ends with one."""
    layers = [one for one in _flat(layer) if not _is_elementwise(one)]
    first, last = (_format(end[0]) if end else "" for end in (layers[:1], layers[-1:]))
    return first, "" if layers and "Global" in type(layers[-1]).__name__ else last


def _flat(layer: Any) -> list[Any]:
    inner = layer.layers if isinstance(layer, loaded().Sequential) else []
    return [one for part in inner for one in _flat(part)] or [layer]


def _format(layer: Any) -> str:
    words = ("Conv", "Pooling", "UpSampling", "ZeroPadding", "Cropping")
    return str(getattr(layer, "data_format", "")) if any(word in type(layer).__name__ for word in words) else ""


def _is_elementwise(layer: Any) -> bool:
    return any(word in type(layer).__module__ for word in ("keras.src.layers.activations", "layers.regularization"))
