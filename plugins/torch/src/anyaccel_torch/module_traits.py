"""What a module does besides computing: whether it writes to its inputs, its image layout, its coupling of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from anyaccel.segment import Path, TensorSpec
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import SequentialCNN
from anyaccel_torch.module_state import submodules
from anyaccel_torch.optimizer_groups import is_dtensor
from anyaccel_torch.shape_inference import infer_outputs
from anyaccel_torch.synchronized_norm import is_synchronizable
from anyaccel_torch.tree_utils import tensors_in

_SPATIAL = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def mutates_inputs(model: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Path]) -> bool:
    """Whether a module writes to its inputs, by the version counters of the zeros that it is run on.

    In-place dropout writes in training only; it counts wherever it is in the module.
    """
    if any(isinstance(part, _DROPOUT) and part.inplace for part in submodules(model)):
        return True
    received: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, *given: received.extend(tensors_in(given)), with_kwargs=True)
    try:
        infer_outputs(model, inputs, arguments, seed=0)
    finally:
        hook.remove()
    return any(tensor._version for tensor in received)  # noqa: SLF001


def data_format(model: nn.Module) -> tuple[str, str]:
    """As `Compute.data_format`: known of image layers, and of a `Sequential` that begins or ends with one.

    Other modules give `""`: their forward may move the axes.
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
    return next((type(part).__name__ for part in submodules(model) if _couples_rows(part)), "")


def unsynchronizable(model: nn.Module) -> str:
    """Name of the first of these layers that cannot normalize by the rows of all replicas, or `""`."""
    layers = (part for part in submodules(model) if _couples_rows(part))
    return next((type(part).__name__ for part in layers if not is_synchronizable(part)), "")


def _couples_rows(part: nn.Module) -> bool:
    is_torch = isinstance(part, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001 - the base of all of torch's
    is_keras = any(base.__name__ == "BatchNormalization" for base in type(part).__mro__)
    return is_torch or (is_keras and getattr(part, "trainable", True))


def convolves(model: Any) -> bool:
    """Whether a layer of torch or Keras in a model is a convolution."""
    return isinstance(model, nn.Module) and any(_is_convolution(part) for part in submodules(model))


def _is_convolution(part: nn.Module) -> bool:
    return bool({"_ConvNd", "BaseConv"} & {base.__name__ for base in type(part).__mro__})


def shares_batches(model: Any) -> bool:
    """Whether a module or a part of it is a `DataParallel`, which sends rows to devices of its own."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(part, nn.DataParallel) for part in parts)


def has_dtensors(model: Any) -> bool:
    """Whether a module has parameters that are divided among processes."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return any(map(is_dtensor, parameters))
