"""Compute: shapes, values and programs of torch modules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyaccel.adapter.keyword_compute import KeywordCompute
from anyaccel.adapter.loadable_shapes import LoadableShapes
from anyaccel.adapter.output_activations import warn_of_activations
from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.backend import Program
from anyaccel.errors import GraphError, StateError
from anyaccel.install_hints import HINTS
from anyaccel.segment import OutputSpec, Path, Segment, TensorSpec
from anyaccel.specs import Loss, LossTargets, Optimizer
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.host_transfer import as_array, dtype_name
from anyaccel_torch.placement import TorchPlacement

if TYPE_CHECKING:
    import torch


class TorchCompute(TorchPlacement, KeywordCompute):
    """Models are `nn.Module`s that return a tensor, or a tuple, list or dict of tensors."""

    keeps_modes = True
    custom_steps = True
    parameter_groups = True

    def wrap(self, model: Any) -> Any:
        """Return the module itself.

        Raises:
            GraphError: it is not a module that can be called in both modes, or its state is not on one device.
        """
        import torch
        from torch import nn

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
            for base in type(part).__mro__:
                if base.__name__ in ("FullyShardedDataParallel", "FSDPModule"):
                    raise GraphError(
                        f"{_with_article(kind)} has parameters sharded by FSDP, and its state does not contain their "
                        "values",
                        hint="pass the module without FSDP, and shard it with TrainPhase(sharding='full')",
                    )
            if not hasattr(part, "training"):
                raise GraphError(
                    f"{_with_article(kind)} was frozen by torch.jit.freeze and no longer has a training mode",
                    hint="pass the scripted module before it is frozen: torch.jit.script(module)",
                )
        return model

    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """Run the model on zeros in evaluation mode, and restore its state."""
        from anyaccel_torch.module_traits import infer_outputs

        return infer_outputs(model, inputs, arguments, seed)

    def signature(self, model: Any) -> inspect.Signature | None:
        """Return the signature of the module's `forward`, or of a Keras layer's `call`; None where it is not known."""
        from torch import nn

        from anyaccel_torch import keras

        library = keras.library()
        if library.is_layer(model):
            return library.signature(model)
        try:
            return inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        except (TypeError, ValueError):
            return None

    def infer_training(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()
    ) -> tuple[OutputSpec, ...] | None:
        """Run the model on zeros in training mode, and restore its state; None for layers of torch in sequence."""
        from anyaccel_torch.module_traits import infer_training

        return infer_training(model, inputs, arguments)

    def dtype_of(self, model: Any) -> str | None:
        """Return the dtype of the first floating parameter, or the one that an unbuilt model will have."""
        from anyaccel_torch.module_traits import input_dtype

        return input_dtype(model)

    def parameters(self, model: Any) -> Mapping[str, TensorSpec]:
        """A shared parameter is listed under its first name.

        Raises:
            StateError: the model is not built yet.
        """
        from anyaccel.adapter.state_check import not_built_error
        from anyaccel_torch.module_state import parameters
        from anyaccel_torch.module_traits import is_built, tensor_spec

        if not is_built(model):
            raise not_built_error(model)
        return {name: tensor_spec(tensor) for name, tensor in parameters(model).items()}

    def mutates_inputs(self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path] = ()) -> bool:
        """Run the model on zeros, and read torch's version counters."""
        from anyaccel_torch.module_traits import mutates_inputs

        return mutates_inputs(model, inputs, arguments)

    def batch_coupling(self, model: Any) -> str:
        """Return the coupling; batch normalization is recognized as a layer, not as a function."""
        from anyaccel_torch.module_traits import batch_coupling

        return batch_coupling(model)

    def untrainable_reason(self, model: Any) -> str:
        """Return a reason for models of Keras, and for those that split batches themselves."""
        import torch

        from anyaccel_torch import keras
        from anyaccel_torch.keras_remat import remat_reason

        for part in model.modules():
            if isinstance(part, torch.nn.DataParallel):
                return (
                    "DataParallel splits batches itself; pass the wrapped module, and TrainPhase(accelerator='gpu:*')"
                )
        for parameter in model.parameters():
            if parameter.is_inference():
                return "parameters created in torch.inference_mode() have no gradients; create the model outside of it"
        for layer in keras.outermost(model):
            if reason := keras.library().untrainable_reason(layer) or remat_reason(layer):
                return reason
        return ""

    def data_format(self, model: Any) -> tuple[str, str]:
        """Return the format of single layers and plain sequences of them."""
        from anyaccel_torch.module_traits import data_format

        return data_format(model)

    def build(self, segment: Segment) -> Program:
        """Return a `TorchProgram`, which trains the user's modules in place."""
        from anyaccel_torch import keras
        from anyaccel_torch.program import TorchProgram

        warn_of_activations(keras.library(), segment)
        with translate_errors(f"the program of segment {segment.label!r}, with its optimizer state"):
            return TorchProgram(segment, self.native_device)

    def state(self, model: Any) -> dict[str, np.ndarray]:
        """Return the state without buffers that the module does not save (`persistent=False`).

        bfloat16 is the dtype of ml_dtypes. The extra state of modules (`get_extra_state`) is among the buffers.

        Raises:
            StateError: the model is not built yet, has a dtype that NumPy lacks, or an extra state with objects other
                than tensors, arrays, numbers and text.
        """
        return {name: _host_copy(name, tensor) for name, tensor in _named_state(model).items()}

    def live_state(self, model: Any) -> dict[str, np.ndarray]:
        """Return views of tensors on the CPU, and copies of others, with the errors of `state`."""
        from anyaccel_torch.host_transfer import view_of

        views = ((name, tensor, view_of(tensor)) for name, tensor in _named_state(model).items())
        return {name: _host_copy(name, tensor) if view is None else view for name, tensor, view in views}

    def load_state(self, model: Any, state: Mapping[str, np.ndarray]) -> None:
        """Nothing is written if anything does not fit."""
        import torch

        from anyaccel.adapter.state_check import check_state
        from anyaccel_torch.extra_state import extra_tensors, load_extra
        from anyaccel_torch.host_transfer import readable
        from anyaccel_torch.loadable_shapes import resize
        from anyaccel_torch.module_traits import tensor_spec

        named, extra = _named_state(model), extra_tensors(model)
        expected = {name: tensor_spec(tensor) for name, tensor in named.items()}
        differing = {
            name: TensorSpec(np.shape(state[name]), np.asarray(state[name]).dtype.name)
            for name, spec in expected.items()
            if name in state and np.shape(state[name]) != spec.shape
        }
        resized = self.required(LoadableShapes).loadable_shapes(model, differing) if differing else {}
        check_state(state, {**expected, **resized})
        if resized:
            resize(model, {name: spec.shape for name, spec in resized.items()})
            named = _named_state(model)
        with torch.no_grad():
            for name, tensor in named.items():
                if name.removeprefix("buffers/") not in extra:
                    tensor.copy_(readable(np.asarray(state[name])))
        load_extra(model, {name: state[f"buffers/{name}"] for name in extra})

    def loss_targets(self, loss: Loss) -> LossTargets | None:
        """Return the targets of losses of torch and of Keras."""
        from anyaccel_torch.losses import loss_targets

        return loss_targets(loss)

    def unsupported_reason(self, recipe: Optimizer | Loss) -> str:
        """Return why an optimizer or loss is not supported; those of Keras are supported, too."""
        reason = super().unsupported_reason(recipe)
        if not reason:
            return ""
        from anyaccel_torch import keras

        if isinstance(recipe, Loss):
            return "" if keras.library().is_loss(recipe.own) else reason
        if isinstance(recipe.own, FunctionType) and recipe.own.__module__.partition(".")[0] not in HINTS:
            return ""  # the user's own, which gives one
        return "" if keras.library().is_optimizer(recipe.own) else reason

    def models(self) -> Mapping[str, type]:
        """Return SequentialMLP, SequentialCNN and TabularMLP."""
        from anyaccel_torch.builtin_models import SequentialCNN, SequentialMLP, TabularMLP

        return {"SequentialMLP": SequentialMLP, "SequentialCNN": SequentialCNN, "TabularMLP": TabularMLP}


