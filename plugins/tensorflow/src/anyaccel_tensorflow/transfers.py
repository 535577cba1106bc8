"""Tensors and variables to other devices, never silently elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyaccel.errors import DeviceUnavailableError, MoveError
from anyaccel_tensorflow import runtime_config, variables
from anyaccel_tensorflow.device_policy import hard_placement
from anyaccel_tensorflow.error_translation import telling
from anyaccel_tensorflow.tree_utils import is_optimizer, parsed

_NO_VALUES = (tf.string, tf.resource, tf.variant)


@contextmanager
def on(name: str) -> Iterator[None]:
    """Inside, everything is made on a device and nowhere else."""
    runtime_config.begin()
    with hard_placement(), tf.device(name):
        yield


def is_on(tensor: Any, name: str) -> bool:
    """Whether a tensor or tf.Variable is on the device that TensorFlow calls `name`."""
    return bool(tensor.device) and parsed(tensor.device) == parsed(name)


def moved(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """The tensor on a device; the same object if it is there.

    Raises:
        MoveError: it has no values that a device could hold.
        DeviceUnavailableError: it landed elsewhere, or there is no such device.
        OutOfMemoryError: no room.
    """
    if is_on(tensor, name):
        return tensor
    if tensor.dtype in _NO_VALUES:
        raise MoveError(
            f"a tensor of {tensor.dtype.name} cannot be moved to {name}",
            available="devices hold numbers and booleans",
            hint="encode it as numbers first",
        )
    runtime_config.begin()
    with telling(f"a {tensor.dtype.name} tensor of shape {tensor.shape.as_list()} to {name}"), tf.device(name):
        found = tf.identity(tensor)
    if not is_on(found, name):
        raise DeviceUnavailableError(
            f"a tensor was to be on {name}, and TensorFlow put it on {found.device}",
            available=", ".join(one.name for one in tf.config.list_logical_devices()),
            hint="use a device that is there",
        )
    return found


def relocated(obj: Any, name: str) -> Any:
    """A module, layer, optimizer or variable with its variables on a device: the same object, but for a tf.Variable.

    All variables are made before the first is replaced, so that an error changes nothing.

    Raises:
        MoveError: a variable is held where it cannot be replaced, or a traced `tf.function` holds the old ones.
    """
    if isinstance(obj, tf.Variable):
        return obj if is_on(obj, name) else _copy(obj, name)
    if is_optimizer(obj):
        _replace(obj.variables, name)
        return obj
    if not (variables.is_part(obj) or variables.is_keras_variable(obj)):
        raise MoveError(
            f"TensorFlow cannot place a {type(obj).__module__}.{type(obj).__name__}",
            available="tensors, variables, tf.Modules, Keras layers and optimizers, and containers of these can be",
            hint="place its tensors one by one, or make it inside anyaccel.scope(device)",
        )
    owned = [variable for _, variable in variables.walk(obj)]
    optimizer: Any = getattr(obj, "optimizer", None)
    owned += optimizer.variables if is_optimizer(optimizer) else []
    if all(is_on(variables.inner(variable), name) for variable in owned):
        return obj
    _refuse_traced(obj)
    swap = _replace(owned, name)
    for part in variables.parts(obj):
        _swap_attributes(part, swap)
    _forget_compiled(obj)
    return obj


def _copy(variable: tf.Variable, name: str) -> tf.Variable:
    value = moved(variables.read(variable), name)
    label = variable.name.partition(":")[0]
    with telling(f"variable {label} {variable.shape.as_list()} on {name}"), on(name):
        made = tf.Variable(value, trainable=variable.trainable, name=label, dtype=variable.dtype, shape=variable.shape)
    if not is_on(made, name):
        raise DeviceUnavailableError(f"variable {label} was to be on {name}, and is on {made.device}")
    return made


def _replace(owned: Iterable[Any], name: str) -> dict[int, tuple[tf.Variable, tf.Variable]]:
    """Put variables on a device: those of Keras at once; for others (the old, the new) by the id of the old."""
    pairs = [(one, _copy(variables.inner(one), name)) for one in owned if not is_on(variables.inner(one), name)]
    swap = {}
    for variable, made in pairs:
        if variables.is_keras_variable(variable):
            _refill(variable, made)
        else:
            swap[id(variable)] = (variable, made)
    return swap


def _refill(variable: Any, made: tf.Variable) -> None:
    """Let a Keras variable hold another tf.Variable.

    Neither TensorFlow nor Keras can move a variable. Everybody who shares a Keras variable (layers, optimizers, the
    user) asks it for its `value`, so that what is behind can be another one; Keras has no public way to say so.
    """
    before, variable._value = variable.value, made  # noqa: SLF001
    if hasattr(before, "_unique_id"):  # by which optimizers know the variables that they were built for
        made._unique_id = before._unique_id  # noqa: SLF001
    if variable.value is not made:
        raise MoveError(
            f"variable {variable.path} cannot be moved: this Keras holds its values in another way",
            hint="build the model inside anyaccel.scope(device), and tell the authors of anyaccel-tensorflow",
        )


def _swap_attributes(part: Any, swap: Mapping[int, tuple[tf.Variable, tf.Variable]]) -> None:
    """Replace tf.Variables among the attributes of a module or layer, also in lists, tuples and dicts there."""
    if not variables.is_part(part):
        return
    for key, value in list(vars(part).items()):
        if key.startswith(("_self_", "_tf_")):
            continue
        after = _swapped(value, swap)
        if after is not value:
            setattr(part, key, after)


def _swapped(value: Any, swap: Mapping[int, tuple[tf.Variable, tf.Variable]]) -> Any:
    """A plain container anew where something in it changed: TensorFlow's own would note that it was changed."""
    if id(value) in swap:
        return swap[id(value)][1]
    if isinstance(value, Mapping):
        items = {key: _swapped(item, swap) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if isinstance(value, (list, tuple)):
        found = [_swapped(item, swap) for item in value]
        if all(a is b for a, b in zip(found, value, strict=True)):
            return value
        return value._make(found) if hasattr(value, "_make") else found if isinstance(value, list) else tuple(found)
    return value


def _refuse_traced(obj: Any) -> None:
    for part in variables.parts(obj):
        if isinstance(part, tf.random.Generator):
            raise MoveError(
                f"{type(obj).__name__} holds a tf.random.Generator, which cannot be moved",
                hint="make the model inside anyaccel.scope(device)",
            )
        for name, function in variables.functions(part):
            if function.experimental_get_tracing_count():
                raise MoveError(
                    f"{type(part).__name__} cannot be moved: its tf.function {name!r} was traced with the variables "
                    "that it has now, and would go on using them",
                    available="TensorFlow cannot move a variable, so that a moved model has new ones",
                    hint="place the model before it is called for the first time, or make it inside "
                    "anyaccel.scope(device)",
                )


def _forget_compiled(obj: Any) -> None:
    """Let Keras compile `fit`, `evaluate` and `predict` anew: what it has compiled uses the old variables."""
    for part in variables.parts(obj):
        for name in variables.COMPILED:
            if variables.is_layer(part) and getattr(part, name, None) is not None:
                setattr(part, name, None)
