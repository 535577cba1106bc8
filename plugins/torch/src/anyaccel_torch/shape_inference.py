"""Output shapes of a module for inputs of known shapes, by running it on zeros, on samples, or without values."""

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
from anyaccel.adapter.example_spec import example_batch
from anyaccel.adapter.model_outputs import CODE_ERRORS, call_hint, code_error, input_error, input_hint, probe_outputs
from anyaccel.errors import ENVIRONMENT_ERRORS, AnyaccelError, GraphError, ShapeError
from anyaccel.segment import Operation, OutputSpec, Path, TensorSpec
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import BuiltinModel
from anyaccel_torch.error_translation import first_line, needs_gradients, single_row_message, translate_errors
from anyaccel_torch.forward_call import Call, bind_call, force_eager, with_gradients
from anyaccel_torch.host_transfer import dtype_name
from anyaccel_torch.module_state import parameters
from anyaccel_torch.state_guard import TrialCalls, seed_generators

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
    _build(model, inputs, call, seed)
    size = _size(model)
    if size:
        try:
            with nullcontext() if size == "large" else _AlikeOperands():  # type: ignore[no-untyped-call]
                return _probed(_without_values(model), inputs, call)
        except Exception:  # not every module can be copied or run without values; the real run has the right error
            pass
    return _probed(model, inputs, call)


def _probed(model: nn.Module, inputs: Sequence[TensorSpec], call: ProbeLayout) -> tuple[OutputSpec, ...]:
    calls = TrialCalls(model, only_modes=_is_of_torch_layers(model))
    return probe_outputs(
        type(model).__name__,
        lambda batch: call.by_path(_run(calls, inputs, call, batch)),
        lambda output: dtype_name(output.dtype),
        hint="return outputs with the batch as an axis from the model's forward",
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


def infer_training(model: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Path]) -> tuple[OutputSpec, ...]:
    """Return the outputs of a built model in training mode; see `Compute.infer_training`.

    Empty for layers of torch in sequence: their outputs have the same form in both modes.

    Raises:
        ShapeError: it returns no tensors then, or none with a batch.
    """
    if _is_of_torch_layers(model):
        return ()
    layout = ProbeLayout(arguments)
    size = _size(model)
    if size == "medium":
        with suppress(Exception):  # a module that cannot be copied, or run without values
            return _probed_training(_without_values(model), inputs, layout)
    try:
        return _probed_training(_without_values(model) if size == "large" else model, inputs, layout)
    except (ShapeError, *ENVIRONMENT_ERRORS):
        raise
    except Exception:  # zeros may be no legal input in training alone; the first step has the right error
        return ()


def _probed_training(model: nn.Module, inputs: Sequence[TensorSpec], layout: ProbeLayout) -> tuple[OutputSpec, ...]:
    calls = TrialCalls(model)
    return probe_outputs(
        f"in training, {type(model).__name__}",
        lambda batch: layout.by_path(_training_outputs(calls, inputs, layout, batch)),
        lambda output: dtype_name(output.dtype),
        hint="return outputs with the batch as an axis in training too",
    )


def _is_of_torch_layers(model: nn.Module) -> bool:
    """Return whether a module consists of torch's own layers only, without calls of user code.

    Such outputs have the same form in training and evaluation, and a call in evaluation changes nothing in the module.
    """
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:  # noqa: SLF001
        return False
    return all(
        type(part) in _SAME_IN_BOTH_MODES
        and not (part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part))  # noqa: SLF001
        for part in model.modules()
    )


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


def single_row_reason(operation: Operation, inputs: Sequence[TensorSpec]) -> str:
    """Return torch's error for a training step with one row; see `SingleRows.single_row_reason`."""
    model: Any = operation.model
    try:
        calls = TrialCalls(_without_values(model) if _size(model) == "large" else model)
        _training_outputs(calls, inputs, ProbeLayout(operation.arguments), 1, as_is=operation.modes == "as_is")
    except Exception as error:  # any other one than of the row comes with the first step, if it comes
        return single_row_message(error)
    return ""


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
    for parameter in parameters(model).values():
        if parameter.is_floating_point():
            return dtype_name(parameter.dtype)
    dtypes = (part.spec.dtype for part in model.modules() if isinstance(part, BuiltinModel))
    return next(dtypes, None) or keras.unbuilt_dtype(model)


