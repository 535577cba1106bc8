"""Compiled functions, and single operations outside of them as the explicit device policy allows them.

TensorFlow puts the bounds, axes and indices that it makes of Python's numbers on the first CPU. On any other device the
policy forbids an eager operation to take them from there, and a compiled one may.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from anyaccel_tensorflow.tree_utils import parsed


def compiled(function: Callable[..., Any], **settings: Any) -> Any:
    """A function as a tf.function without autograph.

    TensorFlow counts traces by the code of a function, and warns of many. Programs of one kind share their code, and
    each is traced on its own: a partial has no code.
    """
    return tf.function(partial(function), autograph=False, **settings)


def by_itself(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """What a function of the module it stands in gives, on the device of the first tensor among its arguments.

    Args:
        function: is called as it is while something else is traced, or on the first CPU; else compiled, once.
        arguments: tensors, and sequences of them.
        settings: plain values.
    """
    if not tf.executing_eagerly():
        return function(*arguments, **settings)
    device = next(one for one in tf.nest.flatten(arguments) if isinstance(one, tf.Tensor)).device
    run = function if parsed(device) == ("CPU", 0) else _kept(function)
    with tf.device(device):
        return run(*arguments, **settings)


@cache
def _kept(function: Callable[..., Any]) -> Any:
    return compiled(function, reduce_retracing=True)
