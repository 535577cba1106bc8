"""JaxOps: the operations of JAX that the adapter's program trains with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import LossFunction, StepFunction, StepLoop, TracedOps, UpdateRule
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.layer_optimizers import LayerOptimizerRule
from anyaccel.adapter.precision_casts import apply_in_precision
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.precision import NodePrecision
from anyaccel.segment import NodeState
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax.error_translation import translate_errors, with_translated_errors
from anyaccel_jax.losses import keras_library, scalar_loss
from anyaccel_jax.models.base import LIBRARIES, Model
from anyaccel_jax.models.dispatch import as_model
from anyaccel_jax.optimizers import optax_rule
from anyaccel_jax.parameter_tree import ParameterTree
from anyaccel_jax.step_loop import compile_loop, named_after
from anyaccel_jax.transfers import put_alike, put_like


class Namespace:
    """`jax.numpy` under its own names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def zeros_like(self, array: Any) -> Any:
        """Return `jnp.zeros_like`, on the array's device."""
        if isinstance(array, jax.core.Tracer):
            return jnp.zeros_like(array)
        return put_alike(np.zeros(array.shape, array.dtype), array.sharding)


OutputsAndBuffers = tuple[tuple[Any, ...], Mapping[str, Any] | None]

_KEY_IMPLEMENTATION = "threefry2x32"  # whatever the user's default is


class _Way(NamedTuple):
    """How a model is applied, apart from its arguments."""

    train: bool
    layout: CallLayout
    precision: NodePrecision | None
    remat: str


@partial(jax.jit, static_argnums=2)
def slice_rows(column: Any, begin: Any, size: int) -> Any:
    """Return `column[begin : begin + size]`; compiled once for each size."""
    return jax.lax.dynamic_slice_in_dim(column, begin, size)


@partial(jax.jit, static_argnums=3)
def gather_rows(column: Any, order: Any, begin: Any, size: int) -> Any:
    """Return `column[order[begin : begin + size]]`; compiled once for each size."""
    return jnp.take(column, jax.lax.dynamic_slice_in_dim(order, begin, size), axis=0)


