"""Compute: shapes, values and programs of torch modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import Compute, Program
from anyaccel.errors import MoveError, StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.placement import TorchPlacement

if TYPE_CHECKING:
    import torch


class TorchCompute(TorchPlacement, Compute):
    """Models are `nn.Module`s that return a tensor, or a tuple, list or dict of tensors."""

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """As `Compute.infer`; runs the model on zeros in evaluation mode, and leaves it as it was."""
        from anyaccel_torch.shape_inference import infer

        return infer(model, inputs, seed)

    def dtype_of(self, model: Any) -> str | None:
        """As `Compute.dtype_of`: of the first floating parameter, or the one that an unbuilt model will have."""
        from anyaccel_torch.shape_inference import input_dtype

        return input_dtype(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """As `Compute.parameters`; a shared parameter is listed under its first name.

        Raises:
            StateError: the model is not built yet.
        """
        from anyaccel_torch.module_state import parameters
        from anyaccel_torch.shape_inference import dtype_name

        named = _check_built(model, parameters(model))
        return {name: TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in named.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """As `Compute.mutates_inputs`; runs the model on zeros and reads torch's version counters."""
        from anyaccel_torch.module_traits import mutates_inputs

        return mutates_inputs(model, inputs)

    def batch_coupling(self, model: Any) -> str:
        """As `Compute.batch_coupling`; knows batch normalization as a layer, not as a function."""
        from anyaccel_torch.module_traits import batch_coupling

        return batch_coupling(model)

    def data_format(self, model: Any) -> tuple[str, str]:
        """As `Compute.data_format`, for single layers and plain sequences of them."""
        from anyaccel_torch.module_traits import data_format

        return data_format(model)

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`; a `TorchProgram`, which trains the user's modules in place."""
        from anyaccel_torch.program import TorchProgram

        with translate_errors(f"the program of segment {segment.label!r}, with its optimizer state"):
            return TorchProgram(segment, self.torch_device)

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """As `Compute.state`; without buffers that the module does not save (`persistent=False`).

        Raises:
            StateError: the model is not built yet, or has a dtype that NumPy lacks.
        """
        return {name: _host_copy(name, tensor) for name, tensor in _named_state(model).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """As `Compute.load_state`; nothing is written if anything does not fit."""
        import torch

        from anyaccel_torch.host_transfer import copied

        named = _named_state(model)
        _check_names(state, named)
        try:
            values = {name: copied(np.asarray(state[name])) for name in named}
        except MoveError as error:
            problem = f"the state cannot be loaded: {error.problem}"
            raise StateError(problem, available=error.available, hint=error.hint) from error
        for name, tensor in named.items():
            _check_value(name, values[name], tensor)
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(values[name])

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """As `Compute.unsupported_reason`; takes Keras losses, and says what to use instead of Keras optimizers."""
        reason = super().unsupported_reason(recipe)
        if not reason:
            return ""
        from anyaccel_torch import keras

        if isinstance(recipe, Loss):
            return "" if keras.is_loss(recipe.own) else reason
        if not keras.is_optimizer(recipe.own):
            return reason
        return f"{reason}; Keras optimizers update Keras variables only, and torch.optim has most of them too"

    def models(self) -> Mapping[str, type]:
        """SequentialMLP and SequentialCNN."""
        from anyaccel_torch.builtin_models import SequentialCNN, SequentialMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN}


def _check_built(model: torch.nn.Module, named: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    from torch.nn.parameter import is_lazy

    from anyaccel_torch import keras
    from anyaccel_torch.shape_inference import unbuilt

    if unbuilt(model) or keras.unbuilt(model) or any(is_lazy(tensor) for tensor in named.values()):
        raise StateError(
            f"{type(model).__name__} has no parameters yet: the shapes of its inputs are not known",
            hint="build the graph it is in, or call it once with a batch",
        )
    return named


def _named_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Parameters and buffers by their names in a state; shared ones once."""
    from anyaccel_torch.module_state import buffers, parameters

    named = {f"parameters/{name}": tensor for name, tensor in parameters(model).items()}
    return _check_built(model, {**named, **{f"buffers/{name}": tensor for name, tensor in buffers(model).items()}})


def _host_copy(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        host: np.ndarray = tensor.detach().cpu().numpy().copy()
    except TypeError as error:
        raise StateError(
            f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}, which NumPy lacks",
            hint="convert the model before saving, with model.float(), and back after loading",
        ) from error
    return host


def _check_names(state: Mapping[str, np.ndarray], named: Mapping[str, torch.Tensor]) -> None:
    missing, unknown = [name for name in named if name not in state], [name for name in state if name not in named]
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(unknown)}, which the model does not have"] if unknown else []
        raise StateError(
            f"the state {' and '.join(parts)}",
            available=", ".join(named) or "a model without values",
            hint="load the state of a model with the same layers",
        )


def _check_value(name: str, value: torch.Tensor, tensor: torch.Tensor) -> None:
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        given, wanted = (f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (value, tensor))
        raise StateError(
            f"{name} is {given} in the state and {wanted} in the model",
            hint="load the state of a model of the same sizes and dtype",
        )
