"""NumpyOps: NumPy as the adapter's `ArrayOps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import ArrayOps, LossFunction, LossResult, VjpResult
from anyaccel.adapter.custom_loss import make_loss
from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.rounding import rounded_vjp
from anyaccel.numpy_backend.sim_array import Array, SimArray, download, put_like, upload
from anyaccel.numpy_backend.transfers import gather_rows, moved
from anyaccel.precision import NodePrecision
from anyaccel.specs import Loss


class NumpyOps(ArrayOps):
    """Modules over plain arrays and arrays of simulated devices."""

    xp = np

    def parameters(self, model: Module) -> Mapping[str, Array]:
        """The module's own."""
        return model.parameters

    def buffers(self, model: Module) -> Mapping[str, Array]:
        """The module's own."""
        return model.buffers

    def write(self, model: Module, parameters: Mapping[str, Array], buffers: Mapping[str, Array]) -> None:
        """Update the module's mappings."""
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
        precision: NodePrecision | None = None,
    ) -> VjpResult:
        """The module's `apply`; buffers that it leaves out are unchanged."""
        if precision is not None:
            return rounded_vjp(
                precision, lambda own, given: self.vjp(model, own, buffers, given, train, key), parameters, inputs
            )
        if model.computes_on_host:
            return _on_host(model, inputs, train, key)
        applied = model.apply({**parameters, **buffers}, inputs, train=train, key=key)
        return applied._replace(buffers={**buffers, **applied.buffers}) if applied.buffers else applied

    def move(self, array: Any, device: Device) -> Any:
        """As the backend's `move`."""
        return moved(array, device)

    def gather_rows(self, column: Array, start: int, stop: int, order: Array | None) -> Array:
        """As the backend's `gather_rows`."""
        return gather_rows(column, start, stop, order)

    def arange(self, count: int, like: Array) -> Array:
        """The integers, on the device of `like`."""
        return put_like(np.arange(count), like)

    def constant(self, values: Sequence[float], like: Array) -> Array:
        """The numbers, on the device of `like`."""
        return put_like(np.array(values, like.dtype), like)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A callable that returns (sum, weight, gradients), as NumPy has no automatic differentiation.

        `gradients` has the gradient of the *sum* for each input, or None.
        """
        function = make_loss(loss)

        def evaluate(inputs: Sequence[Array]) -> LossResult:
            result = function(*inputs)
            if not (isinstance(result, tuple) and len(result) == 3 and len(result[2]) == len(inputs)):
                raise SpecError(
                    f"the loss {loss.name!r} returned a {type(result).__name__} without gradients, "
                    "and NumPy has no automatic differentiation",
                    hint="return (sum, weight, gradients), with a gradient of the sum (or None) for each input",
                )
            total, weight, gradients = result
            return LossResult(total, np.full_like(total, weight) if np.ndim(weight) == 0 else weight, lambda: gradients)

        return evaluate


def _on_host(model: Module, inputs: tuple[Array, ...], train: bool, key: int) -> VjpResult:
    """The module's `apply` on plain arrays; its outputs are where the first input was."""
    on = next((x.on for x in inputs if isinstance(x, SimArray)), None)
    plain = tuple(download(x) if isinstance(x, SimArray) else x for x in inputs)
    applied = model.apply({}, plain, train=train, key=key)
    return applied if on is None else applied._replace(outputs=tuple(upload(x, on) for x in applied.outputs))
