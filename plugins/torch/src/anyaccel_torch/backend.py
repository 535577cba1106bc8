"""TorchBackend: placement, exchange and compute, and the table of its capabilities."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.adapter.loadable_shapes import LoadableShapes
from anyaccel.adapter.memory_figures import MemoryFigures
from anyaccel.adapter.outer_contexts import LeavesContexts
from anyaccel.adapter.single_rows import SingleRows
from anyaccel.adapter.step_costs import StepCosts
from anyaccel.adapter.step_profiler import ProfilesSteps
from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.backend import Memory
from anyaccel.capability import Capabilities, lazy
from anyaccel.machine import ExpectedDevices
from anyaccel.own_loop.capability import OwnLoops
from anyaccel.precision import ComputesPrecision
from anyaccel_torch.compute import TorchCompute, TorchWeightFiles
from anyaccel_torch.exchange import TorchExchange
from anyaccel_torch.installed_build import TorchExpectedDevices
from anyaccel_torch.memory import TorchMemory
from anyaccel_torch.settings import TorchSettings


class TorchBackend(TorchExchange, TorchCompute):
    """torch on the kinds of device that torch itself supports. Creating one does not import torch.

    A chip that torch has a device type for is supported by a subclass that sets `kinds`, and where needed
    `torch_types`, `pinned_kinds` and `unsupported_dtypes` (see `TorchPlacement`), and `capabilities`.
    """

    environment: ClassVar[tuple[str, ...]] = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "KERAS_BACKEND")
    capabilities: ClassVar[Capabilities] = {
        Memory: TorchMemory,
        MemoryFigures: lazy("anyaccel_torch.step_cost:TorchMemoryFigures"),
        StepCosts: lazy("anyaccel_torch.step_cost:TorchStepCosts"),
        ProfilesSteps: lazy("anyaccel_torch.step_profile:TorchProfiler"),
        ObservesTransfers: lazy("anyaccel_torch.transfer_observer:TorchTransfers"),
        ComputesPrecision: lazy("anyaccel_torch.precise_call:TorchPrecision"),
        SingleRows: lazy("anyaccel_torch.module_traits:TorchSingleRows"),
        WeightFiles: TorchWeightFiles,
        LoadableShapes: lazy("anyaccel_torch.loadable_shapes:TorchLoadableShapes"),
        HasSettings: TorchSettings,
        OwnLoops: lazy("anyaccel_torch.own_loop:TorchLoops"),
        LeavesContexts: lazy("anyaccel_torch.outer_contexts:TorchContexts"),
        "anyaccel_distributed.DeviceReplicas": lazy("anyaccel_torch.device_replicas:TorchReplicas"),
        "anyaccel_distributed.ShardParameters": lazy("anyaccel_torch.sharding:TorchSharding"),
        ExpectedDevices: TorchExpectedDevices,
        "anyaccel_devtools.HealthChecks": lazy("anyaccel_torch.health_checks:TorchHealthChecks"),
    }

    def thread_rng(self, key: int | None) -> AbstractContextManager[Any]:
        """Return a context for the CPU generator of this thread; see `Backend.thread_rng`."""
        from anyaccel_torch.thread_rng import ThreadRandomness

        return ThreadRandomness(key)

    def global_rng(self, key: int) -> AbstractContextManager[Any]:
        """The generator of the CPU starts from `key`; those of devices are kept."""
        from anyaccel_torch.thread_rng import GlobalRandomness

        return GlobalRandomness(key)

    def watch_rng(self) -> AbstractContextManager[Any]:
        """Return a context that watches the CPU generator; see `Backend.watch_rng`."""
        from anyaccel_torch.thread_rng import WatchedRandomness

        return WatchedRandomness()

    def generator_state(self, generator: Any = None) -> np.ndarray | None:
        """Return the state of a `torch.Generator`, or of the global generator of the host; None for anything else."""
        import torch

        generator = torch.default_generator if generator is None else generator
        if not isinstance(generator, torch.Generator):
            return None
        return np.asarray(generator.get_state().numpy().copy())

    def set_generator_state(self, state: np.ndarray, generator: Any = None) -> None:
        import torch

        generator = torch.default_generator if generator is None else generator
        generator.set_state(torch.from_numpy(np.array(state, np.uint8)))
