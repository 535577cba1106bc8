"""Calls of modules in a precision: inside autocast, or with all their tensors cast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyaccel.adapter.precision_casts import codes_reason
from anyaccel.device import Device
from anyaccel.precision import PRECISIONS, ComputesPrecision, NodePrecision
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import BuiltinModel
from anyaccel_torch.forward_call import output_tensors
from anyaccel_torch.module_traits import convolves, input_dtype
from anyaccel_torch.recomputation import parts_to_recompute
from anyaccel_torch.replaced_tensors import call_with, tensor_names
from anyaccel_torch.settings import matmul_precision

Call = Callable[..., Any]


def casts_everything(model: Any, precision: NodePrecision) -> bool:
    """Whether a module's tensors are cast: autocast has mixed precisions alone, and its own dtype needs no cast."""
    return not precision.is_mixed and input_dtype(model) not in (None, precision.dtype)


class TorchPrecision(ComputesPrecision):
    """Precision by autocast, or with all tensors cast."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    matmul_precisions: ClassVar[tuple[Any, ...]] = ("highest", "high", "medium")

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """Return why a precision is not possible, by the dtypes of the device and the support of autocast and Keras."""
        wanted, native = NodePrecision(precision), self.backend.native_device(device)
        if wanted.dtype in self.backend.unsupported_dtypes:
            return f"torch has no {wanted.dtype} on {device}"
        if casts_everything(model, wanted):
            for part in model.modules() if isinstance(model, nn.Module) else ():
                if isinstance(part, BuiltinModel) and (reason := codes_reason(part.spec, precision)):
                    return reason
            made = f"layers of Keras compute in {wanted.dtype} only if they are created with dtype={wanted.dtype!r}"
            return made if keras.outermost(model) else ""
        if wanted.is_mixed and not _autocasts_to(wanted.dtype, native.type):
            return f"torch has no autocast to {wanted.dtype} on {native.type!r}"
        if wanted.dtype == "bfloat16" and native.type == "cuda":
            with torch.cuda.device(native):
                return "" if torch.cuda.is_bf16_supported(including_emulation=False) else f"{native} has no bfloat16"
        return ""

    def matmul_precision(self, value: Any) -> AbstractContextManager[Any]:
        """Set the precision with `torch.set_float32_matmul_precision`, inside a context."""
        return matmul_precision().hold(value)

    def float32_note(self, model: Any, device: Device) -> str:
        """Return a note on convolutions in TF32, the default of torch's cuDNN."""
        if device.kind != "gpu" or not torch.backends.cudnn.allow_tf32 or not convolves(model):
            return ""
        return (
            f"torch computes convolutions of float32 in TF32 on {device} by default, with three digits, if the GPU "
            f"supports it: use FrameworkSettings({{'torch.backends.cudnn.allow_tf32': False}}) for full precision"
        )

    def remat_blocks(self, model: Any, remat: str) -> Sequence[str]:
        """Members of lists and sequences of layers, or modules by their names.

        None of a model with layers of Keras, whose seeds and arguments would be others when they are computed again.
        """
        if isinstance(model, nn.Module) and keras.outermost(model):
            return []
        return [part.name for parts in parts_to_recompute(model, remat).values() for part in parts]


def _autocasts_to(dtype: str, device_type: str) -> bool:
    """Return whether torch has autocast on a kind of device; a chip's own module lists its dtypes."""
    if not torch.amp.is_autocast_available(device_type):
        return False
    told = getattr(torch.get_device_module(device_type), "get_amp_supported_dtype", None)
    return told is None or getattr(torch, dtype) in told()


def bind_precision(model: Any, call: Call, precision: NodePrecision, device: torch.device) -> Call:
    """Return `call` with its module computed in a precision; floating outputs have the dtype of its parameters."""
    if casts_everything(model, precision):
        return _cast_call(model, call, precision)
    if not torch.amp.is_autocast_available(device.type):  # on torch's meta, which has no values
        return call
    dtype, device_type, mixed = getattr(torch, precision.dtype), device.type, precision.is_mixed

    def run(*inputs: Tensor) -> Any:
        with torch.autocast(device_type, dtype=dtype if mixed else None, enabled=mixed):
            result = call(*inputs)
        return _in_dtype(result, dtype, torch.float32) if mixed else result

    return run


class _Holder(nn.Module):
    """A module, and how to call it, as a module whose tensors are replaced."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self._calls = [call]  # in a list, as it may be the model itself

    def forward(self, *inputs: Tensor) -> Any:
        """The call."""
        return self._calls[0](*inputs)


def _cast_call(model: nn.Module, call: Call, precision: NodePrecision) -> Call:
    """Return a call with all floating tensors of the module cast; values written to its buffers are cast back."""
    holder, dtype, own = _Holder(model, call), getattr(torch, precision.dtype), getattr(torch, input_dtype(model) or "")
    names = tensor_names(holder)

    def run(*inputs: Tensor) -> Any:
        # those of this call: a compiled step puts others in their places, and one that is done again copies of buffers
        parameters, buffers = holder.named_parameters(), dict(holder.named_buffers())
        values = {name: _floating_to(tensor, dtype) for name, tensor in (*parameters, *buffers.items())}
        cast = tuple(_floating_to(tensor, dtype) for tensor in inputs)
        result = call_with(holder, values, names, *cast)
        if model.training:
            with torch.no_grad():
                for name, buffer in buffers.items():
                    if values[name] is not buffer:
                        buffer.copy_(values[name])
        return _in_dtype(result, dtype, own)

    return run


def _floating_to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _in_dtype(result: Any, narrow: torch.dtype, own: torch.dtype) -> Any:
    """Return the result of a module, with its tensors of one dtype in another."""
    if isinstance(result, Tensor):
        return result.to(own) if result.dtype is narrow else result
    return tuple(tensor.to(own) if tensor.dtype is narrow else tensor for tensor in output_tensors(result))
