"""Keras layers on torch that compute again in their backward pass (`keras.RematScope`), or are to (`remat`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from anyaccel_torch import keras
from anyaccel_torch.module_state import submodules

_DEFERRED = "rematerialized_call"


class ScopedRemat:
    """Let layers of a `keras.RematScope` recompute on the device of their call.

    A backward pass has no scope: values that layers create without an input would be on Keras's default device.
    """

    def __init__(self, model: nn.Module, device: str) -> None:
        self._scope, self._device = keras.library().module.device, device
        self._layers = [part for part in submodules(model) if getattr(part, "_remat_mode", None) is not None]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Put Keras on the device inside this context, including recomputations of calls made here."""
        with ExitStack() as stack:
            stack.enter_context(self._scope(self._device))
            for layer in self._layers:
                vars(layer)[_DEFERRED] = self._bound(layer)
                stack.callback(vars(layer).pop, _DEFERRED)
            yield

    def _bound(self, layer: Any) -> Any:
        deferred = getattr(type(layer), _DEFERRED)

        def rematerialized_call(call: Any, *args: Any, **kwargs: Any) -> Any:
            def on_device(*args: Any, **kwargs: Any) -> Any:
                with self._scope(self._device):
                    return call(*args, **kwargs)

            return deferred(layer, on_device, *args, **kwargs)

        return rematerialized_call


def remat_reason(layer: nn.Module) -> str:
    """Return why a Keras layer cannot be trained because it redraws other random numbers when recomputed; otherwise
    `""`.

    Keras 3 does not restore seeds, so gradients would belong to other masks than losses.
    """
    for part in submodules(layer):
        mode = getattr(getattr(part, "_remat_mode", None), "mode", "activations")
        drawing = [inner for inner in submodules(part) if getattr(inner, "_seed_generators", ())]
        if mode != "activations" and any(getattr(inner, "rate", 1) for inner in drawing):
            return (
                f"a {type(drawing[0]).__name__} in keras.RematScope draws different numbers when it is recomputed "
                "on torch; create it outside of the scope"
            )
    return ""
