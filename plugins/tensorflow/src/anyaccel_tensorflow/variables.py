"""The variables of tf.Modules and Keras layers: found, named by where they are held, read and written."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import tensorflow as tf

COMPILED = ("train_function", "test_function", "predict_function")
"""What Keras compiles for `fit`, `evaluate` and `predict`, and makes anew where it is None."""


class Held(NamedTuple):
    """A model's variables by name: those that gradients train, and the others."""

    parameters: dict[str, Any]
    buffers: dict[str, Any]


def keras() -> Any:
    """The keras module where somebody has imported it; else None, and nothing can be of it."""
    found = sys.modules.get("keras")
    return found if hasattr(found, "Layer") else None


def is_layer(obj: Any) -> bool:
    """Whether an object is a Keras layer or model."""
    return keras() is not None and isinstance(obj, keras().Layer)


def is_keras_variable(obj: Any) -> bool:
    """Whether an object is a Keras variable, which holds a tf.Variable."""
    return keras() is not None and isinstance(obj, keras().Variable)


def is_variable(obj: Any) -> bool:
    """Whether an object is a variable of TensorFlow or Keras."""
    return isinstance(obj, tf.Variable) or is_keras_variable(obj)


def is_random(obj: Any) -> bool:
    """Whether an object holds the state of random numbers in `state`."""
    return isinstance(obj, tf.random.Generator) or (
        keras() is not None and isinstance(obj, keras().random.SeedGenerator)
    )


def is_part(obj: Any) -> bool:
    """Whether an object may hold variables in its attributes."""
    return isinstance(obj, tf.Module) or is_layer(obj)


def inner(variable: Any) -> tf.Variable:
    """The tf.Variable itself, which a Keras variable holds.

    Args:
        variable: of TensorFlow, or an initialised one of Keras.
    """
    return variable.value if is_keras_variable(variable) else variable


def read(variable: Any) -> tf.Tensor:
    """The value of a variable, on its device."""
    held = inner(variable)
    with tf.device(held.device):
        return held.read_value()


def write(variable: Any, value: Any) -> None:
    """Let a variable hold a value, where it is."""
    held = inner(variable)
    with tf.device(held.device):
        held.assign(tf.identity(value))


def held(model: Any) -> Held:
    """A built model's variables by the path of attributes that leads to each, without leading underscores.

    Parameters are those that gradients can train: of Keras the `trainable_variables`, of others floating variables
    that are `trainable`. All others are buffers.
    """
    named = _named(model)
    if is_layer(model):
        trained = {id(variable) for variable in model.trainable_variables}
    else:
        trained = {id(variable) for variable in named.values() if variable.trainable}
    trained &= {id(variable) for variable in named.values() if tf.as_dtype(variable.dtype).is_floating}
    parameters = {name: variable for name, variable in named.items() if id(variable) in trained}
    return Held(parameters, {name: variable for name, variable in named.items() if name not in parameters})


def _named(model: Any) -> dict[str, Any]:
    found = {id(variable): (path, variable) for path, variable in walk(model)}
    if is_layer(model):  # Keras knows which are its own, and their order
        own = enumerate(model.variables)
        found = {id(v): (found[id(v)][0] if id(v) in found else f"variables.{i}", v) for i, v in own}
    named: dict[str, Any] = {}
    for path, variable in found.values():
        name, again = path or "value", 2
        while name in named:
            name, again = f"{path}_{again}", again + 1
        named[name] = variable
    return named


def walk(obj: Any) -> Iterator[tuple[str, Any]]:
    """Each variable once that a variable, module, layer, or container of these holds, and the path to it."""
    return ((path, found) for path, found in _everything(obj, "", {}) if is_variable(found))


def parts(obj: Any) -> Iterator[Any]:
    """Each module, layer and random generator once, among them `obj` itself if it is one."""
    return (found for _, found in named_parts(obj))


def named_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """The same with the path to each."""
    return ((path, found) for path, found in _everything(obj, "", {}) if is_part(found) or is_random(found))


def functions(part: Any) -> Iterator[tuple[str, Any]]:
    """The tf.functions among the attributes and methods of a module or layer, but for those that Keras compiles."""
    kind = tf.types.experimental.PolymorphicFunction
    for key, value in vars(part).items():
        if isinstance(value, kind) and not (is_layer(part) and key in COMPILED):
            yield key, value
    for cls in type(part).__mro__:
        for key, value in vars(cls).items():
            if isinstance(value, kind):
                yield key, value.__get__(part, type(part))


def _everything(obj: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    if id(obj) in seen:
        return
    seen[id(obj)] = obj  # held, so that no other object gets its id meanwhile
    yield path, obj
    for key, child in () if is_variable(obj) else _children(obj):
        yield from _everything(child, f"{path}.{key.lstrip('_')}" if path else key.lstrip("_"), seen)


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((str(key), child) for key, child in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(obj))
    elif is_random(obj):
        yield "state", obj.state
    elif is_part(obj):
        if is_functional(obj) or (is_layer(obj) and isinstance(obj, keras().Sequential)):  # these have no other names
            yield "layers", list(obj.layers)
        yield from sorted(vars(obj).items(), key=lambda item: _rank(obj, item[0]))


def _rank(obj: Any, key: str) -> int:
    """The user's own attributes before private ones, and what the frameworks keep for themselves last."""
    if key.startswith(("_self_", "_tf_")) or (is_layer(obj) and key in _bookkeeping()):
        return 2
    return int(key.startswith("_"))


@cache
def _bookkeeping() -> frozenset[str]:
    """What every Keras layer has among its attributes."""
    return frozenset(vars(keras().Layer()))


def is_functional(layer: Any) -> bool:
    """Whether a Keras layer is a functional model; Keras names that class nowhere public."""
    return is_layer(layer) and any(base.__name__ == "Functional" for base in type(layer).__mro__)


def incidental(part: Any) -> frozenset[str]:
    """The attributes of a part that frameworks keep for themselves, and that say nothing of what it computes."""
    kept = {name for name in vars(part) if name.startswith(("_self_", "_tf_"))}
    return frozenset(kept | _bookkeeping()) if is_layer(part) else frozenset(kept)


def is_told(value: Any) -> bool:
    """Whether a value is among the variables or parts of a model by itself."""
    return is_variable(value) or is_part(value) or is_random(value)
