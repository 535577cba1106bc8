"""ArrayOps: the operations that a framework implements so that `ArrayProgram` can train with it."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.optimizers import UpdateRule, update_rule
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, SpecError
from anyaccel.formulas import cast
from anyaccel.precision import NodePrecision
from anyaccel.segment import NodeState, Operation
from anyaccel.specs import Loss, Optimizer

Pullback = Callable[[tuple[Any, ...]], tuple[Mapping[str, Any], Sequence[Any]]]
"""From a cotangent for each output to gradients by parameter name, and a cotangent (or None) for each input.

Cotangents are computed from the outputs (that of `mse` is their difference from the targets) and are constants: nothing
is differentiated through them. An integer or boolean output gets zeros of its dtype; an integer or boolean input has no
gradient, so that its cotangent is None. Cotangents of complex values follow the framework's own convention.
"""

Kind = Literal["floating", "complex", "integer", "boolean"]
"""What an array holds. Integer and boolean arrays have no gradients."""
_KINDS: dict[str, Kind] = {"f": "floating", "c": "complex", "i": "integer", "u": "integer", "b": "boolean"}
_FURTHER_KINDS: dict[str, Kind] = {"bfloat": "floating", "float": "floating", "int": "integer", "uint": "integer"}
"""By the start of the name of a dtype that NumPy itself does not have, such as bfloat16 and float8_e4m3fn."""


class VjpResult(NamedTuple):
    """The result of applying a model: outputs, the pullback, and the new buffers (None if unchanged)."""

    outputs: tuple[Any, ...]
    pullback: Pullback
    buffers: Mapping[str, Any] | None = None


class LossResult(NamedTuple):
    """The result of a loss: its sum and weight, on the device, and the gradient of the *sum* for each of its inputs.

    `gradients` is called at most once; it returns None for an input that has no gradient.
    """

    sum: Any
    weight: Any
    gradients: Callable[[], Sequence[Any]]


Function = Callable[..., Any]
LossFunction = Callable[[Sequence[Any]], LossResult]


class ArrayOps(ABC):
    """The operations of a framework that training needs. Models are functions of (parameters, buffers, inputs).

    A backend that `calls_by_keyword` gives `vjp`, `call` and `apply` one more parameter, `layout=POSITIONAL`: a
    `CallLayout`, passed by keyword if a call is not positional. Its `bind` returns the arguments of the call, and its
    `outputs` the outputs in the results. A backend that `ComputesPrecision` also gives them `precision=None`, a
    `NodePrecision`, and, if it can compute values again, `remat=""`.

    Arrays have `shape`, `ndim` and `dtype`, arithmetic with each other and with numbers, `==`, and indexing by slices,
    `...` and None.
    """

    xp: Any
    """Namespace with functions by NumPy's names, and `float32`; docs/how-to/write-a-backend.md lists them and how each
    is called."""

    @abstractmethod
    def parameters(self, model: Any) -> Mapping[str, Any]:
        """Return the model's trainable arrays by name, without copies: models that share one are found by its
        identity.
        """

    @abstractmethod
    def buffers(self, model: Any) -> Mapping[str, Any]:
        """Return the arrays by name that a model changes while it trains, such as running means."""

    def constraints(self, model: Any) -> Mapping[str, Callable[[Any], Any]]:
        """Return functions that are applied to parameters after each update, by parameter name; by default none."""
        return {}

    @abstractmethod
    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Store the trained values in the user's model.

        Args:
            model: The model of the graph.
            parameters, buffers: All of them by name, with the shapes and dtypes that the methods with these names
                returned. The program and its snapshots may hold the same arrays, so do not write into them later.
        """

    def optimizer_state(self, model: Any) -> NodeState | None:
        """Return an optimizer state that is part of the model, used by a node without state, or None."""
        return None

    def write_optimizer_state(self, model: Any, state: NodeState) -> None:
        """Store the optimizer state in the model; the default does nothing.

        Args:
            model: A model of the graph that has an optimizer state (see `optimizer_state`).
            state: Steps and slots after training; slots are arrays by name of parameter and of slot.
        """

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
        """Apply a model to inputs on its device, so that its outputs can be differentiated.

        Args:
            model: The model; its own arrays are ignored.
            parameters, buffers: Arrays by name, used instead of its own.
            inputs: Arrays [rows, *shape], in the order of the model's arguments.
            train: Whether it computes as in training: dropout is active, and buffers change.
            key: An int of 64 bits that determines all randomness, such as dropout.

        Returns:
            Outputs [rows, *shape], their pullback (see `Pullback`), and the new buffers, or None if they do not change.
        """

    @abstractmethod
    def move(self, array: Any, device: Device) -> Any:
        """Return the array on a device; the same object if it is on that device already."""

    @abstractmethod
    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """Gather rows of a column; see `Exchange.gather_rows`."""

    def call(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        layout: CallLayout = POSITIONAL,
        precision: NodePrecision | None = None,
    ) -> tuple[Any, ...]:
        """Compute outputs in evaluation mode, arrays [rows, *shape]; nothing changes.

        The default takes the outputs of `vjp`; override it if that is slower.

        Args:
            model, parameters, buffers, inputs: See `vjp`.
            layout: How inputs become arguments; only for a backend that `calls_by_keyword`.
            precision: Precision of the computation; only for a backend that `ComputesPrecision`.
        """
        keywords: dict[str, Any] = {} if layout is POSITIONAL else {"layout": layout}
        keywords |= {} if precision is None else {"precision": precision}
        return self.vjp(model, parameters, buffers, inputs, False, 0, **keywords).outputs

    def astype(self, array: Any, dtype: Any) -> Any:
        """Return the array in a dtype of the framework; the default calls `array.astype`."""
        return array.astype(dtype)

    def kind(self, array: Any) -> Kind:
        """Return whether an array is floating, complex, integer or boolean; the default knows NumPy's dtypes and
        bfloat16.

        Raises:
            CapabilityError: the dtype is not one of NumPy's, so the framework's ops must define this.
        """
        dtype = self._numpy_dtype(array, "kind")
        further = (kind for start, kind in _FURTHER_KINDS.items() if dtype.name.startswith(start))
        kind = _KINDS.get(dtype.kind) or next(further, None)
        if kind is None:
            raise CapabilityError(
                f"arrays of {dtype} are neither floating, complex, integer nor boolean", hint="convert them first"
            )
        return kind

    def itemsize(self, array: Any) -> int:
        """Return the bytes of an element, at least 1; the default knows NumPy's dtypes. Raises the errors of `kind`."""
        return self._numpy_dtype(array, "itemsize").itemsize

    def _numpy_dtype(self, array: Any, method: str) -> np.dtype[Any]:
        try:
            dtype: np.dtype[Any] = np.dtype(array.dtype)
        except TypeError:
            raise CapabilityError(
                f"{array.dtype} is not a NumPy dtype",
                hint=f"define {method}(self, array) in {type(self).__name__}",
            ) from None
        return dtype

    def compile(self, function: Function) -> Function:
        """Compile a pure function of trees (dicts, tuples) of arrays; the default returns it unchanged.

        Numbers that change from step to step are passed as arrays created by `scalar`, so that they cause no
        recompilation.
        """
        return function

    def scalar(self, value: float) -> Any:
        """Return a number in the form that compiled functions take; by default the number."""
        return value

    def arange(self, count: int, like: Any) -> Any:
        """Return the integers 0 to count - 1, [count], on the device of `like`, in a dtype that compares with it."""
        return self.xp.arange(count)

    def constant(self, values: Sequence[float], like: Any) -> Any:
        """Return numbers as an array [n] in the dtype and on the device of `like`; the default uses `xp.array`."""
        return cast(self, self.xp.array(values), like.dtype)

    def update_rule(self, optimizer: Optimizer) -> UpdateRule:
        """Return how an optimizer updates parameters; the default has the named optimizers.

        Raises:
            SpecError: the optimizer is an optimizer of a framework.
        """
        return update_rule(optimizer)

    def parameter_tree(self, model: Any) -> Any:
        """Return the parameter tree of the model's library, for `UpdateRule.for_tree`; by default None: parameters by
        name.
        """
        return None

    def custom_loss(self, loss: Loss) -> LossFunction:
        """Return a loss that is not a named one, `loss.own` (a function, or a class for `loss.kwargs`), as a function.

        For a mean over the batch, the weight is the number of rows, and the sum is the mean times the rows.

        Raises:
            SpecError: the framework takes only named losses, which is the default.
        """
        raise SpecError(f"the loss {loss.name!r} is not a named loss", hint="use a named loss with this framework")