def unbuilt(model: nn.Module) -> dict[str, BuiltinModel]:
    """Return unbuilt built-in models that are parts of a module, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, BuiltinModel) and not part.is_built}


def _build(model: nn.Module, inputs: Sequence[TensorSpec], layout: CallLayout, seed: int) -> None:
    """Initialize unbuilt parameters: of built-in models from their spec, of torch and Keras by a batch of zeros."""
    if isinstance(model, BuiltinModel):
        model.build([spec.shape for spec in inputs], seed)
        return
    inner = unbuilt(model)
    lazy = any(is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers()))
    if not inner and not lazy and not keras.unbuilt(model):
        return
    hooks = [part.register_forward_pre_hook(_build_hook(rng.key(seed, name))) for name, part in inner.items()]
    try:
        with keras.seeded_initialization(model, seed):
            _run(TrialCalls(model), inputs, layout, 2, seed)
    finally:
        for hook in hooks:
            hook.remove()


def _build_hook(seed: int) -> Any:
    def build(module: BuiltinModel, inputs: tuple[Tensor, ...]) -> None:
        module.build([tensor.shape[1:] for tensor in inputs], seed, inputs[0].device)

    return build


def _size(model: nn.Module) -> str:
    """Return `"large"` if a copy without values is to run, `"medium"` if one may run instead of the model, or `""`.

    A model may already have a part without values (parameters, no buffers). Keras copies a model through a file, with
    all values.
    """
    sizes = [parameter.nbytes for parameter in model.parameters()]
    is_meta = {tensor.is_meta for tensor in chain(model.parameters(), model.buffers())}
    if keras.outermost(model):
        return ""
    if sum(sizes) > LARGE_BYTES or len(is_meta) == 2:
        return "large"
    return "medium" if sum(sizes) > max(MEDIUM_BYTES, MEDIUM_TENSOR * len(sizes)) else ""


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
            if any(output.layout is not torch.strided for output in outputs):
                problem = f"{type(model).__name__} returns a sparse tensor, which cannot be the output of a node"
                raise ShapeError(problem, hint="return value.to_dense() from its forward")
            return outputs
        except (AnyaccelError, *ENVIRONMENT_ERRORS):
            raise
        except Exception as error:
            raise _refused(model, inputs, error) from error


def _called(
    model: nn.Module, call: Call, inputs: Sequence[TensorSpec], batch: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return outputs without gradients; a model that computes some itself is called again with them."""
    samples = [_samples(spec, batch, device) for spec in inputs]
    try:
        return call(*samples)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if not needs_gradients(error):
            raise
        return with_gradients(call, model)(*samples)  # type: ignore[no-any-return]


def _samples(spec: TensorSpec, batch: int, device: torch.device) -> Tensor:
    """Return a batch of zeros, or of the samples that a spec has."""
    samples, dtype = example_batch(spec, batch), getattr(torch, spec.dtype)
    if samples is None:
        return torch.zeros(batch, *spec.shape, dtype=dtype, device=device)
    return torch.tensor(samples, dtype=dtype, device=device)


def _refused(model: nn.Module, inputs: Sequence[TensorSpec], error: Exception) -> GraphError:
    if isinstance(error, CODE_ERRORS):
        return code_error(type(model).__name__, error, first_line(error))
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
    hint = call_hint(error) or _layout_hint(inputs, str(error)) or hint
    return input_error(type(model).__name__, inputs, first_line(error), hint)


def _layout_hint(inputs: Sequence[TensorSpec], message: str) -> str:
    """Return what to do about images with their channels last, and about indices that are not integers; otherwise
    `""`.
    """
    if "'indices'" in message:
        return "cast the data: feature_set.cast({...: 'int64'}, keep_splits=True)"
    last = [spec.shape for spec in inputs if len(spec.shape) == 3 and spec.shape[-1] in (1, 3, 4)]
    return "store images channels first: x.transpose(0, 3, 1, 2)" if "channels" in message and last else ""
