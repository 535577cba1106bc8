"""Find the objects that TensorFlow owns, and their devices; nothing here is created or moved."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

_DEVICE_NAME = re.compile(r"(?:.*/)?(?:device:)?([A-Za-z_]+):(\d+)$")


def runs_on_tensorflow(cls: type) -> bool:
    """Whether a class does not belong to Keras, or Keras runs on TensorFlow. Keras 2 (`tf_keras`) is not supported."""
    roots = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
    if "keras" not in roots:
        return "tf_keras" not in roots
    config = getattr(sys.modules.get("keras"), "config", None)
    return config is not None and config.backend() == "tensorflow"


def is_tensor(obj: Any) -> bool:
    """Whether an object is a dense tensor."""
    import tensorflow as tf

    return isinstance(obj, tf.Tensor)


def is_optimizer(obj: Any) -> bool:
    """Whether an object is an optimizer of Keras."""
    optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
    return optimizers is not None and isinstance(obj, optimizers.Optimizer)


def parse_device_name(name: str) -> tuple[str, int]:
    """Return type and index in a device name of TensorFlow, such as `".../task:0/device:CPU:1"`."""
    match = _DEVICE_NAME.fullmatch(name)
    assert match is not None, name
    return match[1], int(match[2])


def is_first_cpu(name: str) -> bool:
    """Return whether a device name of TensorFlow belongs to the first CPU."""
    return parse_device_name(name) == ("CPU", 0)


def device_name_of(obj: Any) -> str | None:
    """Return TensorFlow's device name of the first tensor or variable in an object, or None."""
    import tensorflow as tf

    from anyaccel_tensorflow import variables

    if isinstance(obj, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
        return tf.nest.flatten(obj, expand_composites=True)[0].device or None
    if isinstance(obj, (Mapping, list, tuple)):
        names = (device_name_of(item) for item in (obj.values() if isinstance(obj, Mapping) else obj))
        return next(filter(None, names), None)
    held = obj.variables if is_optimizer(obj) else variables.variables_in(obj)
    return next((variables.tf_variable(variable).device for variable in held), None)
