"""How full a device is, from TensorFlow's own figures, and how it shares a GPU with others."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.placement import TensorFlowPlacement


class TensorFlowMemory(TensorFlowPlacement, Memory):
    """Figures of a GPU are those of this process's allocator, which does not tell the size; the CPU has its size."""

    def memory(self, device: Device) -> MemoryInfo:
        """As `Memory.memory`; asking for a GPU starts TensorFlow."""
        if device.kind == "cpu":
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0)
        import tensorflow as tf

        runtime_config.begin()
        found = tf.config.experimental.get_memory_info(self.device_string(device).removeprefix("/"))
        return MemoryInfo(0, 0, used=int(found["current"]), peak=int(found["peak"]))

    def share(self, device: Device, fraction: float) -> str:
        """As `Memory.share`; TensorFlow is told to take memory as it needs it, whatever the fraction."""
        return "" if device.kind == "cpu" else runtime_config.too_late()

    def release_memory(self, device: Device) -> None:
        """As `Memory.release_memory`; TensorFlow keeps what it has cached until the process ends."""