class TorchWeightFiles(WeightFiles):
    """Names as in a `state_dict()`, and files of `torch.save`."""

    weight_suffixes: ClassVar[tuple[str, ...]] = (".pt", ".pth", ".bin", ".ckpt")
    safetensors_format: ClassVar[str] = "pt"

    def weight_names(self, model: Any) -> Mapping[str, str]:
        """Return those of `state_dict()`; with Keras layers, the paths of attributes."""
        from anyaccel_torch.weight_files import state_dict_names

        return state_dict_names(model, _named_state(model))

    def plain_name(self, model: Any, name: str) -> str:
        """Return the name without the `_orig_mod.` of `torch.compile`, and the `module.` of DDP."""
        from anyaccel_torch.module_state import plain_names

        return plain_names(model)(name)

    def read_weights(self, path: FilePath) -> dict[str, np.ndarray]:
        """Read a file with `torch.load(path, weights_only=True)`."""
        from anyaccel_torch.weight_files import read_weights

        return read_weights(path)

    def write_weights(self, path: FilePath, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a file with `torch.save`."""
        from anyaccel_torch.weight_files import write_weights

        write_weights(path, arrays)


_OTHERS = {
    "Tensor": "make it an nn.Parameter of an nn.Module whose forward uses it, and pass that module",
    "Optimizer": "pass the module as the model, and the optimizer to the graph: ModelGraph(nodes, 'adam')",
    "ExportedProgram": "pass the module that it was exported from",
    "ScriptFunction": "call the function in the forward of an nn.Module, and pass that module",
}


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def _named_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """Return parameters and buffers by their names in a state; shared ones once."""
    from anyaccel.adapter.state_check import not_built_error, state_names
    from anyaccel_torch.extra_state import extra_tensors
    from anyaccel_torch.module_state import buffers, parameters
    from anyaccel_torch.module_traits import is_built

    if not is_built(model):
        raise not_built_error(model)
    return state_names(parameters(model), buffers(model) | extra_tensors(model))


def _host_copy(name: str, tensor: torch.Tensor) -> np.ndarray:
    import torch

    if tensor.is_meta:
        raise StateError(
            f"{name} has no values: it is on torch's meta device",
            hint="load the model first, with load_checkpoint_and_dispatch(model, 'model.safetensors', "
            "device_map={'': 'cpu'}) of anyaccel_torch.big_models",
        )
    if tensor.layout is not torch.strided:
        raise StateError(
            f"{name} is a sparse tensor ({tensor.layout}), which NumPy does not support",
            hint="leave it out of the state, and create it in the __init__ of the model: register_buffer('NAME', "
            "value, "
            "persistent=False)",
        )
    # not a view that is copied: torch breaks a tensor that it resizes while NumPy has a view of it
    copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    try:
        return as_array(copy)
    except TypeError as error:
        raise StateError(
            f"{name} has dtype {dtype_name(tensor.dtype)}, which NumPy does not support",
            hint="convert the model before saving, with model.float(), and back after loading",
        ) from error
