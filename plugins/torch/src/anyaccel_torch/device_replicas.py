"""Device replicas of torch: the gradients of a program, even if only some rows use a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel_distributed.device_replicas import DeviceReplicas, Gradients
from anyaccel_torch.keras import quiet_saving
from anyaccel_torch.program import TorchProgram


class TorchReplicas(DeviceReplicas):
    """Replicas of torch's modules, even if only some rows use a parameter."""

    def copy_models(self, models: Sequence[Any], device: Device) -> list[Any]:
        """Copy models to a device; Keras models are copied through Keras's saving.

        Raises:
            CapabilityError: Keras models share parameters, which their copies would not.
        """
        with quiet_saving():
            copies = super().copy_models(models, device)
        # See that copies share what the models share, and give their parameters the `requires_grad` of the
        # models'.
        originals, copied = _parameters(models), _parameters(copies)
        if _sharing(originals) != _sharing(copied):
            raise CapabilityError(
                "models that share parameters cannot be copied to several devices: Keras copies each separately",
                available="one Keras model in a node, or torch modules with shared parameters",
                hint="combine the models that share a layer into one Keras model, or train on one device",
            )
        for original, copy in zip(originals, copied, strict=True):
            copy.requires_grad_(original.requires_grad)
        return copies

    def gradients(self, program: Program) -> Gradients:
        """Return one gradient for each trained parameter, None if no loss depends on it in these rows."""
        grads = [parameter.grad for parameter in cast("TorchProgram", program).trained]
        return [grad.to_dense() if grad is not None and grad.is_sparse else grad for grad in grads]

    def set_gradients(self, program: Program, gradients: Gradients) -> None:
        """Set the gradients unchanged."""
        for parameter, gradient in zip(cast("TorchProgram", program).trained, gradients, strict=True):
            parameter.grad = gradient


def _parameters(models: Sequence[Any]) -> list[nn.Parameter]:
    modules = [model for model in models if isinstance(model, nn.Module)]
    return [parameter for module in modules for _, parameter in module.named_parameters(remove_duplicate=False)]


def _sharing(parameters: Sequence[nn.Parameter]) -> list[int]:
    """Return, for each parameter, the index of its first occurrence."""
    first: dict[int, int] = {}
    return [first.setdefault(id(parameter), place) for place, parameter in enumerate(parameters)]
