"""Memory of devices, by TensorFlow's own figures."""

from __future__ import annotations

from anyaccel.backend import Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.host_memory import host_memory
from anyaccel_tensorflow import runtime_config


class TensorFlowMemory(Memory):
    """Memory of a GPU as this process's allocator reports it, without the GPU's size; for the CPU only its size."""

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
        """Let TensorFlow allocate memory on demand, regardless of the fraction."""
        return "" if device.kind == "cpu" else runtime_config.allow_memory_growth()

    def release_memory(self, device: Device) -> None:
        """Do nothing: TensorFlow keeps its cache until the process ends."""
