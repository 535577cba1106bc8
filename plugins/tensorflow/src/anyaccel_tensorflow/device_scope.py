"""What a segment on several devices needs so that everything is computed on the right one.

While a function is traced, an operation without a device of its own goes where the scope around the function says; and
the outputs of a function are labelled with that device, wherever they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from anyaccel.adapter import Function
from anyaccel.adapter.call_layout import CallLayout
from anyaccel_tensorflow.functional_call import FunctionalCall, OutputsAndBuffers, gradient_function, is_differentiable
from anyaccel_tensorflow.transfers import is_on, move_tensor


def move_or_trace(array: Any, name: str, *, multi_device: bool) -> Any:
    """A tensor on a device; while tracing a function on one device nothing, as everything is there."""
    if tf.executing_eagerly():
        return move_tensor(array, name)
    if not multi_device:
        return array
    with tf.device(name):
        return tf.identity(array)


def on_device_of(array: Any, other: Any) -> Any:
    """A tensor on the device of another one."""
    if not tf.executing_eagerly() or array.device == other.device:
        return array
    return move_tensor(array, other.device)


def with_true_devices(function: Function, home: str) -> Function:
    """A compiled function that is called in the scope of its first argument's device, or of `home` if it has several.

    Its outputs are labelled with the devices that they are on.
    """

    def run(*arguments: Any) -> Any:
        devices = {array.device for array in tf.nest.flatten(arguments[0])}
        with tf.device(devices.pop() if len(devices) == 1 else home):
            return tf.nest.map_structure(_with_true_device, function(*arguments))

    return run


def _with_true_device(tensor: Any) -> Any:
    """TensorFlow keeps 32-bit integers in host memory, whatever their device."""
    if tensor.dtype == tf.int32 or is_on(tensor, tensor.backing_device):
        return tensor
    return move_tensor(tensor, tensor.backing_device)


def call_on_device(
    call: FunctionalCall,
    device: str,
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
    inputs: tuple[Any, ...],
    train: bool,
    key: Any,
    layout: CallLayout,
) -> OutputsAndBuffers:
    """A call of a model as one operation whose forward and backward pass are both computed on the model's device."""
    is_active = [is_differentiable(x) for x in inputs]
    primals = (dict(parameters), [x for x in inputs if is_differentiable(x)])
    kept: list[Any] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*arrays: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(arrays)
            own_parameters, floating_inputs = tf.nest.pack_sequence_as(primals, arrays)
            floating = iter(floating_inputs)
            given = [next(floating) if yes else x for yes, x in zip(is_active, inputs, strict=True)]
            outputs, after = call(own_parameters, buffers, given, train, key, layout)
        kept[:] = outputs, after
        targets = [output for output in outputs if is_differentiable(output)] or [tf.zeros(())]
        gradients_of = gradient_function(tape, targets, arrays)

        def on_device(*cotangents: Any, variables: Any = None) -> Any:
            with tf.device(device):
                return gradients_of(*cotangents, variables=variables)

        return targets, on_device

    with tf.device(device):  # also for what TensorFlow puts around what it runs
        floating_outputs = iter(run(*tf.nest.flatten(primals)))
    outputs, after = kept
    return tuple(next(floating_outputs) if is_differentiable(output) else output for output in outputs), after
