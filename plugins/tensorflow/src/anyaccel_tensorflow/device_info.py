"""Descriptions of devices, and why one is not available; nothing here starts TensorFlow."""

from __future__ import annotations

import sys

from anyaccel.adapter.device_description import cpu_info
from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.installed_build import build_flags, build_name, is_for_gpus
from anyaccel_tensorflow.runtime_config import logical_devices

INSTALL = "python -m pip install 'anyaccel-tensorflow[cpu]', or [gpu] for NVIDIA GPUs on Linux"


def describe(device: Device, device_type: str) -> DeviceInfo:
    """Name, vendor and memory of a device.

    Args:
        device: The device.
        device_type: TensorFlow's type of it, such as `"GPU"`.
    """
    if device.kind == "cpu":
        return cpu_info()
    import tensorflow as tf

    physical, _ = logical_devices(device_type)[device.index]
    name = str(tf.config.experimental.get_device_details(physical).get("device_name", "")) or str(device)
    build = tf.sysconfig.get_build_info()
    vendor = "nvidia" if build.get("is_cuda_build") else "amd" if build.get("is_rocm_build") else ""
    return DeviceInfo(name, vendor if device.kind == "gpu" else "")


def unavailable_reason(device: Device, count: int) -> str:
    """Return why TensorFlow, which has `count` devices of this kind, does not have this one; `""` if it has."""
    if device.index < count:
        return ""
    if device.kind == "cpu" and count:
        return f"TensorFlow has {count} logical CPU{'s' if count != 1 else ''}; configure more before it is first used"
    if count:
        return f"TensorFlow sees {count} of this kind"
    flags = {} if "tensorflow" in sys.modules else build_flags()
    if device.kind == "gpu" and flags and not is_for_gpus(flags):
        return f"this {build_name(flags)} is built without GPU support"
    try:
        import tensorflow as tf
    except Exception as error:  # a broken TensorFlow must not break the listing of devices
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            return f"TensorFlow is not installed: {INSTALL}"
        return f"TensorFlow cannot be imported: {first_line(error)}"
    if device.kind == "gpu" and not tf.test.is_built_with_gpu_support():
        return f"this TensorFlow, {tf.__version__}, is built without GPU support"
    return "TensorFlow finds no driver or no library for it, or the driver finds no device"
