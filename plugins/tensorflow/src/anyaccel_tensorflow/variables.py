"""The variables of tf.Modules and Keras layers: found, named by the attributes that lead to them, read and written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import tensorflow as tf

from anyaccel.adapter.layer_introspection import LayerLibrary, unique_names

COMPILED_ATTRIBUTES = ("train_function", "test_function", "predict_function")
"""What Keras compiles for `fit`, `evaluate` and `predict`, and compiles again where it is None."""


class ModelVariables(NamedTuple):
    """A model's variables by name: those that gradients train, and the others."""

    parameters: dict[str, Any]
    buffers: dict[str, Any]


class TensorFlowLayers(LayerLibrary):
    """Introspection of Keras layers, and of tf.Modules, tf.Variables and generators of TensorFlow's own."""

    hidden_prefixes = ("_self_", "_tf_")

    def is_variable(self, obj: Any) -> bool:
        """Whether an object is a variable of TensorFlow or Keras."""
        return isinstance(obj, tf.Variable) or super().is_variable(obj)

    def is_keras_variable(self, obj: Any) -> bool:
        """Whether an object is a Keras variable, which holds a tf.Variable."""
        return super().is_variable(obj)

    def is_random(self, obj: Any) -> bool:
        """Whether an object keeps the state of random numbers, in its attribute `state`."""
        return isinstance(obj, tf.random.Generator) or super().is_random(obj)

    def is_part(self, obj: Any) -> bool:
        """Whether an object may hold variables in its attributes."""
        return isinstance(obj, tf.Module) or super().is_part(obj)

    def skipped_attributes(self, part: Any) -> frozenset[str]:
        """Return the internal attributes of frameworks that do not affect the computation of a part."""
        hidden = frozenset(name for name in vars(part) if name.startswith(self.hidden_prefixes))
        return hidden | self.layer_attributes if self.is_layer(part) else hidden

    def is_listed(self, obj: Any) -> bool:
        """Whether an object is among the variables or parts of a model itself."""
        return self.is_variable(obj) or self.is_part(obj) or self.is_random(obj)


def keras() -> TensorFlowLayers:
    """Return Keras if it is imported, otherwise a library that nothing belongs to."""
    module = sys.modules.get("keras")
    return _layers_of(module if hasattr(module, "Layer") else None)


_layers_of = cache(TensorFlowLayers)


def tf_variable(variable: Any) -> tf.Variable:
    """Return the tf.Variable itself, which a Keras variable holds.

    Args:
        variable: A variable of TensorFlow, or an initialized one of Keras.
    """
    return variable.value if keras().is_keras_variable(variable) else variable


def read(variable: Any) -> tf.Tensor:
    """Return the value of a variable, on its device."""
    inner = tf_variable(variable)
    with tf.device(inner.device):
        return inner.read_value()


def write(variable: Any, value: Any) -> None:
    """Assign a value to a variable, which stays where it is."""
    inner = tf_variable(variable)
    with tf.device(inner.device):
        inner.assign(tf.identity(value))


def model_variables(model: Any, held: Iterable[tuple[str, Any]] | None = None) -> ModelVariables:
    """Return a built model's variables by the path of attributes that leads to each, without leading underscores.

    Parameters are those that gradients can train: the `trainable_variables` of a Keras layer, of other models the
    floating and complex variables that are `trainable`. All others are buffers.

    `held` is the result of `keras().walk(model)`, if the caller has it.
    """
    held = keras().walk(model) if held is None else held
    if keras().is_layer(model):
        named = keras().named(model, model.variables, held)
        trained = {id(variable) for variable in model.trainable_variables}
    else:
        pairs = ((path or "value", obj) for path, obj in held if keras().is_variable(obj))
        named = unique_names(pairs)
        trained = {id(variable) for variable in named.values() if variable.trainable}
    dtypes = {id(variable): tf.as_dtype(variable.dtype) for variable in named.values()}
    trained &= {key for key, dtype in dtypes.items() if dtype.is_floating or dtype.is_complex}
    parameters = {name: variable for name, variable in named.items() if id(variable) in trained}
    return ModelVariables(parameters, {name: v for name, v in named.items() if name not in parameters})


def variables_in(obj: Any) -> Iterator[Any]:
    """Return each variable once that a variable, module, layer, or container of these holds."""
    return (held for _, held in keras().walk(obj) if keras().is_variable(held))


def named_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """Return each module, layer and random generator once, `obj` itself among them if it is one, with the path to
    it.
    """
    return ((path, held) for path, held in keras().walk(obj) if keras().is_part(held) or keras().is_random(held))


def parts(obj: Any) -> Iterator[Any]:
    """Yield the parts of `named_parts` without the paths."""
    return (part for _, part in named_parts(obj))


def functions(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tf.functions among the attributes and methods of a module or layer, except those that Keras
    compiles.
    """
    kind = tf.types.experimental.PolymorphicFunction
    for name, value in vars(part).items():
        if isinstance(value, kind) and not (keras().is_layer(part) and name in COMPILED_ATTRIBUTES):
            yield name, value
    for cls in type(part).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, kind):
                yield name, value.__get__(part, type(part))
