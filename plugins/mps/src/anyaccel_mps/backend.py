"""MpsBackend: `TorchBackend` with the differences of the Apple GPU."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyaccel.backend import AsyncCopy, DeviceInfo, Memory, MemoryInfo, Program
from anyaccel.capability import Capabilities, lazy
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.machine import ExpectedDevices, Machine, is_older
from anyaccel.segment import Segment
from anyaccel_torch import TorchBackend
from anyaccel_torch.error_translation import first_line

if TYPE_CHECKING:
    import torch

    from anyaccel_mps.operator_support import OperatorSupport


class MpsMemory(Memory):
    """Memory of this process only: it is shared with the CPU, and other processes are not seen."""

    def memory(self, device: Device) -> MemoryInfo:
        """Return the memory of this process. Torch's cache counts as neither free nor used, and the peak is unknown."""
        import torch

        total = total_memory()
        free = max(total - int(torch.mps.driver_allocated_memory()), 0)
        return MemoryInfo(total, free, used=int(torch.mps.current_allocated_memory()), peak=0)

    def release_memory(self, device: Device) -> None:
        """Release torch's cache."""
        import torch

        torch.mps.empty_cache()


class MpsExpectedDevices(ExpectedDevices):
    """One GPU on a Mac with an Apple GPU, whose system torch supports."""

    def expected_of_kind(self, kind: str, machine: Machine) -> Sequence[DeviceInfo] | None:
        """Return the GPU found in the facts of the machine."""
        return expected_gpus(machine)


class MpsBackend(TorchBackend):
    """PyTorch on the Apple GPU: one device without float64, whose copies are synchronous. Does not import torch.

    No copy is asynchronous or from pinned memory, even on request: asynchronous copies to MPS may give wrong values.
    """

    kinds: ClassVar[tuple[str, ...]] = ("mps",)
    pinned_kinds: ClassVar[frozenset[str]] = frozenset()
    unsupported_dtypes: ClassVar[frozenset[str]] = frozenset({"float64", "complex128"})
    environment: ClassVar[tuple[str, ...]] = (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "KERAS_BACKEND",
    )
    capabilities: ClassVar[Capabilities] = {
        **TorchBackend.capabilities,
        Memory: MpsMemory,
        ExpectedDevices: MpsExpectedDevices,
        "anyaccel_devtools.HealthChecks": lazy("anyaccel_mps.health_checks:MpsHealthChecks"),
    }

    def unavailable_reason(self, device: Device) -> str:
        """Return the system, the build of torch, or that there is only one device."""
        return unavailable_reason(device, len(self.devices()))

    def device_info(self, device: Device) -> DeviceInfo:
        """Return the GPU without a memory space, as torch copies between CPU and MPS although they share memory."""
        return apple_gpu_info()

    def place(self, obj: Any, device: Device) -> Any:
        """Place a model or tensor on MPS. Nothing is moved if any tensor in `obj` has an unsupported dtype."""
        check_tensors(obj, device, self.unsupported_dtypes)
        return super().place(obj, device)

    def move(self, tensor: Any, device: Device, *, pinned: bool = False) -> Any:
        """Move a tensor, and wait for the copy."""
        check_tensors(tensor, device, self.unsupported_dtypes)
        return super().move(tensor, device)

    def synchronize(self, device: Device) -> None:
        """Wait for all work on MPS."""
        import torch

        torch.mps.synchronize()

    def from_host(self, array: np.ndarray, device: Device, *, pinned: bool = False) -> Any:
        """Copy an array to MPS, and wait for the copy. An unsupported dtype is refused before anything is copied."""
        check_array(array.dtype, device, self.unsupported_dtypes)
        return super().from_host(array, device)

    def from_host_owned(self, array: np.ndarray, device: Device) -> Any:
        """Return a copy, as Metal cannot compute on the array's own memory."""
        return self.from_host(array, device)

    def copy_async(self, array: np.ndarray, device: Device) -> AsyncCopy:
        """Copy an array to MPS, and wait for the copy, since asynchronous copies to MPS have given garbage."""
        return AsyncCopy(self.from_host(array, device))

    def build(self, segment: Segment) -> Program:
        """Check by a dry run that MPS has the operators of a step, and build a program.

        Warns:
            FallbackWarning: MPS lacks some of them, and torch computes these on the CPU.

        Raises:
            PhaseError: MPS lacks some of them, and PYTORCH_ENABLE_MPS_FALLBACK is not set.
        """
        support = self.operator_support()
        if support is not None:
            from anyaccel_mps.operator_check import check_operators

            check_operators(segment, support)
        return super().build(segment)

    def operator_support(self) -> OperatorSupport | None:
        """Return which operators MPS has; None where this torch does not know, and operators are not checked."""
        try:
            import anyaccel_mps.dry_run  # noqa: F401
            from anyaccel_mps.operator_support import OperatorSupport
        except ImportError:  # both use private names of torch, which may move
            return None
        support = OperatorSupport()
        return support if support.is_known() else None


