"""Calling a module: as it is, or, where Keras layers are in it, with what Keras wants to be told."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import ShapeError
from anyaccel_torch import keras

Call = Callable[..., Any]


def force_eager() -> AbstractContextManager[Any]:
    """Inside, modules that the user has compiled run as they are written.

    Does nothing before torch's compiler is imported, as that takes a second, and nothing can be compiled without it.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def output_tensors(result: Any) -> tuple[Tensor, ...]:
    """The tensors that a module returned: one, or those of a tuple, a list or a dict in its order.

    Raises:
        ShapeError: it returned something else.
    """
    if isinstance(result, Tensor):
        return (result,)
    items = tuple(result.values()) if isinstance(result, Mapping) else result
    if isinstance(items, (tuple, list)) and items and all(isinstance(item, Tensor) for item in items):
        return tuple(items)
    kinds = ", ".join(type(item).__name__ for item in items) if isinstance(items, (tuple, list)) else "no tensor"
    raise ShapeError(
        f"the model returns a {type(result).__name__} of {kinds or 'nothing'}, which cannot be a node's output",
        available="a tensor, or a tuple, list or dict of tensors",
        hint="wrap it in a module that returns only the tensors wanted",
    )


def bind_call(model: Any, device: torch.device, n_inputs: int) -> Call:
    """What to call with `n_inputs` tensors: the model itself, if no Keras layer is in it.

    Keras layers do not read `module.training` but take an argument, and create what they create (random numbers,
    constants) on the device of a scope. Losses that they add by themselves (regularizers) are not among the outputs,
    but in training their gradient is.
    """
    layers = keras.outermost(model) if isinstance(model, nn.Module) else []
    if not layers:
        return model  # type: ignore[no-any-return]
    is_layer = keras.is_layer(model)
    layer, pack = (model, _packing(model, n_inputs)) if is_layer else (_frame(model, layers), _separately)
    keras_device, device_name = keras.loaded().device, str(device)

    def call(*inputs: Tensor) -> Any:
        training = model.training
        with keras_device(device_name):
            result = layer(*pack(inputs), training=training)
            added = layer.losses if training else ()
        return _with_losses(output_tensors(result), added) if added else result

    return call


def _separately(inputs: Sequence[Tensor]) -> Sequence[Any]:
    return inputs


def _as_list(inputs: Sequence[Tensor]) -> Sequence[Any]:
    return [list(inputs)]


def _packing(layer: Any, n_inputs: int) -> Callable[[Sequence[Tensor]], Sequence[Any]]:
    """How inputs become the positional arguments of a Keras layer; for a functional model, as its `inputs`."""
    if keras.is_functional(layer):
        tree, structure = keras.loaded().tree, layer.input
        return lambda inputs: [tree.pack_sequence_as(structure, list(inputs))]
    parameters = inspect.signature(layer.call).parameters.values()
    if n_inputs == 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return _separately
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    tensors = [name for name in positional if name not in ("training", "mask")]
    return _separately if len(tensors) >= n_inputs else _as_list


def _frame(module: nn.Module, layers: list[Any]) -> Any:
    """A Keras layer that calls a module, so that `training` holds for every Keras layer called inside.

    An argument that the module itself passes to a layer goes first, as in Keras.
    """
    frame = _frame_class(keras.loaded().Layer)(name=type(module).__name__, dtype="float32", autocast=False)
    frame.run = lambda *inputs: module(*inputs)  # a function hides the module, which Keras would wrap
    frame.layers_inside = layers  # so that the losses that they add are collected, and reset at the next call
    frame.built = True
    return frame


@cache
def _frame_class(base: type) -> Any:
    def call(self: Any, *inputs: Tensor, training: bool | None = None) -> Any:
        return self.run(*inputs)

    return type("Frame", (base,), {"call": call, "__doc__": "Runs a module inside a call of Keras's."})


class _AddLoss(torch.autograd.Function):
    """The outputs; in the backward pass, an added loss gets the gradient 1, whichever output the pass starts from."""

    @staticmethod
    def forward(ctx: Any, added: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(added)
        ctx.set_materialize_grads(False)
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (added,) = ctx.saved_tensors
        return torch.ones_like(added), *grads


def _with_losses(outputs: tuple[Tensor, ...], added: Sequence[Tensor]) -> tuple[Tensor, ...]:
    floating = [i for i, output in enumerate(outputs) if output.is_floating_point()]
    if not floating:
        return outputs
    total = torch.stack([loss.sum() for loss in added]).sum()
    apply: Call = _AddLoss.apply
    carrying = dict(zip(floating, apply(total, *(outputs[i] for i in floating)), strict=True))
    return tuple(carrying.get(i, output) for i, output in enumerate(outputs))


def keras_loss(own: Any, device: torch.device) -> Call:
    """A Keras loss as a function of outputs and targets that returns a scalar."""
    keras_device, device_name = keras.loaded().device, str(device)

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        with keras_device(device_name):
            result: Tensor = own(targets, outputs)  # Keras takes targets first, and may return one number a sample
        return result.mean() if result.ndim else result

    return mean
