"""NumpyOps: what the adapter asks of NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import ArrayOps, LossFunction, LossResult, VjpResult
from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sim_array import Array, made_like
from anyaccel.numpy_backend.transfers import moved, rows
from anyaccel.specs import Loss


class NumpyOps(ArrayOps):
    """Modules, plain arrays and arrays of simulated devices."""

    xp = np

    def parameters(self, model: Module) -> Mapping[str, Array]:
        """The module's own."""
        return model.parameters

    def buffers(self, model: Module) -> Mapping[str, Array]:
        """The module's own."""
        return model.buffers

    def write(self, model: Module, parameters: Mapping[str, Array], buffers: Mapping[str, Array]) -> None:
        """Into the module's mappings."""
        model.parameters.update(parameters)
        model.buffers.update(buffers)

    def vjp(
        self,
        model: Module,
        parameters: Mapping[str, Array],
        buffers: Mapping[str, Array],
        inputs: tuple[Array, ...],
        train: bool,
        key: int,
    ) -> VjpResult:
        """The module's `apply`; buffers that it does not give stay."""
        applied = model.apply({**parameters, **buffers}, inputs, train=train, key=key)
        return applied._replace(buffers={**buffers, **applied.buffers}) if applied.buffers else applied

    def move(self, array: Any, device: Device) -> Any:
        """As the backend's `move`."""
        return moved(array, device)

    def gather_rows(self, column: Array, start: int, stop: int, order: Array | None) -> Array:
        """As the backend's `rows`."""
        return rows(column, start, stop, order)

    def arange(self, count: int, like: Array) -> Array:
        """Made on the device."""
        return made_like(np.arange(count), like)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A callable that gives (sum, weight, gradients): NumPy cannot find the gradients by itself.

        `gradients` has one for each input, of the *sum*; None for an input that has none.
        """
        function = loss.own(**loss.kwargs) if isinstance(loss.own, type) else loss.own

        def judged(inputs: Sequence[Array]) -> LossResult:
            given = function(*inputs)
            if not (isinstance(given, tuple) and len(given) == 3 and len(given[2]) == len(inputs)):
                raise SpecError(
                    f"the loss {loss.name!r} gave no gradients, and NumPy cannot find them",
                    available=f"it gave {type(given).__name__}",
                    hint="return (sum, weight, gradients), with a gradient of the sum (or None) for each input",
                )
            total, weight, gradients = given
            return LossResult(total, np.full_like(total, weight) if np.ndim(weight) == 0 else weight, lambda: gradients)

        return judged
