"""ArrayOps: what a framework implements so that `ArrayProgram` can train with it."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyaccel.adapter.optimizers import UpdateRule, update_rule
from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.segment import Operation
from anyaccel.specs import Loss, Optimizer

Pullback = Callable[[tuple[Any, ...]], tuple[Mapping[str, Any], Sequence[Any]]]
"""From a cotangent for each output to gradients by parameter name, and a cotangent (or None) for each input."""


class VjpResult(NamedTuple):
    """What applying a model gives: outputs, the pullback, and the buffers afterwards (None where unchanged)."""

    outputs: tuple[Any, ...]
    pullback: Pullback
    buffers: Mapping[str, Any] | None = None


class LossResult(NamedTuple):
    """What a loss gives: its sum and weight, on the device, and the gradient of the *sum* for each of its inputs.

    `gradients` is called at most once; it returns None for an input that has no gradient.
    """

    sum: Any
    weight: Any
    gradients: Callable[[], Sequence[Any]]


Function = Callable[..., Any]
LossFunction = Callable[[Sequence[Any]], LossResult]


class ArrayOps(ABC):
    """What training needs of a framework. Models are functions of (parameters, buffers, inputs).

    Arrays have `shape`, `ndim`, `dtype`, arithmetic, comparison and indexing by slices.
    """

    xp: Any
    """Namespace with NumPy's any, all, abs, concatenate, exp, full_like, isfinite, log, log1p, max, maximum, minimum,
    sign, sqrt, stack, sum, tanh, where, zeros and zeros_like, and `float32`; `StepFunction.flatten` needs reshape."""

    @abstractmethod
    def parameters(self, model: Any) -> Mapping[str, Any]:
        """The model's trainable arrays by name."""

    @abstractmethod
    def buffers(self, model: Any) -> Mapping[str, Any]:
        """The arrays by name that a model changes while it trains, such as running means."""

    @abstractmethod
    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Store these values in the user's model."""

    @abstractmethod
    def vjp(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: int,
    ) -> VjpResult:
        """Apply a model to inputs on its device; `key` (64 bits) determines all randomness, such as dropout."""

    @abstractmethod
    def move(self, array: Any, device: Device) -> Any:
        """The array on a device; the same object if it is there."""

    @abstractmethod
    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """As `Exchange.gather_rows`."""

    def call(
        self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any], inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Outputs in evaluation mode. The default takes those of `vjp`; override it where that costs more."""
        return self.vjp(model, parameters, buffers, inputs, False, 0).outputs

    def astype(self, array: Any, dtype: Any) -> Any:
        """The array in a dtype of the framework's; the default calls `array.astype`."""
        return array.astype(dtype)

    def compile(self, function: Function) -> Function:
        """Compile a pure function of trees (dicts, tuples) of arrays; the default returns it unchanged.

        Numbers that change from step to step are given as arrays made by `scalar`, so that they cause no recompilation.
        """
        return function

    def scalar(self, value: float) -> Any:
        """A number as compiled functions take it; the default is the number."""
        return value

    def arange(self, count: int, like: Any) -> Any:
        """The integers 0 to count - 1 on the device of `like`, in a dtype that compares with it."""
        return self.xp.arange(count)

    def update_rule(self, optimizer: Optimizer) -> UpdateRule:
        """How an optimizer updates parameters; the default has the named optimizers.

        Raises:
            SpecError: the optimizer is a framework's own.
        """
        return update_rule(optimizer)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A loss that is not a named one, as a function of its inputs.

        Raises:
            SpecError: the framework takes named losses only, which is the default.
        """
        raise SpecError(f"the loss {loss.name!r} is not a named one", hint="use a named loss with this framework")


def cast(ops: ArrayOps, array: Any, dtype: Any) -> Any:
    """The array in a dtype; the same object if it is already."""
    return array if array.dtype == dtype else ops.astype(array, dtype)


def factor_on_device(ops: ArrayOps, factor: Any, device: Device) -> Any:
    """A factor for arrays on `device`: a float for any number, a scalar array moved there."""
    return float(factor) if isinstance(factor, (int, float, np.generic)) else ops.move(factor, device)


def scaled(ops: ArrayOps, array: Any, factor: Any) -> Any:
    """`array * factor` in the array's dtype; the factor comes from `factor_on_device`."""
    return array * (factor if isinstance(factor, float) else cast(ops, factor, array.dtype))


def concatenate_vjp(ops: ArrayOps, op: Operation, inputs: tuple[Any, ...]) -> VjpResult:
    """The concatenation of inputs along an axis of the samples; its pullback splits the cotangent."""
    axis = op.axis + 1 if op.axis >= 0 else op.axis + inputs[0].ndim
    ends = [0, *itertools.accumulate(x.shape[axis] for x in inputs)]

    def pullback(cotangents: tuple[Any, ...]) -> tuple[dict[str, Any], list[Any]]:
        slices = [(*[slice(None)] * axis, slice(begin, end)) for begin, end in itertools.pairwise(ends)]
        return {}, [cotangents[0][where] for where in slices]

    return VjpResult((ops.xp.concatenate(inputs, axis=axis),), pullback)
