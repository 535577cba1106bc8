"""NumpyOps: NumPy as the adapter's `ArrayOps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter import ArrayOps, ArrayProgram, LossFunction, LossResult, VjpResult
from anyaccel.adapter.losses import make_loss
from anyaccel.adapter.notifying_program import AfterStep, NotifyingProgram, notify_one_by_one
from anyaccel.adapter.precision_casts import codes_reason
from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.numpy_backend.array_creation import handle
from anyaccel.numpy_backend.builtin_models import SpecModel
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sim_array import Array, SimArray, bare, download, put_like, upload
from anyaccel.numpy_backend.transfers import gather_rows, moved
from anyaccel.precision import PRECISIONS, ComputesPrecision, NodePrecision
from anyaccel.specs import Loss, takes_targets_first


class NumpyOps(ArrayOps):
    """Modules over plain arrays and arrays of simulated devices."""

    xp = np

    def parameters(self, model: Module) -> Mapping[str, Array]:
        """Return the module's own."""
        return model.parameters

    def buffers(self, model: Module) -> Mapping[str, Array]:
        """Return the module's own."""
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
        """Return the module's `apply`; buffers that it leaves out are unchanged."""
        if precision is not None:
            return rounded_vjp(
                precision, lambda own, values: self.vjp(model, own, buffers, values, train, key), parameters, inputs
            )
        if model.computes_on_host:
            return _on_host(model, inputs, train, key)
        applied = model.apply({**parameters, **buffers}, inputs, train=train, key=key)
        return applied._replace(buffers={**buffers, **applied.buffers}) if applied.buffers else applied

    def move(self, array: Any, device: Device) -> Any:
        """Move a value with the backend's `move`."""
        return moved(array, device)

    def gather_rows(self, column: Array, start: int, stop: int, order: Array | None) -> Array:
        """Gather rows with the backend's `gather_rows`."""
        return gather_rows(column, start, stop, order)

    def arange(self, count: int, like: Array) -> Array:
        """Return the integers, on the device of `like`."""
        return put_like(np.arange(count), like)

    def constant(self, values: Sequence[float], like: Array) -> Array:
        """Return the numbers, on the device of `like`."""
        return put_like(np.array(values, like.dtype), like)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """Return a callable that returns (sum, weight, gradients), as NumPy has no automatic differentiation.

        `gradients` has the gradient of the *sum* for each input, or None.
        """
        function = make_loss(loss)
        is_reversed = takes_targets_first(function)

        def in_order(values: Sequence[Any]) -> Sequence[Any]:
            return [values[1], values[0], *values[2:]] if is_reversed else values

        def evaluate(inputs: Sequence[Array]) -> LossResult:
            result = function(*in_order(inputs))
            if not (isinstance(result, tuple) and len(result) == 3 and len(result[2]) == len(inputs)):
                raise SpecError(
                    f"the loss {loss.name!r} returned a {type(result).__name__} without gradients, "
                    "and NumPy has no automatic differentiation",
                    hint="return (sum, weight, gradients), with a gradient of the sum (or None) for each input",
                )
            total, weight, gradients = result
            full = np.full_like(total, weight) if np.ndim(weight) == 0 else weight
            return LossResult(total, full, lambda: in_order(gradients))

        return evaluate


def _on_host(model: Module, inputs: tuple[Array, ...], train: bool, key: int) -> VjpResult:
    """Return the module's `apply` on plain arrays; its outputs are where the first input was."""
    on = next((x.on for x in inputs if isinstance(x, SimArray)), None)
    plain = tuple(download(x) if isinstance(x, SimArray) else x for x in inputs)
    applied = model.apply({}, plain, train=train, key=key)
    return applied if on is None else applied._replace(outputs=tuple(upload(x, on) for x in applied.outputs))


# -- modules in other precisions: what enters and leaves a module is rounded to the precision, also on the way back ----


class NumpyPrecision(ComputesPrecision):
    """All precisions; 16 bits are rounded values of float32."""

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """A simulated device may lack float64, as real ones do; codes of categories must be exact."""
        reason = codes_reason(model.spec, precision) if isinstance(model, SpecModel) else ""
        if reason:
            return reason
        on = handle(device) if device.kind == "sim" else None  # a plugin may derive a chip of another kind
        lacks = precision == "float64" and on is not None and not on.float64
        return f"{device} has no float64: it was simulated with float64=False" if lacks else ""


Round = Callable[[Any], Any]


def rounded_vjp(
    precision: NodePrecision,
    vjp: Callable[[Mapping[str, Array], tuple[Array, ...]], VjpResult],
    parameters: Mapping[str, Array],
    inputs: tuple[Array, ...],
) -> VjpResult:
    """Apply a module in a precision: its inputs and outputs are rounded, and so are its cotangents and gradients.

    Args:
        precision: Precision of the computation.
        vjp: The module, a function of parameters and inputs.
        parameters: Parameters by name, of any floating dtype, which is also the dtype of gradients and outputs.
        inputs: Inputs of the module.
    """
    into = _rounding(precision.dtype)
    quiet = partial(np.errstate, over="ignore", invalid="ignore")  # as other frameworks compute with infinities
    with quiet():
        applied = vjp({name: into(array) for name, array in parameters.items()}, tuple(map(into, inputs)))
    dtype = next((array.dtype for array in (*parameters.values(), *inputs) if array.dtype.kind == "f"), None)

    def back(array: Any) -> Any:
        is_floating = array is not None and dtype is not None and array.dtype.kind == "f"
        return into(array).astype(dtype) if is_floating else array

    def pullback(cotangents: tuple[Array, ...]) -> tuple[Mapping[str, Array], Sequence[Any]]:
        with quiet():
            gradients, pulled = applied.pullback(tuple(map(into, cotangents)))
        return {name: back(array) for name, array in gradients.items()}, [
            None if array is None else into(array).astype(x.dtype) for array, x in zip(pulled, inputs, strict=True)
        ]

    return VjpResult(tuple(map(back, applied.outputs)), pullback, applied.buffers)


def _rounding(dtype: str) -> Round:
    """Return a function that rounds floating arrays to a dtype: 16 bits in float32, other dtypes unchanged."""
    narrow = {"bfloat16": _to_bfloat16, "float16": _to_float16}.get(dtype)

    def into(array: Any) -> Any:
        if array.dtype.kind != "f":
            return array
        return array.astype(dtype) if narrow is None else put_like(narrow(bare(array)), array)

    return into


def _to_float16(array: Array) -> Array:
    with np.errstate(over="ignore"):  # what float16 does not reach is infinite there
        return np.asarray(array, np.float32).astype(np.float16).astype(np.float32)


def _to_bfloat16(array: Array) -> Array:
    """Round to 8 significant bits, half to even; NaN and infinities stay."""
    plain = np.ascontiguousarray(array, np.float32)
    bits = plain.view(np.uint32)
    with np.errstate(over="ignore"):
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(plain), nearest.astype(np.uint32).view(np.float32), plain).reshape(np.shape(array))


# -- NumpyProgram: the program of a segment in NumPy, which tells of each step -----------------------------------------


class NumpyProgram(ArrayProgram, NotifyingProgram):
    """An `ArrayProgram` that does its steps in sequence in any case."""

    def train_and_notify(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        after_step: AfterStep,
        n_microbatches: int = 1,
    ) -> Any:
        told = notify_one_by_one(self, columns, orders, start, n_steps, batch_size, after_step, n_microbatches)
        return self._ops.xp.concatenate(told)
