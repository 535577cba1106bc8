"""Modules one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from anyaccel import rng
from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend.module import Module, Values, traced
from anyaccel.numpy_backend.sim_array import Array
from anyaccel.segment import TensorSpec

Parts = Sequence[tuple[str, Module]]
"""Modules in their order, each with the prefix of its values' names."""


def in_turn(parts: Parts, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
    """Apply modules in turn, each to what the one before gives; a prefix that comes twice means the same values."""
    now, flow, tape = dict(values), inputs, []
    for index, (prefix, module) in enumerate(parts):
        own = {name[len(prefix) :]: value for name, value in now.items() if name.startswith(prefix)}
        applied = module.apply(own, flow, train=train, key=rng.key(key, index) if train else 0)
        now.update({prefix + name: value for name, value in (applied.buffers or {}).items()})
        tape.append((prefix, applied.pullback))
        flow = applied.outputs

    def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], Sequence[Array]]:
        gradients: dict[str, Array] = {}
        back: Sequence[Array] = cotangents
        for prefix, pull in reversed(tape):
            found, back = pull(tuple(back))
            for name, gradient in found.items():
                full = prefix + name
                gradients[full] = gradients[full] + gradient if full in gradients else gradient
        return gradients, back

    return VjpResult(flow, pullback, {name: now[name] for name in now if now[name] is not values[name]} or None)


class Sequential(Module):
    """Modules one after the other; a module that stands in several places is the same one, with the same parameters.

    The first may take several inputs. Values are called `INDEX.NAME`.
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = layers
        first = {id(layer): index for index, layer in reversed(list(enumerate(layers)))}
        self.parts = [(f"{first[id(layer)]}.", layer) for layer in layers]
        self.parameters = Joined({prefix: layer.parameters for prefix, layer in self.parts})
        self.buffers = Joined({prefix: layer.buffers for prefix, layer in self.parts})
        self.dtype = next((layer.dtype for layer in layers if layer.dtype is not None), None)

    @property
    def is_built(self) -> bool:
        """Whether all layers are."""
        return all(layer.is_built for layer in self.layers)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Build each layer for what the one before gives."""
        for prefix, layer in self.parts:
            if not layer.is_built:
                layer.build(inputs, rng.key(seed, prefix))
            inputs = traced(layer, inputs)

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Through all layers, and back."""
        return in_turn(self.parts, values, inputs, train=train, key=key)


class Joined(MutableMapping[str, Array]):
    """Several mappings as one, with a prefix for the names of each; writing goes to the parts."""

    def __init__(self, parts: Mapping[str, MutableMapping[str, Array]]) -> None:
        self._parts = parts

    def _at(self, name: str) -> tuple[MutableMapping[str, Array], str]:
        first, dot, rest = name.partition(".")
        return self._parts[first + dot], rest

    def __getitem__(self, name: str) -> Array:
        part, rest = self._at(name)
        return part[rest]

    def __setitem__(self, name: str, value: Array) -> None:
        part, rest = self._at(name)
        part[rest] = value

    def __delitem__(self, name: str) -> None:
        part, rest = self._at(name)
        del part[rest]

    def __iter__(self) -> Iterator[str]:
        return (prefix + name for prefix, values in self._parts.items() for name in values)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))