class JaxOps(TracedOps):
    """Arrays of JAX, and models as pure functions; a new object for each program.

    The state that a step loop is given stays intact, so that however a call ends, there is a state to continue with.

    Args:
        move_array: Function that puts an array on a device.
    """

    xp = Namespace()
    donates = False
    multi_device = False
    libraries = LIBRARIES
    eager_seconds = None  # eagerly, JAX compiles every operation by itself, which takes longer

    def __init__(self, move_array: Callable[[Any, Device], Any], *, keeps_models: bool = True) -> None:
        self._move_array = move_array
        self._keeps_models = keeps_models
        self._models: dict[int, Model] = {}
        self._compiled: dict[tuple[int, _Way], Any] = {}

    def named_scope(self, name: str) -> AbstractContextManager[Any]:
        """Return `jax.named_scope`, which costs nothing once a function is compiled."""
        return jax.named_scope(name)

    def model(self, model: Any) -> Model:
        """Return a model as a pure function."""
        if not self._keeps_models:
            return as_model(model)
        if id(model) not in self._models:
            self._models[id(model)] = as_model(model)
        return self._models[id(model)]

    def shareable(self) -> JaxOps:
        """Return the same without models."""
        return type(self)(self._move_array, keeps_models=False)

    def cache_key(self, model: Any) -> Any:
        """Return the cache key of the model in its current state."""
        return as_model(model).cache_key

    def forget_compiled(self) -> None:
        """Forget functions of single models."""
        self._compiled.clear()

    # -- models ----------------------------------------------------------------------------------------------------

    def parameters(self, model: Any) -> Mapping[str, Any]:
        return self.model(model).parameters

    def buffers(self, model: Any) -> Mapping[str, Any]:
        return self.model(model).buffers

    def constraints(self, model: Any) -> Mapping[str, Callable[[Any], Any]]:
        return self.model(model).constraints

    def optimizer_state(self, model: Any) -> NodeState | None:
        """Return the optimizer state of a Flax TrainState."""
        return getattr(self.model(model), "optimizer_state", None)

    def write_optimizer_state(self, model: Any, state: NodeState) -> None:
        """Store the optimizer state in a Flax TrainState."""
        held = self.model(model)
        if hasattr(held, "optimizer_state"):
            held.optimizer_state = state

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Store the values in the model, once they are computed.

        Raises:
            StateError: there are no values, because the step that computes them failed; the model is unchanged.
        """
        arrays = [*parameters.values(), *buffers.values()]
        if any(array.is_deleted() for array in arrays):
            raise _lost_values(model)
        try:
            for array in arrays:
                array.block_until_ready()
        except RuntimeError as error:
            raise _lost_values(model) from error
        self.model(model).write(parameters, buffers)

    def apply(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
        precision: NodePrecision | None = None,
        remat: str = "",
    ) -> OutputsAndBuffers:
        """Run `Model.apply`, compiled separately: a segment on several devices is not compiled as a whole."""
        way = _Way(train, layout, precision, remat)
        if self.eager:
            return _apply(self.model(model), way, parameters, buffers, inputs, key)
        call = id(model), way
        if call not in self._compiled:
            self._compiled[call] = jax.jit(partial(_apply_referenced, weakref.ref(model), way))
        result: OutputsAndBuffers = self._compiled[call](dict(parameters), dict(buffers), inputs, key)
        return result

    def call(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        layout: Any = POSITIONAL,
        precision: NodePrecision | None = None,
    ) -> tuple[Any, ...]:
        """Compute in evaluation mode; random numbers, if any, are the same in every call."""
        return self.apply(model, parameters, buffers, inputs, False, self.key(0), layout, precision)[0]

    # -- functions -------------------------------------------------------------------------------------------------

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with `jax.jit`."""
        return _jit(function)

    def value_and_pullback(
        self, function: Callable[..., Any], primals: Any, rest: Any
    ) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Compute with `jax.vjp`."""
        values, pullback, others = jax.vjp(lambda primals: function(primals, rest), primals, has_aux=True)
        return values, others, lambda cotangents: pullback(cotangents)[0]

    def compile_value_and_pullback(
        self, function: Callable[..., Any]
    ) -> Callable[[Any, Any], tuple[Any, Any, Callable[[Any], Any]]]:
        """Forward and backward pass compiled separately; JAX passes the residuals from one to the other."""

        def vjp(primals: Any, rest: Any) -> Any:
            return jax.vjp(lambda primals: function(primals, rest), primals, has_aux=True)

        def pull_back(pullback: Any, cotangents: Any) -> Any:
            return pullback(cotangents)[0]

        named_after(function, vjp, "vjp")
        named_after(function, pull_back, "pullback")
        forward, backward = _jit(vjp), _jit(pull_back)

        def run(primals: Any, rest: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
            values, pullback, others = forward(primals, rest)
            return values, others, partial(backward, pullback)

        return run

    def jit(self, function: Callable[..., Any], donated: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Compile with `jax.jit` a function that destroys some of its arguments, with this framework's errors."""
        return _jit(function, donated)

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """Return a loop on the device, compiled once for any number of steps, or single steps."""
        return compile_loop(body, self.jit, donates=self.donates)

    def accumulate(self, body: Callable[..., Any], carried: Any, count: int) -> tuple[Any, Any]:
        """Run with `jax.lax.fori_loop`."""
        _, shapes = jax.eval_shape(body, carried, jnp.int32(0))
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

        def iteration(i: Any, state: Any) -> Any:
            carried, total = state
            carried, more = body(carried, i)
            return carried, jax.tree.map(jnp.add, total, more)

        result: tuple[Any, Any] = jax.lax.fori_loop(0, count, iteration, (carried, zeros))
        return result

    # -- arrays and numbers ----------------------------------------------------------------------------------------

    def scalar(self, value: float) -> Any:
        """Return a NumPy number, so that another value does not compile a function again."""
        return np.float64(value) if isinstance(value, float) else np.int32(value)

    def move(self, array: Any, device: Device) -> Any:
        """Move with the backend's `move`; while tracing, add an operation that also moves gradients back."""
        return self._move_array(array, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """Gather rows within the column; see `Exchange.gather_rows`."""
        return self.gather_batch(column, order, np.int32(start), stop - start)

    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """Gather rows, also in a traced function."""
        return slice_rows(column, start, size) if order is None else gather_rows(column, order, start, size)

    def copy(self, array: Any) -> Any:
        """Copy with `jnp.copy`."""
        return jnp.copy(array)

    def wait(self, arrays: Any) -> None:
        """Wait with `jax.block_until_ready`: JAX computes later, and only then reports that memory ran out."""
        wait: Any = jax.block_until_ready
        with translate_errors("a training step"):
            wait(arrays)

    # -- randomness, losses, optimizers ----------------------------------------------------------------------------

    def key(self, seed: int) -> Any:
        """Return the 64 bits as JAX's key data: two uint32."""
        return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], dtype=np.uint32)

    def fold(self, key: Any, number: Any) -> Any:
        """Fold with `jax.random.fold_in`."""
        return jax.random.key_data(jax.random.fold_in(_wrap_key(key), number))

    def custom_loss(self, loss: Loss) -> LossFunction:
        """Return a function of arrays that gives the mean, or a loss of Keras, whose mean is taken."""
        return super().custom_loss(scalar_loss(loss))

    def parameter_tree(self, model: Any) -> ParameterTree:
        return self.model(model).parameter_tree

    def update_rule(self, optimizer: Optimizer) -> UpdateRule:
        """Return the rule by the formulas, Optax, or Keras."""
        if optimizer.own is None:
            return super().update_rule(optimizer)
        library = keras_library()
        if not library.is_optimizer(optimizer.own):
            return optax_rule(optimizer)
        outside: Any = jax.ensure_compile_time_eval
        return LayerOptimizerRule(optimizer, library.module, outside, put_like)


