"""Sequential: modules one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from anyaccel import rng
from anyaccel.adapter import Applied
from anyaccel.reference.arrays import Array
from anyaccel.reference.module import Module, traced
from anyaccel.segment import TensorSpec


class Joined(MutableMapping[str, Array]):
    """Several mappings as one, in which `name` of the part `0` is called `0.name`. Writing goes to the parts."""

    def __init__(self, parts: Mapping[str, MutableMapping[str, Array]]) -> None:
        self._parts = parts

    def _at(self, name: str) -> tuple[MutableMapping[str, Array], str]:
        part, _, rest = name.partition(".")
        return self._parts[part], rest

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
        return (f"{part}.{name}" for part, values in self._parts.items() for name in values)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))


def below(values: Mapping[str, Array], part: str) -> dict[str, Array]:
    """The values of one part of a `Joined`, by their names there."""
    return {name.partition(".")[2]: value for name, value in values.items() if name.partition(".")[0] == part}


class Sequential(Module):
    """Modules one after the other; a module that stands in several places is the same one, with the same parameters.

    The first may take several inputs, each gives its outputs to the next. Values are called `INDEX.NAME`.
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = layers
        places = {id(layer): str(index) for index, layer in reversed(list(enumerate(layers)))}
        self._names = [places[id(layer)] for layer in layers]
        self.parameters = Joined({name: layers[int(name)].parameters for name in dict.fromkeys(self._names)})
        self.buffers = Joined({name: layers[int(name)].buffers for name in dict.fromkeys(self._names)})
        self.dtype = next((layer.dtype for layer in layers if layer.dtype is not None), None)

    @property
    def is_built(self) -> bool:
        """Whether all layers are."""
        return all(layer.is_built for layer in self.layers)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Build each layer for what the one before gives."""
        for name, layer in zip(self._names, self.layers, strict=True):
            if not layer.is_built:
                layer.build(inputs, rng.key(seed, name))
            inputs = traced(layer, inputs)

    def apply(
        self,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        *,
        train: bool,
        key: int,
    ) -> Applied:
        """Through all layers, and back."""
        tape, after, values = [], dict(buffers), inputs
        for index, (name, layer) in enumerate(zip(self._names, self.layers, strict=True)):
            mine = rng.key(key, index) if train else key
            applied = layer.apply(below(parameters, name), below(after, name), values, train=train, key=mine)
            after.update({f"{name}.{inner}": value for inner, value in (applied.buffers or {}).items()})
            tape.append((name, applied.pullback))
            values = applied.outputs

        def pullback(cotangents: tuple[Array, ...]) -> tuple[dict[str, Array], Sequence[Array]]:
            gradients: dict[str, Array] = {}
            flow: Sequence[Array] = cotangents
            for name, back in reversed(tape):
                found, flow = back(tuple(flow))
                for inner, gradient in found.items():
                    full = f"{name}.{inner}"
                    gradients[full] = gradients[full] + gradient if full in gradients else gradient
            return gradients, flow

        return Applied(values, pullback, after if train else None)
