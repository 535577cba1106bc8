"""Keras layers that run on torch: they are modules, but keep values, seeds and sublayers where torch does not look.

Keras is never imported here: without that import, no model can be a Keras model.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from anyaccel.adapter.layer_introspection import LayerLibrary, seeded_host_generators, unique_names
from anyaccel.distributions import check_library


class TorchLayers(LayerLibrary):
    """Keras on torch, whose layers hold torch's modules and are held by them."""

    def has_children(self, obj: Any) -> bool:
        """Return whether an object is of a class with `children`: of a module, too."""
        return isinstance(obj, nn.Module) or super().has_children(obj)

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        """Yield the contents of a part; for a module that is not a layer, its submodules."""
        is_plain = isinstance(obj, nn.Module) and not self.is_layer(obj)
        return obj.named_children() if is_plain else super().children(obj)

    def attributes(self, part: Any) -> Mapping[str, Any]:
        """Return attributes and submodules, except those that every module has and Keras's copies for torch."""
        held = {**vars(part), **dict(part.named_children())}
        return {name: value for name, value in held.items() if name not in _module_attributes()}


@cache
def _module_attributes() -> frozenset[str]:
    return frozenset(vars(nn.Module())) | {"_torch_params"}


def library() -> TorchLayers:
    """Return Keras if it is imported and runs on torch, otherwise a library that nothing belongs to."""
    module: Any = sys.modules.get("keras")
    return _library(module if hasattr(module, "Layer") and module.config.backend() == "torch" else None)


@cache
def _library(module: Any) -> TorchLayers:
    return TorchLayers(module)


def outermost(module: nn.Module) -> list[Any]:
    """Return the Keras layers in a module that are in no other Keras layer; the module itself if it is one."""
    keras = library()
    found: list[Any] = []
    seen: set[nn.Module] = set()
    waiting = [module] if keras.module is not None else []
    while waiting:
        part = waiting.pop()
        if part in seen:  # shared, or a child that refers to its parent
            continue
        seen.add(part)
        if keras.is_layer(part):
            found.append(part)
        else:
            waiting += reversed(list(part.children()))
    if found:  # in a module that is no Keras layer itself, so that the registry does not see Keras
        check_library("anyaccel-torch", "keras")
    return found


def unbuilt(module: nn.Module) -> list[Any]:
    """Return the outermost Keras layers that have no weights yet."""
    return [layer for layer in outermost(module) if not layer.built]


def unbuilt_dtype(module: nn.Module) -> str | None:
    """Return the dtype of the future weights of unbuilt Keras layers; None if all are built."""
    return library().unbuilt_dtype(module) if unbuilt(module) else None


class Contents(NamedTuple):
    """The contents of a module with Keras layers, by the attributes that lead there, such as `layers.0.kernel`.

    Attributes:
        modules: Every module in it, itself included.
        parameters: Trainable and frozen parameters.
        states: Moving statistics and seeds, which Keras stores as parameters, too.
        seeds: The states that random numbers are drawn from.
    """

    modules: list[tuple[str, nn.Module]]
    parameters: dict[str, nn.Parameter]
    states: dict[str, nn.Parameter]
    seeds: list[nn.Parameter]


def contents(module: nn.Module) -> Contents:
    """Return the contents of a module; nothing if no Keras layer is in it."""
    layers, keras = outermost(module), library()
    if not layers:
        return Contents([], {}, {}, [])
    variables = {id(variable.value): variable.value for layer in layers for variable in layer.variables}
    named: dict[int, tuple[str, nn.Parameter]] = {}
    modules: list[tuple[str, nn.Module]] = []
    trainable: set[int] = set()
    seeds: list[nn.Parameter] = []
    for path, part in keras.walk(module):
        if isinstance(part, nn.Module):
            modules.append((path, part))
            # not Keras's own method, which makes an unbuilt layer remember that it has no variables
            for name, value in nn.Module.named_parameters(part, recurse=False):
                named.setdefault(id(value), (f"{path}.{name}" if path else name, value))
                trainable.add(id(value))
            if keras.is_layer(part):  # what it created as such; `trainable_variables` is empty for a frozen layer
                created: Any = getattr(part, "_trainable_variables", part.trainable_variables)
                trainable.update(id(variable.value) for variable in created)
        elif keras.is_random(part):
            seeds.append(part.state.value)
        elif keras.is_variable(part) and id(part.value) in variables:
            named.setdefault(id(part.value), (path, part.value))
    for i, value in enumerate(variables.values()):
        named.setdefault(id(value), (f"variables.{i}", value))
    unique = unique_names(named.values())
    parameters = {name: value for name, value in unique.items() if id(value) in trainable}
    return Contents(modules, parameters, {k: v for k, v in unique.items() if k not in parameters}, seeds)


def constrained_step(
    step: Callable[[], Any], constrained: Mapping[nn.Parameter, Callable[[Any], Any]]
) -> Callable[[], Any]:
    """Return a step of an optimizer, and then the constraints of the parameters that got a gradient, as Keras applies
    them.
    """
    device_scope = library().module.device

    def run() -> None:
        step()
        with torch.no_grad():
            for parameter, constraint in constrained.items():
                if parameter.grad is not None:
                    with device_scope(str(parameter.device)):
                        parameter.copy_(constraint(parameter))

    return run


@contextmanager
def quiet_saving() -> Iterator[None]:
    """Inside, Keras saves and copies models without the warning of NumPy 2 about how Keras 3.15 gives it arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning, "keras")
        yield


@contextmanager
def seeded_initialization(module: nn.Module, seed: int) -> Iterator[None]:
    """Inside, unbuilt Keras layers are initialized from a seed, except where an initializer has its own.

    The generators of Python and NumPy, which Keras draws seeds from, are as before afterwards.
    """
    if not unbuilt(module):
        yield
        return
    library().seed_initializers(module, seed)
    with seeded_host_generators(seed):
        yield
