"""Objects of TensorFlow from afar: what they are, where they are, and containers of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

_DEVICE = re.compile(r"(?:.*/)?(?:device:)?([A-Za-z_]+):(\d+)$")


def keras_is_ours(cls: type) -> bool:
    """Whether a class is none of Keras's, or Keras runs on TensorFlow. Keras 2, `tf_keras`, is not served."""
    roots = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
    if "keras" not in roots:
        return "tf_keras" not in roots
    config = getattr(sys.modules.get("keras"), "config", None)
    return config is not None and config.backend() == "tensorflow"


def is_tensor(obj: Any) -> bool:
    """Whether an object is a dense tensor."""
    import tensorflow as tf

    return isinstance(obj, tf.Tensor)


def parsed(name: str) -> tuple[str, int]:
    """Type and index in a name that TensorFlow gives a device, such as `".../task:0/device:CPU:1"`."""
    match = _DEVICE.fullmatch(name)
    assert match is not None, name
    return match[1], int(match[2])


def first_string(obj: Any) -> str | None:
    """TensorFlow's name of the device of the first tensor or variable in an object; None where there is none."""
    import tensorflow as tf

    from anyaccel_tensorflow import variables

    if isinstance(obj, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
        return tf.nest.flatten(obj, expand_composites=True)[0].device or None
    if isinstance(obj, (Mapping, list, tuple)):
        found = (first_string(item) for item in (obj.values() if isinstance(obj, Mapping) else obj))
        return next(filter(None, found), None)
    held = obj.variables if is_optimizer(obj) else (variable for _, variable in variables.walk(obj))
    return next((variables.inner(variable).device for variable in held), None)


def is_optimizer(obj: Any) -> bool:
    """Whether an object is an optimizer of Keras."""
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    return optimizers is not None and isinstance(obj, optimizers.Optimizer)


def mapped(obj: Any, fn: Callable[[Any], Any]) -> Any:
    """A dict, list, tuple or named tuple with `fn` applied to its items; the same object where nothing changed."""
    if not isinstance(obj, (Mapping, list, tuple)):
        return obj
    before = list(obj.values() if isinstance(obj, Mapping) else obj)
    after = [fn(item) for item in before]
    if all(a is b for a, b in zip(after, before, strict=True)):
        return obj
    if hasattr(obj, "_make"):
        return obj._make(after)
    make: Callable[[Any], Any] = type(obj)
    return make(zip(obj, after, strict=True) if isinstance(obj, Mapping) else after)
