"""What must happen before TensorFlow starts, and what is known of its devices without starting it.

TensorFlow starts when it first touches a device. From then on neither its logical devices nor the growth of its memory
can be changed.
"""

from __future__ import annotations

import os
from typing import Any

_FORCED = "TF_FORCE_GPU_ALLOW_GROWTH"
_TOO_LATE: list[str] = []  # why memory growth could not be set, once that has been tried
_BEGUN: list[bool] = []


def physical(word: str) -> list[tuple[Any, int]]:
    """For each logical device of a type, such as `"CPU"`: the physical device it is on, and which part of it.

    Comes from the configuration, so that nothing is initialised.
    """
    import tensorflow as tf

    found: list[tuple[Any, int]] = []
    for device in tf.config.get_visible_devices(word):
        parts = tf.config.get_logical_device_configuration(device) or [None]
        found.extend((device, part) for part in range(len(parts)))
    return found


def begin() -> None:
    """Let TensorFlow take GPU memory as it needs it, unless the user said something else. Done once.

    Whoever is about to make TensorFlow touch a device calls this first.
    """
    if not _BEGUN:
        _BEGUN.append(True)
        _TOO_LATE.extend(_grow())


def too_late() -> str:
    """Why memory growth could not be set; `""` where it is set, or left to the user."""
    begin()
    return "".join(_TOO_LATE)


def _grow() -> list[str]:
    import tensorflow as tf

    gpus = [] if _FORCED in os.environ else tf.config.get_visible_devices("GPU")
    if any(_configured(gpu) for gpu in gpus):
        return []
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # it was started before
        return [
            "TensorFlow was started before anyaccel could let its memory grow as needed, so that it holds nearly all "
            "memory of every GPU from the start; call tf.config.experimental.set_memory_growth(gpu, True) for each, or "
            f"set {_FORCED}=true, before anything else uses TensorFlow"
        ]
    return []


def _configured(gpu: Any) -> bool:
    """Whether the user has set the growth of a GPU, or has cut it into logical devices."""
    import tensorflow as tf

    parts = tf.config.get_logical_device_configuration(gpu)
    return bool(parts) or tf.config.experimental.get_memory_growth(gpu) is not None
