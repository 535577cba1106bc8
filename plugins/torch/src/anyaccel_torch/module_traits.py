"""Shapes and traits of a module: what it returns, whether it writes to its inputs, its image layout, its coupling of
samples.

Shapes are found by running it on zeros, on samples, or without values.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anyaccel import rng
from anyaccel.adapter.call_layout import CallLayout, ProbeLayout
from anyaccel.adapter.example_spec import ExampleSpec, example_batch
from anyaccel.adapter.model_outputs import CODE_ERRORS, call_hint, code_error, input_error, input_hint, probe_outputs
from anyaccel.adapter.single_rows import SingleRows
from anyaccel.errors import ENVIRONMENT_ERRORS, AnyaccelError, ShapeError
from anyaccel.segment import Operation, OutputSpec, Path, TensorSpec
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import BuiltinModel, SequentialCNN
from anyaccel_torch.divided_gradients import is_dtensor
from anyaccel_torch.error_translation import first_line, needs_gradients, single_row_message, translate_errors
from anyaccel_torch.forward_call import Call, bind_call, force_eager, with_gradients
from anyaccel_torch.host_transfer import dtype_name, tensors_in
from anyaccel_torch.module_state import submodules
from anyaccel_torch.state_guard import TrialCalls, seed_generators
from anyaccel_torch.synchronized_norm import is_synchronizable

# -- Kinds and layers of a module --------------------------------------------------------------------------------------


_SPATIAL = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


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
    elementwise = "torch.nn.modules.activation", "torch.nn.modules.dropout"
    layers = [layer for layer in _flat(model) if type(layer).__module__ not in elementwise]
    first, last = (
        "channels_first" if end and isinstance(end[0], _SPATIAL) else "" for end in (layers[:1], layers[-1:])
    )
    return first, last


def _flat(model: nn.Module) -> list[nn.Module]:
    return [part for layer in model for part in _flat(layer)] if isinstance(model, nn.Sequential) else [model]


def batch_coupling(model: nn.Module) -> str:
    """Name of the first layer that normalizes over the batch in training, or `""`; functions are not seen."""
    parts = (part for part in submodules(model) if _couples_rows(part))
    return next((getattr(part, "original_name", type(part).__name__) for part in parts), "")


class TorchSingleRows(SingleRows):
    """Models with batch normalization."""

    def single_row_reason(self, operation: Operation, inputs: Sequence[TensorSpec]) -> str:
        """Run such a model on zeros in its training modes; return torch's error."""
        model: Any = operation.model
        if not batch_coupling(model):
            return ""
        try:
            calls = TrialCalls(_without_values(model) if _size(model) == "large" else model)
            _training_outputs(calls, inputs, ProbeLayout(operation.arguments), 1, as_is=operation.modes == "as_is")
        except Exception as error:  # any other one than of the row comes with the first step, if it comes
            return single_row_message(error)
        return ""


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
    for part in submodules(model) if isinstance(model, nn.Module) else ():
        if {"_ConvNd", "BaseConv"} & {base.__name__ for base in type(part).__mro__}:
            return True
    return False


