"""Compiled functions, and single operations outside of them as the explicit device policy allows them.

TensorFlow puts the bounds, axes and indices that it creates from Python numbers on the first CPU. On any other device
the policy forbids an eager operation to read them from there, but not a compiled one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from anyaccel_tensorflow.object_location import is_first_cpu


def compiled(function: Callable[..., Any], **settings: Any) -> Any:
    """Return a function as a tf.function without autograph.

    TensorFlow counts traces by the code of a function, and warns of many. Programs of one kind share their code, and
    each is traced on its own: a partial has no code.
    """
    return tf.function(partial(function), autograph=False, **settings)


def run_alone(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Return the result of a module-level function on the device of the first tensor among its arguments.

    Args:
        function: Function that is called uncompiled while something else is traced, or on the first CPU; otherwise it
            is compiled, once.
        arguments: Tensors, and sequences of them.
        settings: Plain values.
    """
    if not tf.executing_eagerly():
        return function(*arguments, **settings)
    device = next(argument for argument in tf.nest.flatten(arguments) if isinstance(argument, tf.Tensor)).device
    run = function if is_first_cpu(device) else _compiled_once(function)
    with tf.device(device):
        return run(*arguments, **settings)


@cache
def _compiled_once(function: Callable[..., Any]) -> Any:
    return compiled(function, reduce_retracing=True)