class DonatingOps(JaxOps):
    """The same with a loop that writes the new state into the memory of the old one: for models whose state is large.

    If such a call fails, or is interrupted, what was trained since the last `sync_models` is lost.
    """

    donates = True


def _jit(function: Callable[..., Any], donated: tuple[int, ...] = ()) -> Callable[..., Any]:
    return with_translated_errors(jax.jit(function, donate_argnums=donated), "a training step")


def _lost_values(model: Any) -> StateError:
    return StateError(
        f"the trained values of a {type(model).__name__} were lost in a step that failed",
        cause="the model has the values from the start of the phase, or from its last checkpoint",
        hint="see the error of that step, and continue training from these values",
    )


_CASTING = JaxOps(lambda array, device: array, keeps_models=False)


def _apply(model: Model, way: _Way, parameters: Any, buffers: Any, inputs: Any, key: Any) -> OutputsAndBuffers:
    def apply(parameters: Any, buffers: Any, inputs: Any) -> OutputsAndBuffers:
        return model.apply(parameters, buffers, inputs, way.train, _wrap_key(key), way.layout)

    def apply_precisely(parameters: Any, buffers: Any, inputs: Any) -> OutputsAndBuffers:
        if way.precision is None:
            return apply(parameters, buffers, inputs)
        dtype, scope = getattr(jnp, way.precision.dtype), model.computing_in(way.precision)
        return apply_in_precision(_CASTING, way.precision, dtype, apply, parameters, buffers, inputs, scope)

    if not way.remat:
        return apply_precisely(parameters, buffers, inputs)
    again: Any = jax.checkpoint(apply_precisely)
    result: OutputsAndBuffers = again(dict(parameters), dict(buffers), tuple(inputs))
    return result


def _apply_referenced(
    reference: Any, way: _Way, parameters: Any, buffers: Any, inputs: Any, key: Any
) -> OutputsAndBuffers:
    """Apply with a weak reference to the model, which exists while functions are traced."""
    return _apply(as_model(reference()), way, parameters, buffers, inputs, key)


def _wrap_key(key: Any) -> Any:
    return jax.random.wrap_key_data(key, impl=_KEY_IMPLEMENTATION)
