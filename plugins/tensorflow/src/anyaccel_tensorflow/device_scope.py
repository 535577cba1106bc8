"""What a segment on several devices needs so that everything is computed where it shall be.

While a function is traced, an operation that nobody places goes where the scope around the function says; and what
comes out of a function is labelled with that device, wherever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from anyaccel.adapter import Function
from anyaccel_tensorflow.functional_call import Call, Called
from anyaccel_tensorflow.transfers import is_on, moved


def moved_in(array: Any, name: str, *, several: bool) -> Any:
    """A tensor on a device, eagerly or in a function that is traced; there it is where it shall be on one device."""
    if not tf.executing_eagerly() and not several:
        return array
    if tf.executing_eagerly():
        return moved(array, name)
    with tf.device(name):
        return tf.identity(array)


def beside(array: Any, other: Any) -> Any:
    """A tensor on the device of another one."""
    if not tf.executing_eagerly() or array.device == other.device:
        return array
    return moved(array, other.device)


def settled(function: Function, home: str) -> Function:
    """A compiled function that is called in the scope of its first argument's device, or of `home` if it has several.

    What it gives is labelled with the devices that it is on.
    """

    def run(*arguments: Any) -> Any:
        places = {one.device for one in tf.nest.flatten(arguments[0])}
        with tf.device(places.pop() if len(places) == 1 else home):
            return tf.nest.map_structure(_labelled, function(*arguments))

    return run


def _labelled(tensor: Any) -> Any:
    """TensorFlow keeps integers of 32 bits in host memory, whatever their device."""
    if tensor.dtype == tf.int32 or is_on(tensor, tensor.backing_device):
        return tensor
    return moved(tensor, tensor.backing_device)


def enclosed(
    call: Call,
    place: str,
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
    inputs: tuple[Any, ...],
    train: bool,
    key: Any,
) -> Called:
    """A call of a model as one operation whose way back is computed on the model's device, as its way forward is."""
    floating = [x.dtype.is_floating for x in inputs]
    primals = (dict(parameters), [x for x, yes in zip(inputs, floating, strict=True) if yes])
    others = [x for x, yes in zip(inputs, floating, strict=True) if not yes]
    kept: list[Any] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*arrays: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(arrays)
            own, given = tf.nest.pack_sequence_as(primals, arrays)
            found, rest = iter(given), iter(others)
            outputs, after = call(own, buffers, [next(found) if yes else next(rest) for yes in floating], train, key)
        kept[:] = outputs, after
        targets = [one for one in outputs if one.dtype.is_floating] or [tf.zeros(())]

        def back(*cotangents: Any, variables: Any = None) -> Any:
            with tf.device(place):
                zero = tf.UnconnectedGradients.ZERO
                gradients = tape.gradient(targets, list(arrays), list(cotangents), unconnected_gradients=zero)
                dense = [tf.convert_to_tensor(one) for one in gradients]
            return dense if variables is None else (dense, [None] * len(variables))

        return targets, back

    with tf.device(place):  # also what TensorFlow puts around what it runs
        whole = iter(run(*tf.nest.flatten(primals)))
    outputs, after = kept
    return tuple(next(whole) if one.dtype.is_floating else one for one in outputs), after
