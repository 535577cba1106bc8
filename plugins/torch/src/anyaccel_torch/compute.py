"""Shapes, values and programs of torch modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import Compute, Program
from anyaccel.errors import MoveError, StateError
from anyaccel.segment import Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_torch.error_translation import telling
from anyaccel_torch.placement import TorchPlacement

if TYPE_CHECKING:
    import torch


class TorchCompute(TorchPlacement, Compute):
    """Takes `nn.Module`s as models; what they give may be a tensor, or a tuple, list or dict of tensors."""

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """As `Compute.infer`; runs the model on zeros in evaluation mode, and leaves it as it was."""
        from anyaccel_torch.shape_inference import infer

        return infer(model, inputs, seed)

    def dtype_of(self, model: Any) -> str | None:
        """As `Compute.dtype_of`: that of the first floating parameter, or what a recipe says of an unbuilt one."""
        from anyaccel_torch.shape_inference import wanted_dtype

        return wanted_dtype(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """As `Compute.parameters`; a parameter that several parts share stands under its first name.

        Raises:
            StateError: the model is not built yet.
        """
        from anyaccel_torch.module_state import parameters
        from anyaccel_torch.shape_inference import name_of

        named = _built(model, parameters(model))
        return {name: TensorSpec(tuple(tensor.shape), name_of(tensor.dtype)) for name, tensor in named.items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec]) -> bool:
        """As `Compute.writes`; runs the model on zeros and asks torch's count of writes."""
        from anyaccel_torch.module_traits import writes

        return writes(model, inputs)

    def batch_coupling(self, model: Any) -> str:
        """As `Compute.mixes`; knows batch normalization as a layer, not as a function."""
        from anyaccel_torch.module_traits import mixes

        return mixes(model)

    def data_format(self, model: Any) -> tuple[str, str]:
        """As `Compute.layout`, for single layers and plain sequences of them."""
        from anyaccel_torch.module_traits import layout

        return layout(model)

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`; a `TorchProgram`, which works on the user's modules in place."""
        from anyaccel_torch.program import TorchProgram

        with telling(f"the program of segment {segment.label!r}, with its optimizer state"):
            return TorchProgram(segment, self.torch_device)

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """As `Compute.state`; buffers that the module does not keep (`persistent=False`) are left out.

        Raises:
            StateError: the model is not built yet, or has a dtype that NumPy lacks.
        """
        return {name: _host_copy(name, tensor) for name, tensor in _named(model).items()}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """As `Compute.load_state`; nothing is written if anything does not fit."""
        import torch

        from anyaccel_torch.host_transfer import copied

        named = _named(model)
        _check_names(state, named)
        try:
            values = {name: copied(np.asarray(state[name])) for name in named}
        except MoveError as error:
            asked = f"the state cannot be loaded: {error.problem}"
            raise StateError(asked, available=error.available, hint=error.hint) from error
        for name, tensor in named.items():
            _check_value(name, values[name], tensor)
        with torch.no_grad():
            for name, tensor in named.items():
                tensor.copy_(values[name])

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """As `Compute.refuses`; takes losses of Keras, and says what to use in place of its optimizers."""
        reason = super().unsupported_reason(recipe)
        if not reason:
            return ""
        from anyaccel_torch import keras

        if isinstance(recipe, Loss):
            return "" if keras.is_loss(recipe.own) else reason
        if not keras.is_optimizer(recipe.own):
            return reason
        return f"{reason}, and Keras's optimizers change Keras's variables only; torch.optim has most of them too"

    def models(self) -> Mapping[str, type]:
        """SequentialMLP and SequentialCNN."""
        from anyaccel_torch.builtin_models import SequentialCNN, SequentialMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN}


def _built(model: torch.nn.Module, named: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    from torch.nn.parameter import is_lazy

    from anyaccel_torch import keras
    from anyaccel_torch.shape_inference import unbuilt

    if unbuilt(model) or keras.unbuilt(model) or any(is_lazy(tensor) for tensor in named.values()):
        raise StateError(
            f"{type(model).__name__} has no parameters yet: the shapes of its inputs are not known",
            hint="build the graph it is in, or call it once with a batch",
        )
    return named


def _named(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Parameters and buffers under the names of a state; those that are shared once."""
    from anyaccel_torch.module_state import buffers, parameters

    named = {f"parameters/{name}": tensor for name, tensor in parameters(model).items()}
    return _built(model, {**named, **{f"buffers/{name}": tensor for name, tensor in buffers(model).items()}})


def _host_copy(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        host: np.ndarray = tensor.detach().cpu().numpy().copy()
    except TypeError as error:
        raise StateError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}, which NumPy lacks",
            available=str(error),
            hint="convert the model before saving, with model.float(), and back after loading",
        ) from error
    return host


def _check_names(state: Mapping[str, np.ndarray], named: Mapping[str, torch.Tensor]) -> None:
    missing, strange = [name for name in named if name not in state], [name for name in state if name not in named]
    if missing or strange:
        asked = [f"lacks {', '.join(missing)}"] if missing else []
        asked += [f"has {', '.join(strange)}, which the model has not"] if strange else []
        there = f"the model has {', '.join(named) or 'no values'}"
        raise StateError(
            f"the state {' and '.join(asked)}", available=there, hint="load the state of a model made alike"
        )


def _check_value(name: str, value: torch.Tensor, tensor: torch.Tensor) -> None:
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        given, has = (f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (value, tensor))
        remedy = "load the state of a model of the same sizes and dtype"
        raise StateError(f"{name} in the state is {given}", available=f"the model's is {has}", hint=remedy)
