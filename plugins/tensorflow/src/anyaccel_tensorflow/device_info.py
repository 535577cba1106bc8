"""What a device is, and why one is not there."""

from __future__ import annotations

import platform

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.runtime_config import physical

INSTALL = "python -m pip install 'anyaccel-tensorflow[cpu]', or [gpu] for NVIDIA GPUs on Linux"


def describe(device: Device, word: str) -> DeviceInfo:
    """Name, vendor and memory of a device; starts nothing.

    Args:
        device: the device.
        word: TensorFlow's type of it, such as `"GPU"`.
    """
    import tensorflow as tf

    if device.kind == "cpu":
        name = platform.processor() or platform.machine() or "cpu"
        return DeviceInfo(name, memory_space="host", total_memory=host_memory().total)
    there, _ = physical(word)[device.index]
    name = str(tf.config.experimental.get_device_details(there).get("device_name", "")) or str(device)
    build = tf.sysconfig.get_build_info()
    vendor = "nvidia" if build.get("is_cuda_build") else "amd" if build.get("is_rocm_build") else ""
    return DeviceInfo(name, vendor if device.kind == "gpu" else "")


def why_not(device: Device, count: int) -> str:
    """Why TensorFlow, which has `count` devices of this kind, has not this one; starts nothing."""
    if device.index < count:
        return ""
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name == "tensorflow":
            return f"TensorFlow is not installed: {INSTALL}"
        return f"TensorFlow cannot be imported: {first_line(error)}"
    except Exception as error:  # a broken TensorFlow must not break the listing of devices
        return f"TensorFlow cannot be imported: {first_line(error)}"
    if device.kind == "cpu":
        return f"TensorFlow has {count} logical CPU{'s' if count != 1 else ''}; configure more before it is first used"
    if count:
        return f"TensorFlow sees {count} of this kind"
    if device.kind == "gpu" and not tf.test.is_built_with_gpu_support():
        return f"this TensorFlow, {tf.__version__}, is built without support for GPUs"
    return "TensorFlow finds no driver or no library for it, or the driver finds no device"