def has_dtensors(model: Any) -> bool:
    """Return whether a module has parameters that are sharded over processes."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return any(map(is_dtensor, parameters))


# -- Shapes, by calls that change nothing ------------------------------------------------------------------------------


# torch's shape-only kernels accept wrong dtypes (such as a float64 batch for a float32 Linear), so a module is run on
# values unless its parameters take more bytes than this.
LARGE_BYTES = 512 * 2**20
# From these sizes on, of all parameters and of one in the mean, reading the parameters takes longer than copying the
# module. Its run without values counts if shape-only kernels had nothing to accept that others would refuse.
MEDIUM_BYTES, MEDIUM_TENSOR = 64 * 2**20, 2**20


def infer_outputs(
    model: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
) -> tuple[OutputSpec, ...]:
    """Return the outputs of a model; see `Compute.infer_outputs`.

    Raises:
        ShapeError: the model does not take the inputs, returns no tensors, or no output has a batch.
    """
    call = ProbeLayout(arguments)
    for layer in keras.outermost(model):
        keras.library().refuse_stateful(layer)
    # Initialize unbuilt parameters: of built-in models from their spec, of torch and Keras by a batch of zeros.
    if isinstance(model, BuiltinModel):
        model.build([spec.shape for spec in inputs], seed)
    elif not is_built(model):
        seeds: dict[BuiltinModel, int] = {}
        for name, part in model.named_modules():
            if isinstance(part, BuiltinModel) and not part.is_built:
                seeds[part] = rng.key(seed, name)

        def build(part: BuiltinModel, values: tuple[Tensor, ...]) -> None:
            part.build([tensor.shape[1:] for tensor in values], seeds[part], values[0].device)

        hooks = [part.register_forward_pre_hook(build) for part in seeds]
        try:
            with keras.seeded_initialization(model, seed):
                _run(TrialCalls(model), inputs, call, 2, seed)
        finally:
            for hook in hooks:
                hook.remove()
    size = _size(model)
    if size:
        try:
            with nullcontext() if size == "large" else _AlikeOperands():  # type: ignore[no-untyped-call]
                return _probed(_without_values(model), inputs, call)
        except Exception:  # not every module can be copied or run without values; the real run has the right error
            pass
    return _probed(model, inputs, call)


def _probed(
    model: nn.Module, inputs: Sequence[TensorSpec], layout: ProbeLayout, *, training: bool = False
) -> tuple[OutputSpec, ...]:
    calls = TrialCalls(model, only_modes=not training and _is_of_torch_layers(model))
    run, name = (_training_outputs, "in training, ") if training else (_run, "")
    return probe_outputs(
        f"{name}{type(model).__name__}",
        lambda batch: layout.by_path(run(calls, inputs, layout, batch)),
        lambda output: dtype_name(output.dtype),
        hint="return outputs with the batch as an axis in training too"
        if training
        else "return outputs with the batch as an axis from the model's forward",
    )


class _AlikeOperands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise where kernels without values may accept operands that real kernels refuse, or return other shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator of torch whose operands are on one device, and have one dtype if it does not promote them."""
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim]
        lookups = (torch.ops.aten.embedding.default, torch.ops.aten.index.Tensor)
        takes_any = torch.Tag.pointwise in func.tags or func in lookups
        kinds = {(None if takes_any else operand.dtype, operand.device) for operand in operands}
        if func.namespace != "aten" or len(kinds) > 1:
            raise TypeError(f"{func} has operands of {kinds}")
        return func(*args, **(kwargs or {}))


def infer_training(
    model: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Path]
) -> tuple[OutputSpec, ...] | None:
    """Return the outputs of a built model in training mode; see `Compute.infer_training`.

    None for layers of torch in sequence: their outputs have the same form in both modes.

    Raises:
        ShapeError: it returns no tensors then, or none with a batch.
    """
    if _is_of_torch_layers(model):
        return None
    layout = ProbeLayout(arguments)
    size = _size(model)
    if size == "medium":
        with suppress(Exception):  # a module that cannot be copied, or run without values
            return _probed(_without_values(model), inputs, layout, training=True)
    try:
        return _probed(_without_values(model) if size == "large" else model, inputs, layout, training=True)
    except (ShapeError, *ENVIRONMENT_ERRORS):
        raise
    except Exception:  # zeros may be no legal input in training alone; the first step has the right error
        return ()


def _is_of_torch_layers(model: nn.Module) -> bool:
    """Return whether a module consists of torch's own layers only, without calls of user code.

    Such outputs have the same form in training and evaluation, and a call in evaluation changes nothing in the module.
    """
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:  # noqa: SLF001
        return False
    for part in model.modules():
        is_hooked = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)  # noqa: SLF001
        if is_hooked or type(part) not in _SAME_IN_BOTH_MODES:
            return False
    return True


_SAME_IN_BOTH_MODES = frozenset(
    (
        *(nn.Sequential, nn.Flatten, nn.Unflatten, nn.Identity, nn.Linear, nn.Bilinear, nn.Embedding),
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.RNN, nn.LSTM, nn.GRU),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        *(nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softmax, nn.LogSoftmax, nn.Softplus),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    )
)


def _training_outputs(
    calls: TrialCalls, inputs: Sequence[TensorSpec], layout: CallLayout, batch: int, *, as_is: bool = False
) -> tuple[Tensor, ...]:
    scope = calls.device if calls.device.type == "meta" else nullcontext()
    with calls.in_training(as_is=as_is), torch.no_grad(), force_eager(), warnings.catch_warnings(), scope:
        warnings.simplefilter("ignore")  # of a step without gradients, which this is not
        call = bind_call(calls.model, calls.device, len(inputs), layout, layout)
        return _called(calls.model, call, inputs, batch, calls.device)


def tensor_spec(tensor: Tensor) -> TensorSpec:
    """Return the whole shape and the dtype of a tensor."""
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype))


