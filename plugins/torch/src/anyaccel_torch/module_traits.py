"""Traits of a module: whether it writes to its inputs, its image layout, its coupling of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from anyaccel.adapter.single_rows import SingleRows
from anyaccel.errors import GraphError
from anyaccel.segment import Operation, Path, TensorSpec
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import SequentialCNN
from anyaccel_torch.divided_gradients import is_dtensor
from anyaccel_torch.host_transfer import tensors_in
from anyaccel_torch.module_state import submodules
from anyaccel_torch.shape_inference import infer_outputs, single_row_reason
from anyaccel_torch.synchronized_norm import is_synchronizable

_SPATIAL = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


_OTHERS = {
    "Tensor": "make it an nn.Parameter of an nn.Module whose forward uses it, and pass that module",
    "Optimizer": "pass the module as the model, and the optimizer to the graph: ModelGraph(nodes, 'adam')",
    "ExportedProgram": "pass the module that it was exported from",
    "ScriptFunction": "call the function in the forward of an nn.Module, and pass that module",
}


def check_module(model: Any) -> None:
    """Check that an object of torch is a module that a node can have.

    Raises:
        GraphError: It is not; the hint has the replacement.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        hints = (_OTHERS[base.__name__] for base in type(model).__mro__ if base.__name__ in _OTHERS)
        raise GraphError(f"{_with_article(kind)} is not a torch module", hint=next(hints, "pass an nn.Module"))
    if type(model).__hash__ is None:
        hint = f"write __hash__ = nn.Module.__hash__ into {kind}, because defining __eq__ removes it"
        raise GraphError(f"{_with_article(kind)} cannot be hashed, but torch hashes modules", hint=hint)
    if not hasattr(model, "_modules"):
        raise GraphError(
            f"{_with_article(kind)} has not called the __init__ of nn.Module",
            hint=f"begin the __init__ of {kind} with super().__init__()",
        )
    for name, parameter in model.named_parameters():
        if parameter.layout is not torch.strided:
            raise GraphError(
                f"the parameter {name!r} is sparse and cannot be trained by optimizers of torch",
                hint="make it dense: nn.Parameter(value.to_dense()); or, if it is not trained, a "
                "buffer: register_buffer('NAME', value, persistent=False)",
            )
    for part in model.modules():
        if {"FullyShardedDataParallel", "FSDPModule"} & {base.__name__ for base in type(part).__mro__}:
            raise GraphError(
                f"{_with_article(kind)} has parameters sharded by FSDP, and its state does not contain their values",
                hint="pass the module without FSDP, and shard it with TrainPhase(sharding='full')",
            )
        if not hasattr(part, "training"):
            raise GraphError(
                f"{_with_article(kind)} was frozen by torch.jit.freezeand no longer has a training mode",
                hint="pass the scripted module before it is frozen: torch.jit.script(module)",
            )


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def mutates_inputs(model: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Path]) -> bool:
    """Return whether a module writes to its inputs, by the version counters of zeros in a trial call.

    In-place dropout writes only in training; it counts anywhere in the module.
    """
    if any(isinstance(part, _DROPOUT) and part.inplace for part in submodules(model)):
        return True
    received: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, *values: received.extend(tensors_in(values)), with_kwargs=True)
    try:
        infer_outputs(model, inputs, arguments, seed=0)
    finally:
        hook.remove()
    return any(tensor._version for tensor in received)  # noqa: SLF001


def data_format(model: nn.Module) -> tuple[str, str]:
    """Return the format of image layers, and of a `Sequential` that begins or ends with one.

    Other modules return `""`: their forward may move the axes.
    """
    if isinstance(model, SequentialCNN):
        return "channels_first", ""
    if keras.library().is_layer(model):
        return keras.library().data_format(model)
    layers = [layer for layer in _flat(model) if not _is_elementwise(layer)]
    first, last = (
        "channels_first" if end and isinstance(end[0], _SPATIAL) else "" for end in (layers[:1], layers[-1:])
    )
    return first, last


def _flat(model: nn.Module) -> list[nn.Module]:
    return [part for layer in model for part in _flat(layer)] if isinstance(model, nn.Sequential) else [model]


def _is_elementwise(layer: nn.Module) -> bool:
    return layer.__class__.__module__ in ("torch.nn.modules.activation", "torch.nn.modules.dropout")


def batch_coupling(model: nn.Module) -> str:
    """Name of the first layer that normalizes over the batch in training, or `""`; functions are not seen."""
    parts = (part for part in submodules(model) if _couples_rows(part))
    return next((getattr(part, "original_name", type(part).__name__) for part in parts), "")


class TorchSingleRows(SingleRows):
    """Models with batch normalization."""

    def single_row_reason(self, operation: Operation, inputs: Sequence[TensorSpec]) -> str:
        """Run such a model on zeros in its training modes."""
        model: Any = operation.model
        return single_row_reason(operation, inputs) if batch_coupling(model) else ""


def unsynchronizable(model: nn.Module) -> str:
    """Return the name of the first layer that cannot normalize over the rows of all replicas, or `""`."""
    layers = (part for part in submodules(model) if _couples_rows(part))
    return next((type(part).__name__ for part in layers if not is_synchronizable(part)), "")


def _couples_rows(part: nn.Module) -> bool:
    is_torch = isinstance(part, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001 - the base of all of torch's
    is_torch = is_torch or "BatchNorm" in getattr(part, "original_name", "")  # scripted and traced ones have one class
    is_keras = any(base.__name__ == "BatchNormalization" for base in type(part).__mro__)
    return is_torch or (is_keras and getattr(part, "trainable", True))


def convolves(model: Any) -> bool:
    """Whether a layer of torch or Keras in a model is a convolution."""
    return isinstance(model, nn.Module) and any(_is_convolution(part) for part in submodules(model))


def _is_convolution(part: nn.Module) -> bool:
    return bool({"_ConvNd", "BaseConv"} & {base.__name__ for base in type(part).__mro__})


def has_dtensors(model: Any) -> bool:
    """Return whether a module has parameters that are sharded over processes."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return any(map(is_dtensor, parameters))
