"""TensorFlowBackend: placement, exchange and compute, and the table of its capabilities."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.outer_contexts import LeavesContexts
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.adapter.step_profiler import ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.backend import Exchange, Memory, MemoryInfo
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, host_memory, is_aligned, is_own
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel.precision import ComputesPrecision
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.compute import TensorFlowCompute, TensorFlowMemoryFigures, TensorFlowPrecision
from anyaccel_tensorflow.error_translation import first_line
from anyaccel_tensorflow.installed_build import TensorFlowExpectedDevices
from anyaccel_tensorflow.object_location import is_tensor
from anyaccel_tensorflow.placement import TensorFlowPlacement

# -- Tensors from and to host memory, and from other frameworks -------------------------------------------------------


class TensorFlowExchange(TensorFlowPlacement, Exchange):
    """Through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Any strides and byte order, and read-only arrays. Strings are refused."""
        from anyaccel_tensorflow.host_transfer import copy_to_cpu

        return self.move(copy_to_cpu(array), device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor; on the CPU it is the array's own memory, if that is dense and aligned."""
        from anyaccel_tensorflow.host_transfer import adopt_on_cpu

        if not is_own(array) or not is_aligned(array):
            return self.from_host(array, device)
        return self.move(adopt_on_cpu(array), device)

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate plain memory: TensorFlow page-locks no memory that other code may write to."""
        return aligned_empty(shape, dtype)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return an array, which shares memory with a tensor on the CPU and is then read-only."""
        import tensorflow as tf

        if not is_tensor(tensor) or tensor.dtype in (tf.string, tf.resource, tf.variant):
            kind = f"tensor of dtype {tensor.dtype.name}" if is_tensor(tensor) else type(tensor).__name__
            hint = "convert it first: tf.sparse.to_dense(x), ragged.to_tensor(), variable.value()"
            if getattr(tensor, "dtype", None) == tf.string:
                hint = "convert texts to numbers first: keras.layers.StringLookup(vocabulary=words)(texts)"
            raise MoveError(f"NumPy cannot hold a {kind}", available="dense tensors of numbers and booleans", hint=hint)
        array: np.ndarray = np.asarray(tensor)
        return array

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Import a tensor; memory that TensorFlow cannot use in place (strided or unaligned) is copied."""
        from anyaccel_tensorflow.dlpack import from_foreign

        if is_tensor(foreign):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        try:
            tensor = from_foreign(foreign)
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise MoveError(
                f"TensorFlow cannot import a {type(foreign).__module__}.{type(foreign).__name__} through DLPack",
                cause=first_line(error),
                hint="pass a plain array without gradients, or go through host memory with from_host",
            ) from error
        return self.move(tensor, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        from anyaccel_tensorflow import host_transfer

        if order is None:
            return host_transfer.slice_rows(column, start, stop)
        return host_transfer.gather_rows(column, order, start, stop)

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Read one by one, which waits only once, as devices work in order."""
        return np.array([float(np.asarray(value)) for value in values], dtype=np.float64)


# ----------------------------------------------------------------------------------------------------------------------


# -- Memory of devices, by TensorFlow's own figures -------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------


class TensorFlowBackend(TensorFlowExchange, TensorFlowCompute):
    """TensorFlow and Keras on the kinds of device that TensorFlow itself serves. Creating one does not import it.

    For a chip that a PluggableDevice adds, derive a class that sets `kinds`, and `device_types` where TensorFlow's
    name of the kind is not its upper case (see `TensorFlowPlacement`).
    """

    fork_safe = False  # TensorFlow keeps threads, which a forked process lacks
    environment: ClassVar[tuple[str, ...]] = (
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_GPU_ALLOCATOR",
        "TF_XLA_FLAGS",
        "KERAS_BACKEND",
    )
    capabilities: ClassVar[Capabilities] = {
        Memory: TensorFlowMemory,
        MemoryFigures: TensorFlowMemoryFigures,
        StepCosts: lazy("anyaccel_tensorflow.step_cost:TensorFlowStepCosts"),
        ProfilesSteps: lazy("anyaccel_tensorflow.ops:TensorFlowProfiler"),
        ObservesTransfers: lazy("anyaccel_tensorflow.transfer_observer:TensorFlowTransfers"),
        ComputesPrecision: TensorFlowPrecision,
        LeavesContexts: lazy("anyaccel_tensorflow.outer_contexts:TensorFlowContexts"),
        "anyaccel_distributed.DeviceReplicas": lazy("anyaccel_tensorflow.device_replicas:TensorFlowReplicas"),
        "anyaccel_distributed.Replicate": lazy("anyaccel_tensorflow.replicas:TensorFlowReplicate"),
        "anyaccel_distributed.OwnLoops": lazy("anyaccel_tensorflow.own_loop:TensorFlowLoops"),
        ExpectedDevices: TensorFlowExpectedDevices,
        "anyaccel_devtools.HealthChecks": lazy("anyaccel_tensorflow.health_checks:TensorFlowHealthChecks"),
    }

    def devices(self) -> Sequence[Device]:
        """Return those expected where these are certain, until tensorflow is imported."""
        if "tensorflow" not in sys.modules:
            expected = self.required(ExpectedDevices).expected_devices(Machine.detect())
            if expected is not None:
                return list(expected)
        return super().devices()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """Return the state of a `tf.random.Generator`; the global state is not available."""
        import tensorflow as tf

        return np.asarray(generator.state.numpy()) if isinstance(generator, tf.random.Generator) else None

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        """Restore the state of a `tf.random.Generator`."""
        generator.state.assign(state)
