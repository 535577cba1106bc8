"""Errors of TensorFlow as errors of anyaccel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyaccel.adapter.out_of_memory import out_of_memory
from anyaccel.errors import AnyaccelError, DeviceMismatchError, DeviceUnavailableError, PhaseError
from anyaccel_tensorflow.object_location import parse_device_name

# What Keras puts around the messages of others, in bold; the frames of a graph; the names of nodes.
_AROUND = re.compile(
    r"^Exception encountered when calling [^\n]*\n+|\x1b\[\d*m|\{\{(?:function_)?node [^}]*\}\}"
    r"|^Graph execution error:\s+(?:Detected at node [^\n]*\s+(?:File \"[^\n]*\s+)*)*"
)
_CONFLICT = re.compile(r"cannot compute (\w+) as input #(\d+) was expected to be on (\S+) but is actually on (\S+)")


@contextmanager
def translate_errors(subject: str) -> Iterator[None]:
    """Turn errors about memory, devices and missing gradients into anyaccel's inside this context; others pass.

    Args:
        subject: The operation or object, such as `"a tensor of shape [8] on gpu:0"`.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        message = first_line(error)
        translated: AnyaccelError | None = None
        if isinstance(error, tf.errors.ResourceExhaustedError):
            translated = out_of_memory(subject, message)
        elif isinstance(error, tf.errors.InvalidArgumentError) and "device specification" in message:
            translated = DeviceUnavailableError(
                f"{subject}: TensorFlow has no such device",
                available=message.rpartition("All available devices")[2].strip(" []."),
                hint="run `anyaccel devices` to list the available devices, and the reasons for missing ones",
            )
        elif isinstance(error, tf.errors.InvalidArgumentError) and "conflicting devices" in message:
            # Names the node, the line, its tensors, and the devices that TensorFlow's message has.
            from anyaccel.adapter.mixed_tensors import mixed_tensors  # where nothing goes wrong, it is not needed

            mixed = mixed_tensors(error, _eager_device, ("tensorflow", "keras"))
            match = _CONFLICT.search(message)
            what = message
            if match is not None:
                expected, actual = (":".join(map(str, parse_device_name(name))).lower() for name in match.group(3, 4))
                what = f"{match[1]} computes on {expected}, but its input #{match[2]} is on {actual}"
            who = f"node {mixed.node!r} in {subject}" if mixed.node else subject
            translated = DeviceMismatchError(
                f"{who} computes with tensors on several devices: {what}{mixed}",
                hint="create tensors on the device of the inputs, for example in `with tf.device(x.device):`, store "
                "constants in variables of the model, or move them first: anyaccel.move(tensor, device)",
            )
        elif isinstance(error, tf.errors.InvalidArgumentError) and "Gradients for grouped convolutions" in message:
            translated = PhaseError(
                f"{subject}: TensorFlow has no gradients of grouped convolutions on a CPU without oneDNN, nor in "
                "float64",
                hint="train in float32 with TF_ENABLE_ONEDNN_OPTS=1, use DepthwiseConv2D(kernel_size) if Conv2D has "
                'one group per channel, freeze the node, or train with KERAS_BACKEND="jax" or "torch"',
            )
        if translated is None:
            raise
        raise translated from error


def first_line(error: BaseException) -> str:
    """Return the message of an error, without the frames and node names that Keras and TensorFlow put around it."""
    line = _AROUND.sub("", str(error)).strip().partition("\n")[0]
    return re.sub(r"\s*(\[Op:\w+\])?( name: ?\S*)?\s*$", "", line).strip()


def _eager_device(value: Any) -> str | None:
    import tensorflow as tf

    name = getattr(value, "device", "") if isinstance(value, (tf.Tensor, tf.Variable)) else ""
    return ":".join(map(str, parse_device_name(name))).lower() if name else None
