"""TorchBackend: placement, exchange and compute, and the table of its capabilities."""

from __future__ import annotations

from collections.abc import Sequence
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
from anyaccel.backend import AsyncCopy, Exchange, Memory, MemoryInfo
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty, host_memory, is_dense, is_own
from anyaccel.machine import ExpectedDevices
from anyaccel.precision import ComputesPrecision
from anyaccel_torch.compute import TorchCompute, TorchWeightFiles
from anyaccel_torch.error_translation import first_line, translate_errors
from anyaccel_torch.host_transfer import (
    as_array,
    can_copy_aside,
    check_dtypes,
    copied,
    copied_aside,
    numpy_dtype,
    pinned_empty,
    shared,
)
from anyaccel_torch.installed_build import TorchExpectedDevices
from anyaccel_torch.placement import TorchPlacement
from anyaccel_torch.settings import TorchSettings

# -- Exchange: tensors from and to host memory, and from other frameworks ---------------------------------------------


class TorchExchange(TorchPlacement, Exchange):
    """Exchange through NumPy and DLPack."""

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Any strides and byte order, and read-only arrays without a warning."""
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            pinned = pinned and device.kind in self.pinned_kinds
            host = copied(array, pinned=pinned)
            check_dtypes(host, device, self.unsupported_dtypes)
            return host.to(self.native_device(device), non_blocking=pinned and host.is_pinned())

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a tensor; on the CPU it shares the memory of a writable, dense array."""
        if self.native_device(device).type != "cpu" or not is_own(array):
            return self.from_host(array, device)
        tensor = shared(array)
        check_dtypes(tensor, device, self.unsupported_dtypes)
        return tensor

    def staging_buffer(self, shape: tuple[int, ...], dtype: str, device: Device) -> np.ndarray:
        """Allocate host memory, page-locked for `pinned_kinds` while such memory is available."""
        pinned = pinned_empty(shape, dtype) if device.kind in self.pinned_kinds else None
        return aligned_empty(shape, numpy_dtype(dtype)) if pinned is None else pinned

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Page-locked memory is copied by its own stream, other memory at once."""
        target = self.native_device(device)
        if (
            device.kind not in self.pinned_kinds
            or not is_dense(array)
            or not can_copy_aside(host := shared(array), target)
        ):
            return AsyncCopy(self.from_host(array, device))
        check_dtypes(host, device, self.unsupported_dtypes)
        with translate_errors(f"an array of {array.nbytes} bytes on {device}"):
            return copied_aside(host, target)

    def to_host(self, tensor: Any) -> np.ndarray:
        """Return bfloat16 as the dtype of ml_dtypes.

        Raises:
            MoveError: an 8-bit float or a sparse layout, which NumPy does not support.
        """
        host = tensor.detach().cpu()
        try:
            array = as_array(host.resolve_conj().resolve_neg())
        except (TypeError, RuntimeError) as error:
            raise MoveError(
                f"NumPy cannot hold a tensor of {tensor.dtype} ({tensor.layout}): {first_line(error)}",
                hint="convert it first: tensor.float(), or tensor.to_dense() if it is sparse",
            ) from error
        return array

    def from_dlpack(self, foreign: Any, device: Device) -> Any:
        """Read-only arrays are copied, as torch would write to them."""
        import torch

        if isinstance(foreign, torch.Tensor):
            return self.move(foreign, device)
        if not getattr(getattr(foreign, "flags", None), "writeable", True):
            return self.from_host(np.asarray(foreign), device)
        if any(stride < 0 for stride in getattr(foreign, "strides", None) or ()):  # these end torch's process
            return self.from_host(np.asarray(foreign), device)
        try:
            tensor = torch.from_dlpack(foreign)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            kind = f"{type(foreign).__module__}.{type(foreign).__name__}"
            raise MoveError(
                f"torch cannot import a {kind} through DLPack: {first_line(error)}",
                hint="pass a plain array without gradients, or copy it through host memory with from_host",
            ) from error
        return self.move(tensor, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any = None) -> Any:
        """Return a view of the column without an order."""
        if order is None:
            return column[start:stop]
        with translate_errors(f"rows {start} to {stop} of a column of shape {list(column.shape)}"):
            return column.index_select(0, order[start:stop])

    def scalars(self, values: Sequence[Any]) -> np.ndarray:
        """Return scalars with one transfer per device and dtype."""
        import torch

        result = np.empty(len(values), dtype=np.float64)
        groups: dict[Any, list[int]] = {}
        for i, value in enumerate(values):
            groups.setdefault((value.device, value.dtype), []).append(i)
        for indices in groups.values():
            stacked = torch.stack([values[i].detach().reshape(()) for i in indices])
            result[indices] = stacked.cpu().double().numpy()
        return result


# ----------------------------------------------------------------------------------------------------------------------


# -- Memory figures of a device, from torch's allocator ---------------------------------------------------------------


class TorchMemory(Memory):
    """For an accelerator, the figures of this process's caching allocator; for the CPU, its total and free memory."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the memory; memory that torch only caches counts as not free."""
        target = None if device.kind == "cpu" else self.backend.native_device(device)
        if target is None or target.type == "cpu":  # a derived backend may compute a kind of its own on the CPU
            total, free = host_memory()
            return MemoryInfo(total, free, used=0, peak=0)
        import torch

        module = torch.get_device_module(target)
        if not hasattr(module, "mem_get_info"):
            return MemoryInfo(0, 0, 0, 0)
        free, total = module.mem_get_info(target)
        return MemoryInfo(total, free, module.memory_allocated(target), module.max_memory_allocated(target))

    def release_memory(self, device: Device) -> None:
        """Release torch's cache on all devices of this kind."""
        if device.kind != "cpu":
            import torch

            torch.get_device_module(self.backend.native_device(device)).empty_cache()


# ----------------------------------------------------------------------------------------------------------------------


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
        LeavesContexts: lazy("anyaccel_torch.outer_contexts:TorchContexts"),
        "anyaccel_distributed.DeviceReplicas": lazy("anyaccel_torch.device_replicas:TorchReplicas"),
        "anyaccel_distributed.ShardParameters": lazy("anyaccel_torch.sharding:TorchSharding"),
        "anyaccel_distributed.OwnLoops": lazy("anyaccel_torch.own_loop:TorchLoops"),
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
