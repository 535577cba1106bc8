"""Memory of devices, by TensorFlow's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_tensorflow import runtime_config


class TensorFlowMemory(Memory):
    """Figures of a GPU are those of this process's allocator, without the GPU's size; of the CPU only its size."""

    def memory(self, device: Device) -> MemoryInfo:
        """Asking for a GPU starts TensorFlow."""
        if device.kind == "cpu":
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0)
        import tensorflow as tf

        runtime_config.allow_memory_growth()
        figures = tf.config.experimental.get_memory_info(self.backend.device_string(device).removeprefix("/"))
        return MemoryInfo(0, 0, used=int(figures["current"]), peak=int(figures["peak"]))

    def share(self, device: Device, fraction: float) -> str:
        """TensorFlow takes memory as it needs it, whatever the fraction."""
        return "" if device.kind == "cpu" else runtime_config.allow_memory_growth()

    def release_memory(self, device: Device) -> None:
        """TensorFlow keeps what it has cached until the process ends."""
