"""Moving tensors and variables to other devices, with a check of where they landed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyaccel.errors import DeviceUnavailableError, MoveError
from anyaccel_tensorflow import runtime_config, variables
from anyaccel_tensorflow.device_policy import hard_placement
from anyaccel_tensorflow.error_translation import translate_errors
from anyaccel_tensorflow.object_location import is_optimizer, parse_device_name
from anyaccel_tensorflow.variables import keras, tf_variable

_DTYPES_WITHOUT_VALUES = (tf.string, tf.resource, tf.variant)


@contextmanager
def device_scope(name: str) -> Iterator[None]:
    """Inside, everything is created on a device and nowhere else."""
    runtime_config.allow_memory_growth()
    with hard_placement(), tf.device(name):
        yield


def is_on(tensor: Any, name: str) -> bool:
    """Whether a tensor or tf.Variable is on the device that TensorFlow calls `name`."""
    return bool(tensor.device) and parse_device_name(tensor.device) == parse_device_name(name)


def move_tensor(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Return the tensor on a device; the same object if it is on that device already.

    Raises:
        MoveError: its dtype has no values that a device could hold.
        DeviceUnavailableError: it was placed elsewhere, or the device does not exist.
        OutOfMemoryError: the device has no room for it.
    """
    if is_on(tensor, name):
        return tensor
    if tensor.dtype in _DTYPES_WITHOUT_VALUES:
        raise MoveError(
            f"a tensor of dtype {tensor.dtype.name} cannot be moved to {name}",
            cause="devices can store only numbers and booleans",
            hint="encode it as numbers first",
        )
    runtime_config.allow_memory_growth()
    with translate_errors(f"a {tensor.dtype.name} tensor of shape {tensor.shape.as_list()} on {name}"), tf.device(name):
        moved = tf.identity(tensor)
    if not is_on(moved, name):
        raise DeviceUnavailableError(
            f"TensorFlow put a tensor on {moved.device} instead of {name}",
            available=", ".join(device.name for device in tf.config.list_logical_devices()),
            hint="run `anyaccel devices` to list the available devices, and the reasons for missing ones",
        )
    return moved


def relocate(obj: Any, name: str) -> Any:
    """Return a module, layer, optimizer or variable with its variables on a device: the same object, except for a
    tf.Variable.

    All variables are created before the first is replaced, so that an error changes nothing.

    Raises:
        MoveError: a variable is held where it cannot be replaced, or a traced `tf.function` uses the old ones.
    """
    if isinstance(obj, tf.Variable):
        return obj if is_on(obj, name) else _copy(obj, name)
    if is_optimizer(obj):
        _replace(obj.variables, name)
        return obj
    if not (keras().is_part(obj) or keras().is_variable(obj)):
        raise MoveError(
            f"TensorFlow cannot place a {type(obj).__module__}.{type(obj).__name__}",
            available="tensors, variables, tf.Modules, Keras layers and optimizers, and containers of these",
            hint="place its tensors one by one, or create it inside anyaccel.scope(device, 'tensorflow')",
        )
    held = list(variables.variables_in(obj))
    optimizer: Any = getattr(obj, "optimizer", None)
    held += optimizer.variables if is_optimizer(optimizer) else []
    if all(is_on(tf_variable(variable), name) for variable in held):
        return obj
    for part in variables.parts(obj):
        if isinstance(part, tf.random.Generator):
            raise MoveError(
                f"{type(obj).__name__} has a tf.random.Generator, which cannot be moved",
                hint="create the model inside anyaccel.scope(device, 'tensorflow')",
            )
        for label, function in variables.functions(part):
            if function.experimental_get_tracing_count():
                raise MoveError(
                    f"{type(part).__name__} cannot be moved: its tf.function {label!r} was traced with the "
                    "current variables and would continue to use them",
                    cause="TensorFlow cannot move a variable, so a moved model gets new ones",
                    hint="place the model before it is called for the first time, or create it inside "
                    "anyaccel.scope(device, 'tensorflow')",
                )
    swaps = _replace(held, name)
    for part in variables.parts(obj):
        _swap_attributes(part, swaps)
    # Let Keras compile `fit`, `evaluate` and `predict` again: the compiled functions use the old variables
    for part in variables.parts(obj):
        for label in variables.COMPILED_ATTRIBUTES:
            if keras().is_layer(part) and getattr(part, label, None) is not None:
                setattr(part, label, None)
    return obj


def _copy(variable: tf.Variable, name: str) -> tf.Variable:
    value = move_tensor(variables.read(variable), name)
    label = variable.name.partition(":")[0]
    with translate_errors(f"variable {label} {variable.shape.as_list()} on {name}"), device_scope(name):
        copy = tf.Variable(value, trainable=variable.trainable, name=label, dtype=variable.dtype, shape=variable.shape)
    if not is_on(copy, name):
        raise DeviceUnavailableError(f"TensorFlow put variable {label} on {copy.device} instead of {name}")
    return copy


Swaps = Mapping[int, tuple[tf.Variable, tf.Variable]]
"""By the id of a variable to replace: this variable, held so that the id stays its own, and the new one."""


def _replace(held: Iterable[Any], name: str) -> Swaps:
    """Put variables on a device: those of Keras at once; for others, what is to be swapped."""
    pairs = [(v, _copy(tf_variable(v), name)) for v in held if not is_on(tf_variable(v), name)]
    swaps = {}
    for variable, copy in pairs:
        if keras().is_keras_variable(variable):
            # Neither TensorFlow nor Keras can move a variable, and Keras has no public way to hold another tf.Variable.
            # Whoever shares the Keras variable asks it for `value`.
            before, variable._value = variable.value, copy  # noqa: SLF001
            if hasattr(before, "_unique_id"):  # by which optimizers know the variables that they were built for
                copy._unique_id = before._unique_id  # noqa: SLF001
            if variable.value is not copy:
                raise MoveError(
                    f"variable {variable.path} cannot be moved: this version of Keras stores its values in another way",
                    hint="build the model inside anyaccel.scope(device, 'tensorflow'), and report this to the "
                    "authors of anyaccel-tensorflow",
                )
        else:
            swaps[id(variable)] = (variable, copy)
    return swaps


def _swap_attributes(part: Any, swaps: Swaps) -> None:
    """Replace tf.Variables among the attributes of a module or layer, including those in lists, tuples and dicts."""
    if not keras().is_part(part):
        return
    for key, value in list(vars(part).items()):
        if not key.startswith(keras().hidden_prefixes):
            after = _swapped(value, swaps)
            if after is not value:
                setattr(part, key, after)


def _swapped(value: Any, swaps: Swaps) -> Any:
    """Return the value; a plain new container where something in it changed: TensorFlow's own would note that it
    changed.
    """
    if id(value) in swaps:
        return swaps[id(value)][1]
    if isinstance(value, Mapping):
        mapping = {key: _swapped(item, swaps) for key, item in value.items()}
        return mapping if any(mapping[key] is not value[key] for key in mapping) else value
    if isinstance(value, (list, tuple)):
        items = [_swapped(item, swaps) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else items if isinstance(value, list) else tuple(items)
    return value
