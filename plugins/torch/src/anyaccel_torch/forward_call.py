"""How a program calls a module: as it is, or, where Keras layers are in it, as Keras wants to be called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel_torch import keras
from anyaccel_torch.builtin_models import outputs_of

Call = Callable[..., Any]


def as_written() -> AbstractContextManager[Any]:
    """Inside, what somebody has compiled runs as it was written.

    Nobody has where torch's compiler is not there yet: importing it, which takes a second, is left to those who do.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def calling(model: Any, device: torch.device, count: int) -> Call:
    """What to call with `count` inputs: the model itself, if no Keras layer is in it.

    Keras layers do not ask whether they are in training mode: they are told, where the call begins, and make what they
    make (random numbers, constants) on a device that is said beforehand. Losses that they add by themselves
    (regularizers) are not among the outputs, but in training their gradient is.
    """
    tops = keras.outermost(model) if isinstance(model, nn.Module) else []
    if not tops:
        return model  # type: ignore[no-any-return]
    layer, packed = (model, _packing(model, count)) if keras.is_layer(model) else (_frame(model, tops), _as_they_are)
    keras_device, where = keras.loaded().device, str(device)

    def call(*inputs: Tensor) -> Any:
        training = model.training
        with keras_device(where):
            found = layer(*packed(inputs), training=training)
            added = layer.losses if training else ()
        return _carrying(outputs_of(found), added) if added else found

    return call


# -- inputs ----------------------------------------------------------------------------------------------------------


def _as_they_are(inputs: Sequence[Tensor]) -> Sequence[Any]:
    return inputs


def _in_a_list(inputs: Sequence[Tensor]) -> Sequence[Any]:
    return [list(inputs)]


def _packing(layer: Any, count: int) -> Callable[[Sequence[Tensor]], Sequence[Any]]:
    """How `count` inputs become the positional arguments of a Keras layer; those of a model go by its `inputs`."""
    if keras.is_functional(layer):
        tree, structure = keras.loaded().tree, layer.input
        return lambda inputs: [tree.pack_sequence_as(structure, list(inputs))]
    known = inspect.signature(layer.call).parameters.values()
    if count == 1 or any(one.kind is one.VAR_POSITIONAL for one in known):
        return _as_they_are
    positional = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    wanted = [name for name in positional if name not in ("training", "mask")]
    return _as_they_are if len(wanted) >= count else _in_a_list


# -- a module that holds Keras layers --------------------------------------------------------------------------------


def _frame(module: nn.Module, layers: list[Any]) -> Any:
    """A Keras layer that calls a module: what is said to it holds for every Keras layer that is called inside.

    What is said to such a layer where the module calls it goes first, as in Keras.
    """
    frame = _frame_class(keras.loaded().Layer)(name=type(module).__name__, dtype="float32", autocast=False)
    frame.run = lambda *inputs: module(*inputs)  # a function hides the module, which Keras would wrap
    frame.layers_inside = layers  # so that the losses that they add are found, and forgotten at the next call
    frame.built = True
    return frame


@cache
def _frame_class(base: type) -> Any:
    def call(self: Any, *inputs: Tensor, training: bool | None = None) -> Any:
        return self.run(*inputs)

    return type("Frame", (base,), {"call": call, "__doc__": "Runs a module inside a call of Keras's."})


# -- losses ----------------------------------------------------------------------------------------------------------


class _Carrying(torch.autograd.Function):
    """The outputs; on the way back, the gradient of an added loss is 1, whichever output it begins from."""

    @staticmethod
    def forward(ctx: Any, added: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(added)
        ctx.set_materialize_grads(False)
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (added,) = ctx.saved_tensors
        return torch.ones_like(added), *grads


def _carrying(outputs: tuple[Tensor, ...], added: Sequence[Tensor]) -> tuple[Tensor, ...]:
    places = [i for i, output in enumerate(outputs) if output.is_floating_point()]
    if not places:
        return outputs
    whole = torch.stack([one.sum() for one in added]).sum()
    apply: Call = _Carrying.apply
    carried = apply(whole, *(outputs[i] for i in places))
    found = dict(zip(places, carried, strict=True))
    return tuple(found.get(i, output) for i, output in enumerate(outputs))


def comparing(own: Any, device: torch.device) -> Call:
    """A loss of Keras as a function of outputs and targets that gives one number."""
    keras_device, where = keras.loaded().device, str(device)

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        with keras_device(where):
            found: Tensor = own(targets, outputs)  # Keras takes targets first, and may give one number a sample
        return found.mean() if found.ndim else found

    return mean