# -- Description of the Apple GPU, and why it is unavailable -----------------------------------------------------------


_OLDEST_SYSTEM = "14.0"  # of macOS, that every supported torch finds MPS on


def apple_gpu_info() -> DeviceInfo:
    """Return name, vendor and memory of the GPU, with the `total_memory` of `total_memory()`. Initializes Metal."""
    import torch

    name = getattr(torch.backends.mps, "get_name", None)  # newer than the oldest supported torch
    return DeviceInfo("Apple GPU" if name is None else str(name()), "apple", total_memory=total_memory())


def total_memory() -> int:
    """Return bytes that Metal recommends a process to use at most; a part of the Mac's memory."""
    import torch

    return int(torch.mps.recommended_max_memory())


def expected_gpus(machine: Machine) -> list[DeviceInfo] | None:
    """Return the Apple GPU, to the extent that the system tells; None where torch must be asked."""
    if machine.system != "darwin":
        return []
    release = platform.mac_ver()[0]
    if not find_spec("torch") or not release or is_older(release, _OLDEST_SYSTEM):
        return None
    return [device.info() for device in machine.visible if device.kind == "mps"]


def unavailable_reason(device: Device, count: int) -> str:
    """Return why a device is not among the `count` Apple GPUs that torch sees. Initializes nothing."""
    if count:
        return "" if device.index < count else "torch has one Apple GPU, mps:0"
    if platform.system() != "Darwin":
        return f"MPS is part of macOS, but this is {platform.system() or 'another system'}"
    try:
        import torch
    except Exception as error:  # listing devices must work with a broken torch
        return f"torch cannot be imported: {first_line(error)}"
    if not torch.backends.mps.is_built():
        return f"this torch, {torch.__version__}, is built without MPS"
    system = f"macOS {platform.mac_ver()[0]}".rstrip()
    return f"torch {torch.__version__} finds no MPS: {system} is too old for it, or the Mac has no supported GPU"


# -- Checks for dtypes that the Apple GPU does not support, before anything is moved -----------------------------------


# By unsupported dtype: the closest one, and how to convert a tensor and a module to it.
_CLOSEST = {
    "float64": ("float32", "tensor.float()", "model.float()"),
    "complex128": ("complex64", "tensor.to(torch.complex64)", "model.to(torch.complex64)"),
}
_DEFAULT = ("float32", "tensor.float()", "model.float()")


def check_tensors(obj: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check the dtypes of all tensors in a tensor, a module, or a dict, list or tuple of such.

    Raises:
        MoveError: one is unsupported; names it and its dtype.
    """
    for tensor_name, in_module, tensor in _named_tensors(obj, ""):
        dtype = str(tensor.dtype).removeprefix("torch.")
        reason = "" if dtype in unsupported else refusal(tensor.dtype)
        if dtype in unsupported or reason:
            closest, tensor_call, module_call = _CLOSEST.get(dtype, _DEFAULT)
            raise MoveError(
                f"{tensor_name or 'a tensor'} is {dtype}, which {device} does not support{reason and f': {reason}'}",
                available=closest,
                hint=f"convert it first: {module_call if in_module else tensor_call}",
            )


def check_array(dtype: Any, device: object, unsupported: frozenset[str]) -> None:
    """Check the dtype of a NumPy array.

    Raises:
        MoveError: it is unsupported.
    """
    if dtype.name in unsupported:
        closest = _CLOSEST.get(dtype.name, _DEFAULT)[0]
        raise MoveError(
            f"the array is {dtype.name}, which {device} does not support",
            available=closest,
            hint=f"convert it first: array.astype({closest!r})",
        )


@cache
def refusal(dtype: torch.dtype) -> str:
    """Return torch's own message if it cannot make a tensor of a dtype on MPS; `""` if it can, or has no MPS.

    Support of bfloat16 and the 8-bit floats depends on the versions of torch and macOS.
    """
    import torch

    try:
        torch.empty(0, dtype=dtype, device="mps")
    except TypeError as error:
        return first_line(error)
    except Exception:  # no MPS here, which is not about the dtype
        return ""
    return ""


def _named_tensors(obj: Any, path: str) -> Iterator[tuple[str, bool, Any]]:
    """Yield the name of each tensor in `obj`, whether it is a module's, and the tensor."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield path, False, obj
    elif isinstance(obj, torch.nn.Module):
        owner = f"{type(obj).__name__}{' ' + path if path else ''}"
        for kind, named in (("parameter", obj.named_parameters()), ("buffer", obj.named_buffers())):
            for name, tensor in named:
                yield f"{kind} {name!r} of {owner}", True, tensor
    elif isinstance(obj, (Mapping, list, tuple)):
        for key, item in obj.items() if isinstance(obj, Mapping) else enumerate(obj):
            yield from _named_tensors(item, f"{path or 'item '}[{key!r}]")
