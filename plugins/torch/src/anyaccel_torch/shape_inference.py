"""What a module gives for inputs of known shapes, found by running it on zeros or, if it is large, on shapes alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anyaccel import rng
from anyaccel.errors import AnyaccelError, ShapeError
from anyaccel.segment import TensorSpec
from anyaccel_torch import keras
from anyaccel_torch.builtin_models import FromRecipe, outputs_of
from anyaccel_torch.error_translation import first_line, telling
from anyaccel_torch.forward_call import as_written, calling
from anyaccel_torch.module_state import parameters
from anyaccel_torch.state_guard import seed as start_from
from anyaccel_torch.state_guard import undisturbed

# torch's shape-only kernels let wrong dtypes pass (a float64 batch into a float32 Linear, say), so that a module is run
# for real unless its parameters take more bytes than this.
LARGE_BYTES = 512 * 2**20


def infer(model: nn.Module, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """Specifications per sample of what `model` gives for `inputs`; see `Compute.infer`.

    Raises:
        ShapeError: the model does not take the inputs, gives no tensors, or does not keep the batch as first axis.
    """
    _build(model, inputs, seed)
    found = [_outputs(model, inputs, batch) for batch in (2, 3)]
    for batch, outputs in zip((2, 3), found, strict=True):
        for output in outputs:
            if output.ndim < 1 or output.shape[0] != batch:
                raise _no_batch(model, output, batch)
    first, second = (tuple(map(_spec, outputs)) for outputs in found)
    if first != second:
        raise _varying(model, first, second)
    return first


def _spec(output: Tensor) -> TensorSpec:
    return TensorSpec(tuple(output.shape[1:]), name_of(output.dtype))


def name_of(dtype: torch.dtype) -> str:
    """NumPy's name of a dtype."""
    return str(dtype).removeprefix("torch.")


def wanted_dtype(model: nn.Module) -> str | None:
    """Dtype of the first floating parameter, or that which an unbuilt one from a recipe or of Keras will have."""
    for parameter in parameters(model).values():
        if parameter.is_floating_point():
            return name_of(parameter.dtype)
    recipes = (part.recipe.dtype for part in model.modules() if isinstance(part, FromRecipe))
    return next(recipes, None) or keras.wanted_dtype(model)


def unbuilt(model: nn.Module) -> dict[str, FromRecipe]:
    """Parts of a module, by name, that have a recipe and no parameters yet."""
    return {name: part for name, part in model.named_modules() if isinstance(part, FromRecipe) and not part.is_built}


# -- building --------------------------------------------------------------------------------------------------------


def _build(model: nn.Module, inputs: Sequence[TensorSpec], seed: int) -> None:
    """Give lazy modules their parameters: ours by their recipes, those of torch and Keras by a batch of zeros."""
    if isinstance(model, FromRecipe):
        model.build([spec.shape for spec in inputs], seed)
        return
    inner = unbuilt(model)
    lazy = any(is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers()))
    if not inner and not lazy and not keras.unbuilt(model):
        return
    hooks = [part.register_forward_pre_hook(_builder(rng.key(seed, name))) for name, part in inner.items()]
    try:
        with keras.starting(model, seed):
            _run(model, inputs, 2, seed)
    finally:
        for hook in hooks:
            hook.remove()


def _builder(seed: int) -> Any:
    def build(module: FromRecipe, inputs: tuple[Tensor, ...]) -> None:
        module.build([tensor.shape[1:] for tensor in inputs], seed, inputs[0].device)

    return build


# -- running ---------------------------------------------------------------------------------------------------------


def _outputs(model: nn.Module, inputs: Sequence[TensorSpec], batch: int) -> tuple[Tensor, ...]:
    large = sum(parameter.nbytes for parameter in model.parameters()) > LARGE_BYTES
    if large and not keras.outermost(model):  # a copy of those is made by way of a file, values and all
        try:
            return _run(_on_paper(model), inputs, batch)
        except Exception:  # not every module can be copied or do without values; the real run has the right words
            pass
    return _run(model, inputs, batch)


def _on_paper(model: nn.Module) -> nn.Module:
    """A copy of the module whose parameters and buffers have shapes but no values."""
    paper: dict[int, Any] = {}
    for parameter in model.parameters():
        paper[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        paper[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, paper)


def _run(model: nn.Module, inputs: Sequence[TensorSpec], batch: int, seed: int | None = None) -> tuple[Tensor, ...]:
    """Outputs for a batch of zeros, in evaluation mode; with a seed, random numbers come from it."""
    device = next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))
    scope = device if device.type == "meta" else nullcontext()
    with undisturbed(model, [device]), torch.no_grad(), as_written(), scope:  # two batches are no reason to compile
        if seed is not None:
            start_from([device], seed)
        try:
            with telling(f"a batch of {batch} through {type(model).__name__}"):
                called = calling(model, device, len(inputs))
                return outputs_of(called(*[_zeros(spec, batch, device) for spec in inputs]))
        except AnyaccelError:
            raise
        except Exception as error:
            raise _refused(model, inputs, error) from error


def _zeros(spec: TensorSpec, batch: int, device: torch.device) -> Tensor:
    return torch.zeros(batch, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)


# -- telling ---------------------------------------------------------------------------------------------------------


def _refused(model: nn.Module, inputs: Sequence[TensorSpec], error: Exception) -> ShapeError:
    wanted = wanted_dtype(model)
    other = next((spec.dtype for spec in inputs if wanted not in (None, spec.dtype)), None)
    remedy = "correct the sizes of the model, or what feeds it"
    if any(spec.shape == () for spec in inputs):
        remedy = "a single number a sample arrives as [batch]: store the column as [n, 1] if the model wants [batch, 1]"
    elif not isinstance(error, RuntimeError) and not (keras.outermost(model) and isinstance(error, ValueError)):
        remedy = "mend the model's forward; the whole traceback is above"
    elif other is not None and "int" in other:
        remedy = f"cast the data: feature_set.cast({{...: {wanted!r}}}, keep_splits=True)"
    elif other is not None:
        remedy = f"give {wanted} inputs if the dtype is in the way, or convert the model: model.to(torch.{other})"
    asked = f"{type(model).__name__} does not take {' and '.join(map(str, inputs)) or 'no input'} per sample"
    return ShapeError(asked, available=first_line(error), hint=remedy)


def _no_batch(model: nn.Module, output: Tensor, batch: int) -> ShapeError:
    return ShapeError(
        f"{type(model).__name__} gives shape {list(output.shape)} for a batch of {batch}",
        available="the first axis of every output must be the batch",
        hint="keep the batch first in the model's forward (batch_first=True for recurrent layers and attention)",
    )


def _varying(model: nn.Module, first: Sequence[TensorSpec], second: Sequence[TensorSpec]) -> ShapeError:
    shown = [", ".join(map(str, specs)) for specs in (first, second)]
    return ShapeError(
        f"{type(model).__name__} gives {shown[0]} per sample for a batch of 2 and {shown[1]} for a batch of 3",
        hint="let the model's forward treat every sample alike, whatever the batch",
    )