def input_dtype(model: nn.Module) -> str | None:
    """Return the dtype of the first floating parameter, or the one that an unbuilt built-in or Keras model will
    have.
    """
    held = keras.contents(model).parameters.values() if keras.outermost(model) else model.parameters()
    for parameter in held:
        if parameter.is_floating_point():
            return dtype_name(parameter.dtype)
    dtypes = (part.spec.dtype for part in model.modules() if isinstance(part, BuiltinModel))
    return next(dtypes, None) or keras.unbuilt_dtype(model)


def is_built(model: nn.Module) -> bool:
    """Whether a module has all its parameters: those of built-in models, of Keras layers, and lazy ones of torch."""
    for part in model.modules():
        if isinstance(part, BuiltinModel) and not part.is_built:
            return False
    if keras.unbuilt(model):
        return False
    return not any(map(is_lazy, chain(model.parameters(), model.buffers())))


def _size(model: nn.Module) -> str:
    """Return `"large"` if a copy without values is to run, `"medium"` if one may run instead of the model, or `""`.

    A model may already have a part without values (parameters, no buffers). Keras copies a model through a file, with
    all values.
    """
    if keras.outermost(model):
        return ""
    n_parameters, n_bytes, on_meta = 0, 0, set()
    for parameter in model.parameters():
        n_parameters, n_bytes = n_parameters + 1, n_bytes + parameter.nbytes
        on_meta.add(parameter.is_meta)
    for buffer in model.buffers():
        on_meta.add(buffer.is_meta)
    if n_bytes > LARGE_BYTES or len(on_meta) == 2:
        return "large"
    return "medium" if n_bytes > max(MEDIUM_BYTES, MEDIUM_TENSOR * n_parameters) else ""


def _without_values(model: nn.Module) -> nn.Module:
    """Return a copy of the module whose parameters and buffers are on `meta`."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _run(
    calls: TrialCalls, inputs: Sequence[TensorSpec], layout: CallLayout, batch: int, seed: int | None = None
) -> tuple[Tensor, ...]:
    """Return outputs for a batch, in evaluation mode; random numbers come from `seed` if given."""
    model, device = calls.model, calls.device
    scope = device if device.type == "meta" else nullcontext()
    with calls.evaluating(), torch.no_grad(), force_eager(), scope:  # compiling does not pay for two batches
        if seed is not None:
            seed_generators([device], seed)
        try:
            with translate_errors(f"a batch of {batch} through {type(model).__name__}"):
                outputs = _called(model, bind_call(model, device, len(inputs), layout, layout), inputs, batch, device)
            for output in outputs:
                if output.layout is not torch.strided:
                    problem = f"{type(model).__name__} returns a sparse tensor, which cannot be the output of a node"
                    raise ShapeError(problem, hint="return value.to_dense() from its forward")
            return outputs
        except (AnyaccelError, *ENVIRONMENT_ERRORS):
            raise
        except CODE_ERRORS as error:
            raise code_error(type(model).__name__, error, first_line(error)) from error
        except Exception as error:
            is_keras_refusal = isinstance(error, ValueError) and bool(keras.outermost(model))
            hint = input_hint(
                inputs,
                is_code_error=not isinstance(error, RuntimeError) and not is_keras_refusal,
                dtype=input_dtype(model),
                convert="convert the model: model.to(torch.{dtype})",
                error=error,
            )
            if needs_gradients(error):
                hint = "request the gradient of the input inside the model: x = x.clone().requires_grad_()"
            if "'indices'" in str(error):
                hint = "cast the data: feature_set.cast({...: 'int64'}, keep_splits=True)"
            elif "channels" in str(error) and any(len(s.shape) == 3 and s.shape[-1] in (1, 3, 4) for s in inputs):
                hint = "store images channels first: x.transpose(0, 3, 1, 2)"
            hint = call_hint(error) or hint
            raise input_error(type(model).__name__, inputs, first_line(error), hint) from error


def _called(
    model: nn.Module, call: Call, inputs: Sequence[TensorSpec], batch: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return outputs for zeros, or for the samples that a spec has, without gradients.

    A model that computes some itself is called again with them.
    """
    samples: list[Tensor] = []
    for spec in inputs:
        dtype = getattr(torch, spec.dtype)
        if isinstance(spec, ExampleSpec):
            samples.append(torch.tensor(example_batch(spec, batch), dtype=dtype, device=device))
        else:
            samples.append(torch.zeros(batch, *spec.shape, dtype=dtype, device=device))
    try:
        return call(*samples)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if not needs_gradients(error):
            raise
        return with_gradients(call, model)(*samples)  # type: ignore[no-any-return]
