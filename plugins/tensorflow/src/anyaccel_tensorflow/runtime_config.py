"""Settings to make before TensorFlow starts, and its devices as configured, without starting it.

TensorFlow starts when it first touches a device. From then on neither its logical devices nor the growth of its memory
can be changed.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from anyaccel.adapter.process_setting import ProcessSetting

_GROWTH_VARIABLE = "TF_FORCE_GPU_ALLOW_GROWTH"


def is_started() -> bool:
    """Whether TensorFlow has touched its devices; starts nothing and imports nothing."""
    if "tensorflow" not in sys.modules:
        return False
    from tensorflow.python.eager import context  # TensorFlow has no public way to ask

    return bool(getattr(context.context(), "_initialized", True))


def logical_devices(device_type: str) -> list[tuple[Any, int]]:
    """Return, for each logical device of a type such as `"CPU"`, its physical device and its part of it.

    Read from the configuration, so that nothing is initialized.
    """
    import tensorflow as tf

    devices: list[tuple[Any, int]] = []
    for physical in tf.config.get_visible_devices(device_type):
        parts = tf.config.get_logical_device_configuration(physical) or [None]
        devices.extend((physical, part) for part in range(len(parts)))
    return devices


def device_count(device_type: str) -> int:
    """Return the number of logical devices of a type; 0 in a broken installation, which `unavailable_reason`
    reports.
    """
    try:
        return len(logical_devices(device_type))
    except (Exception, SystemExit):
        return 0


@cache
def allow_memory_growth() -> str:
    """Let TensorFlow take GPU memory as it needs it, unless the user configured something else. Done once.

    Whoever is about to make TensorFlow touch a device calls this first.

    Returns:
        why it is too late for that; `""` where memory grows, or is left to the user.
    """
    import tensorflow as tf

    gpus = [] if _GROWTH_VARIABLE in os.environ else tf.config.get_visible_devices("GPU")
    if any(_is_configured(gpu) for gpu in gpus):
        return ""
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        return (
            "TensorFlow was started before anyaccel could enable memory growth, so it reserves "
            "nearly all memory of every GPU; call tf.config.experimental.set_memory_growth(gpu, True) for each, or "
            f"set {_GROWTH_VARIABLE}=true, before anything else uses TensorFlow"
        )
    return ""


def _is_configured(gpu: Any) -> bool:
    """Whether the user has set the memory growth of a GPU, or has split it into logical devices."""
    import tensorflow as tf

    parts = tf.config.get_logical_device_configuration(gpu)
    return bool(parts) or tf.config.experimental.get_memory_growth(gpu) is not None


@cache
def tensor_float_32() -> ProcessSetting:
    """Whether products of float32 may be computed in TF32 on GPUs that have it."""
    import tensorflow as tf

    setting = tf.config.experimental
    read, write = setting.tensor_float_32_execution_enabled, setting.enable_tensor_float_32_execution
    return ProcessSetting("matmul_precision", read, write)