def is_differentiable(ops: ArrayOps, array: Any) -> bool:
    """Return whether gradients flow through an array."""
    return ops.kind(array) in ("floating", "complex")


def at_least_float32(ops: ArrayOps, array: Any) -> Any:
    """Return the array, in float32 if its dtype is narrower: in 16 bits squares overflow, and sums are inexact."""
    return ops.astype(array, ops.xp.float32) if ops.itemsize(array) < 4 else array


def factor_on_device(ops: ArrayOps, factor: Any, device: Device) -> Any:
    """Return a factor for arrays on `device`: a float for any number, a scalar array moved there."""
    return float(factor) if isinstance(factor, (int, float, np.generic)) else ops.move(factor, device)


def scaled(ops: ArrayOps, array: Any, factor: Any) -> Any:
    """Return `array * factor` in the array's dtype; the factor comes from `factor_on_device`."""
    return array * (factor if isinstance(factor, float) else cast(ops, factor, array.dtype))


def concatenate_vjp(ops: ArrayOps, op: Operation, inputs: tuple[Any, ...]) -> VjpResult:
    """Concatenate inputs along an axis of the samples; the pullback splits the cotangent."""
    axis = op.axis + 1 if op.axis >= 0 else op.axis + inputs[0].ndim
    ends = [0, *itertools.accumulate(x.shape[axis] for x in inputs)]

    def pullback(cotangents: tuple[Any, ...]) -> tuple[dict[str, Any], list[Any]]:
        slices = [(*[slice(None)] * axis, slice(begin, end)) for begin, end in itertools.pairwise(ends)]
        return {}, [cotangents[0][where] for where in slices]

    return VjpResult((ops.xp.concatenate(inputs, axis=axis),), pullback)
