"""Keras layers and models that run on JAX, as models: their variables get the trained values in place."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras  # type: ignore[import-untyped, import-not-found, unused-ignore]

from anyaccel import rng
from anyaccel.adapter import attributes_key
from anyaccel.segment import TensorSpec
from anyaccel_jax.models.base import Arrays, Model, outputs_of, zeros


class KerasView(Model):
    """A Keras layer or model as pure functions.

    Trainable variables are the parameters, the others buffers; both go by the attributes that lead to them
    (`layers.0.kernel`), as with other frameworks under Keras. Random numbers in training follow from the key, not from
    the states of the model's seed generators. Losses that the model adds by itself (regularizers) enter the gradients.

    Args:
        layer: the layer or model, which is changed by `build` and `write` only.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._read()

    def __repr__(self) -> str:
        return type(self.layer).__name__

    def _read(self) -> None:
        self._trained = _named(self.layer, self.layer.trainable_variables)
        self._others = _named(self.layer, self.layer.non_trainable_variables)
        generators = {id(one.state) for one in _parts(self.layer) if isinstance(one, keras.random.SeedGenerator)}
        self._random = [name for name, one in self._others.items() if id(one) in generators]
        built = self.is_built
        self.parameters = {name: one.value for name, one in self._trained.items()} if built else {}
        self.buffers = {name: one.value for name, one in self._others.items()} if built else {}

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return bool(self.layer.built) and all(one.value is not None for one in self.layer.variables)

    @property
    def dtype(self) -> str | None:
        """The dtype in which the layer computes, which is that of its inputs."""
        return str(self.layer.compute_dtype)

    @property
    def layout(self) -> tuple[str, str]:
        """What the first and the last layer say, of a single layer or a Sequential."""
        layers = [one for one in _in_order(self.layer) if not _is_elementwise(one)]
        first, last = (str(getattr(one[0], "data_format", "")) if one else "" for one in (layers[:1], layers[-1:]))
        return first, last

    @property
    def mixes(self) -> str:
        """BatchNormalization that trains, wherever it is."""
        layer = keras.layers.BatchNormalization
        found = any(isinstance(one, layer) and one.trainable for one in _parts(self.layer))
        return "BatchNormalization" if found else ""

    @property
    def cache_key(self) -> Any:
        """Plain attributes of all parts; other objects count as themselves."""
        parts = ((path, one) for path, one in _everything(self.layer, "", {}) if isinstance(one, keras.Layer))
        return attributes_key(parts, lambda _: _BOOKKEEPING, lambda one: isinstance(one, _TOLD))

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """As in `Model`, by a call with zeros; initializers that have no seed of the user's get one from `seed`."""
        if self.is_built:
            return
        kept = random.getstate()  # Keras takes the seeds of what it makes on the way from Python's generator
        random.seed(seed)
        try:
            for number, one in enumerate(_initializers(self.layer)):
                one.seed = rng.key(seed, number) % 2**31
            self.layer(*self._packed(zeros(inputs, 2)), training=False)
        finally:
            random.setstate(kept)
        self._read()

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        drawn = {name: _state(key, i, buffers[name]) for i, name in enumerate(self._random) if train}
        values, variables = {**parameters, **buffers, **drawn}, {**self._trained, **self._others}
        pairs = [(variables[name], value) for name, value in values.items()]
        # As `stateless_call` does it; but that calls `call` past `__call__`, which knows what `call` takes.
        with keras.StatelessScope(state_mapping=pairs, collect_losses=train) as scope:
            outputs = self.layer(*self._packed(inputs), training=train)
            added = list(self.layer.losses) if train else []
            lasting = {n: scope.get_current_value(one) for n, one in self._others.items() if n not in drawn}
        if not train:
            return outputs, None
        return _carrying(outputs_of(outputs), added), {**buffers, **lasting}

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Into the layer's own variables."""
        for there, values in ((self._trained, parameters), (self._others, buffers)):
            for name, variable in there.items():
                variable.assign(values[name])
        super().write(parameters, buffers)

    def mapped(self, fn: Any) -> Any:
        """The layer itself."""
        super().mapped(fn)
        return self.layer

    def _packed(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Inputs as positional arguments: a functional model, or one that takes a list, takes several as one."""
        if len(inputs) == 1:
            return inputs
        if type(self.layer).__module__.startswith("keras.") and getattr(self.layer, "input", None) is not None:
            return [keras.tree.pack_sequence_as(self.layer.input, list(inputs))]
        known = [one for name, one in inspect.signature(self.layer.call).parameters.items()]
        positional = [one for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        several = any(one.kind is one.VAR_POSITIONAL for one in known)
        wanted = [one for one in positional if one.name not in ("training", "mask")]
        return inputs if several or len(wanted) >= len(inputs) else [list(inputs)]


def _state(key: Any, number: int, like: Any) -> Any:
    """The state of a seed generator, from a key."""
    return jax.random.bits(jax.random.fold_in(key, number), like.shape).astype(like.dtype)


@jax.custom_vjp
def _bringing(output: Any, added: Any) -> Any:
    """The output; on the way back, the gradient of what the model adds to the total is 1."""
    return output


_bringing.defvjp(lambda output, added: (output, added), lambda added, back: (back, jnp.ones_like(added)))


def _carrying(outputs: tuple[Any, ...], added: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs, the first floating one of which brings along the gradient of the losses that the model adds."""
    first = next((i for i, one in enumerate(outputs) if jnp.issubdtype(one.dtype, jnp.floating)), None)
    if first is None or not added:
        return outputs
    whole = sum(jnp.sum(one) for one in added)
    return (*outputs[:first], _bringing(outputs[first], whole), *outputs[first + 1 :])


# -- names -----------------------------------------------------------------------------------------------------------


def _named(layer: Any, variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by the path of attributes that leads to each, in Keras's order."""
    paths = {id(one): path for path, one in _everything(layer, "", {}) if isinstance(one, keras.Variable)}
    named: dict[str, Any] = {}
    for number, variable in enumerate(variables):
        path = paths.get(id(variable), f"variables.{number}")
        name, again = path, 2
        while name in named:
            name, again = f"{path}_{again}", again + 1
        named[name] = variable
    return named


def _parts(layer: Any) -> Iterator[Any]:
    return (one for _, one in _everything(layer, "", {}))


def _everything(obj: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Everything of Keras that an object holds, once, with the attributes that lead to it."""
    if id(obj) in seen:
        return
    seen[id(obj)] = obj  # held, so that no other object gets its id meanwhile
    yield path, obj
    for key, child in _children(obj):
        word = key.lstrip("_")
        yield from _everything(child, f"{path}.{word}" if path else word, seen)


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((str(key), child) for key, child in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(obj))
    elif isinstance(obj, keras.random.SeedGenerator):
        yield "state", obj.state
    elif isinstance(obj, keras.Layer):
        if _is_made_of_layers(obj):
            yield "layers", list(obj.layers)
        yield from sorted(vars(obj).items(), key=lambda item: _rank(item[0]))


def _rank(key: str) -> int:
    """The user's own attributes before private ones, and what every Keras layer has last."""
    return 2 if key in _BOOKKEEPING else int(key.startswith("_"))


_TOLD = (keras.Layer, keras.Variable, keras.random.SeedGenerator)
_BOOKKEEPING = frozenset(vars(keras.Layer()))


def _is_made_of_layers(layer: Any) -> bool:
    """Whether a Keras model is Sequential or functional: then it has its layers in order, and no names for them."""
    return any(base.__name__ in ("Sequential", "Functional") for base in type(layer).__mro__)


def _in_order(layer: Any) -> list[Any]:
    return [part for one in layer.layers for part in _in_order(one)] if isinstance(layer, keras.Sequential) else [layer]


def _is_elementwise(layer: Any) -> bool:
    return isinstance(
        layer, (keras.layers.Activation, keras.layers.ReLU, keras.layers.Dropout, keras.layers.InputLayer)
    )


def _initializers(layer: Any) -> list[Any]:
    """The initializers that draw their numbers and were given no seed."""
    found = [one for one in _parts(layer) if isinstance(one, keras.Initializer) and hasattr(one, "seed")]
    return [one for one in found if one.get_config().get("seed", 0) is None]
