"""Calling a module: directly, or, if Keras layers are in it, with the arguments and scopes that Keras needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.specs import Loss
from anyaccel_torch import keras
from anyaccel_torch.keras_remat import ScopedRemat

Call = Callable[..., Any]

_share: ContextVar[float] = ContextVar("share", default=1.0)


@contextmanager
def share_of_batch(share: float) -> Iterator[None]:
    """Call modules with this fraction of a batch inside the context; it weights losses that they add themselves."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def force_eager() -> AbstractContextManager[Any]:
    """Return a context that runs modules compiled by the user uncompiled.

    It does nothing before torch's compiler is imported: importing it takes a second, and nothing can be compiled
    before.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def output_tensors(result: Any, layout: CallLayout = POSITIONAL) -> tuple[Tensor, ...]:
    """Return the tensors that a module returned, as its layout says; by default one, or those of a flat tuple, list or
    dict.

    Raises:
        ShapeError: it returned something else.
    """
    return layout.outputs(result, Tensor, torch.movedim)


def bind_call(
    model: Any,
    device: torch.device,
    n_inputs: int,
    layout: CallLayout = POSITIONAL,
    in_training: CallLayout = POSITIONAL,
) -> Call:
    """Return the callable for `n_inputs` tensors: the model itself, without Keras layers and if the call is positional.

    `layout` belongs to a call in evaluation mode, `in_training` to one in training mode.

    Keras layers do not read `module.training` but take an argument, and create random numbers and constants on the
    device of a scope. Losses that they add themselves (regularizers) are not among the outputs, but in training their
    gradient is included.
    """
    layers = keras.outermost(model) if isinstance(model, nn.Module) else []
    if not layers:
        if layout is in_training is POSITIONAL:
            return model  # type: ignore[no-any-return]

        def laid_out(*inputs: Tensor) -> tuple[Tensor, ...]:
            arguments, keywords = layout.bind(inputs, torch.movedim)
            returned = in_training if getattr(model, "training", False) else layout
            return returned.outputs(model(*arguments, **keywords), Tensor, torch.movedim)

        return laid_out
    library = keras.library()
    layer = model if library.is_layer(model) else _frame(model, layers)
    pack = library.packing(layer, n_inputs, layout)
    scope = ScopedRemat(model, str(device))
    checked: list[bool] = []

    def call(*inputs: Tensor) -> Any:
        training = model.training
        arguments, keywords = pack(inputs)
        with scope.on_device():
            result = layer(*arguments, **keywords, training=training)
            added = layer.losses if training else ()
        if training and not checked:
            library.refuse_masks(model, result)
            checked.append(True)
        outputs = output_tensors(result, in_training if training else layout)
        floating = [i for i, output in enumerate(outputs) if output.is_floating_point()] if added else []
        if not floating:
            return outputs
        device = outputs[floating[0]].device  # a factor of a regularizer is where Keras was when the layer was made
        total = torch.stack([loss.sum().to(device) for loss in added]).sum() * _share.get()
        apply: Call = _AddLoss.apply
        carrying = dict(zip(floating, apply(total, *(outputs[i] for i in floating)), strict=True))
        return tuple(carrying.get(i, output) for i, output in enumerate(outputs))

    return call


def with_gradients(call: Call, model: Any) -> Call:
    """Return a call of a model that computes gradients itself, even if none are requested; its outputs then have no
    gradients.
    """
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []

    def run(*inputs: Tensor) -> Any:
        if torch.is_grad_enabled():
            return call(*inputs)
        before = [parameter.grad for parameter in parameters]
        with torch.enable_grad():
            result = call(*inputs)
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient  # a backward pass inside adds to it, and to that of the next training step
        if isinstance(result, Tensor):
            return result.detach()
        return tuple(output.detach() for output in (result if type(result) is tuple else output_tensors(result)))

    return run


def _frame(module: nn.Module, layers: list[Any]) -> Any:
    """Return a Keras layer that calls a module, so that `training` applies to every Keras layer called inside.

    An argument that the module itself passes to a layer goes first, as in Keras.
    """
    frame = _frame_class(keras.library().module.Layer)(name=type(module).__name__, dtype="float32", autocast=False)
    frame.run = lambda *inputs, **named: module(*inputs, **named)  # a function hides the module, which Keras would wrap
    frame.layers_inside = layers  # so that the losses that they add are collected, and reset at the next call
    frame.built = True
    return frame


@cache
def _frame_class(base: type) -> Any:
    def call(self: Any, *inputs: Any, training: bool | None = None, **named: Any) -> Any:
        return self.run(*inputs, **named)

    return type("Frame", (base,), {"call": call, "__doc__": "Run a module inside a call of Keras."})


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


def keras_loss(loss: Loss, device: torch.device) -> Call:
    """Return a Keras loss as a function of outputs and targets that returns a scalar, and never broadcasts.

    Raises:
        SpecError: a class that does not take its keywords.
    """
    library = keras.library()
    mean = library.loss_function(loss, lambda result: result.mean() if result.ndim else result)
    keras_device, device_name = library.module.device, str(device)

    def compute(outputs: Tensor, targets: Tensor) -> Tensor:
        with keras_device(device_name):
            result: Tensor = mean(outputs, targets)
        return result

    return compute
