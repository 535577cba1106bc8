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
from anyaccel.backend import Memory
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices, Machine
from anyaccel.own_loop.capability import OwnLoops
from anyaccel.precision import ComputesPrecision
from anyaccel_tensorflow.compute import TensorFlowCompute, TensorFlowMemoryFigures, TensorFlowPrecision
from anyaccel_tensorflow.exchange import TensorFlowExchange
from anyaccel_tensorflow.installed_build import TensorFlowExpectedDevices
from anyaccel_tensorflow.memory import TensorFlowMemory


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
        ExpectedDevices: TensorFlowExpectedDevices,
        OwnLoops: lazy("anyaccel_tensorflow.own_loop:TensorFlowLoops"),
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
