"""JaxOps: what the adapter asks of JAX."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import LossFunction, StepFunction, StepLoop, TracedOps, UpdateRule
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax.error_translation import told
from anyaccel_jax.losses import scalar_loss
from anyaccel_jax.models.base import Applied, Model, outputs_of
from anyaccel_jax.models.dispatch import view
from anyaccel_jax.namespace import Namespace
from anyaccel_jax.optimizers import rule
from anyaccel_jax.step_loop import repeated

_IMPLEMENTATION = "threefry2x32"  # of keys, whatever the user's default is
_STEP = "a step of training"


@partial(jax.jit, static_argnums=2)
def sliced(column: Any, begin: Any, size: int) -> Any:
    """`column[begin : begin + size]`; compiled once for each size."""
    return jax.lax.dynamic_slice_in_dim(column, begin, size)


@partial(jax.jit, static_argnums=3)
def gathered(column: Any, order: Any, begin: Any, size: int) -> Any:
    """`column[order[begin : begin + size]]`; compiled once for each size."""
    return jnp.take(column, jax.lax.dynamic_slice_in_dim(order, begin, size), axis=0)


class JaxOps(TracedOps):
    """Arrays of JAX, and models by their views; made anew for each program.

    The state that `compile_steps` is given stays, so that whatever ends a call, there is a state to go on with.

    Args:
        sent: puts an array on a device.
    """

    xp = Namespace()
    donates = False
    multi_device = False
    eager_seconds = None  # one by one, JAX compiles every operation by itself, which takes longer

    def __init__(self, sent: Callable[[Any, Device], Any], *, keeps: bool = True) -> None:
        self._sent = sent
        self._keeps = keeps
        self._views: dict[int, Model] = {}
        self._applied: dict[tuple[int, bool], Any] = {}

    def _view(self, model: Any) -> Model:
        if not self._keeps:
            return view(model)
        if id(model) not in self._views:
            self._views[id(model)] = view(model)
        return self._views[id(model)]

    def shareable(self) -> JaxOps:
        """The same without views of models, which hold them."""
        return type(self)(self._sent, keeps=False)

    def cache_key(self, model: Any) -> Any:
        """As its view says."""
        return self._view(model).cache_key

    # -- models ----------------------------------------------------------------------------------------------------

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """As its view has them."""
        return self._view(model).parameters

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """As its view has them."""
        return self._view(model).buffers

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """By its view, once the values are there.

        Raises:
            StateError: they are not, since the step that was to make them failed; the model is as it was.
        """
        arrays = [*parameters.values(), *buffers.values()]
        if any(one.is_deleted() for one in arrays):
            raise _lost(model)
        try:
            for one in arrays:
                one.block_until_ready()
        except RuntimeError as error:
            raise _lost(model) from error
        self._view(model).write(parameters, buffers)

    def apply(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
    ) -> tuple[tuple[Any, ...], Mapping[str, Any] | None]:
        """The view's `apply`, compiled by itself: a segment on several devices is not compiled as a whole."""
        if self.eager:
            plain: Applied = _applied(self._view(model), train, parameters, buffers, inputs, key)
            return plain
        if (id(model), train) not in self._applied:
            self._applied[id(model), train] = jax.jit(partial(_applied_to, weakref.ref(model), train))
        found: Applied = self._applied[id(model), train](dict(parameters), dict(buffers), inputs, key)
        return found

    def call(
        self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any], inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """In evaluation mode; what is random all the same is always the same."""
        return self.apply(model, parameters, buffers, inputs, False, self.key(0))[0]

    # -- functions -------------------------------------------------------------------------------------------------

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`jax.jit`."""
        return told(jax.jit(function), _STEP)

    def value_and_pullback(
        self, function: Callable[..., Any], primals: Any, rest: Any
    ) -> tuple[Any, Any, Callable[[Any], Any]]:
        """`jax.vjp`."""
        values, pull, others = jax.vjp(lambda primals: function(primals, rest), primals, has_aux=True)
        return values, others, lambda cotangents: pull(cotangents)[0]

    def compile_value_and_pullback(
        self, function: Callable[..., Any]
    ) -> Callable[[Any, Any], tuple[Any, Any, Callable[[Any], Any]]]:
        """Forward and back compiled apart: between them go what JAX keeps for the way back."""

        def ahead(primals: Any, rest: Any) -> Any:
            return jax.vjp(lambda primals: function(primals, rest), primals, has_aux=True)

        forward = told(jax.jit(ahead), _STEP)
        back = told(jax.jit(lambda pull, cotangents: pull(cotangents)[0]), _STEP)

        def run(primals: Any, rest: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
            values, pull, others = forward(primals, rest)
            return values, others, partial(back, pull)

        return run

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """A loop on the device, compiled once for any number of steps, or single steps."""

        def compiled(function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
            return told(jax.jit(function, donate_argnums=donated), _STEP)

        return repeated(body, compiled, donates=self.donates)

    def accumulate(self, body: Callable[..., Any], carried: Any, count: int) -> tuple[Any, Any]:
        """`jax.lax.fori_loop`."""
        _, shapes = jax.eval_shape(body, carried, jnp.int32(0))
        zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)

        def again(i: Any, both: Any) -> Any:
            carried, total = both
            carried, more = body(carried, i)
            return carried, jax.tree.map(jnp.add, total, more)

        found: tuple[Any, Any] = jax.lax.fori_loop(0, count, again, (carried, zeros))
        return found

    # -- arrays and numbers ----------------------------------------------------------------------------------------

    def scalar(self, value: float) -> Any:
        """A number of NumPy, which a compiled function takes without being compiled anew."""
        return np.float64(value) if isinstance(value, float) else np.int32(value)

    def move(self, array: Any, device: Device) -> Any:
        """As the backend's `move`; while functions are traced, an operation that moves, and back on the way back."""
        return self._sent(array, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """As `Exchange.rows`, within the column."""
        begin = np.int32(start)
        return sliced(column, begin, stop - start) if order is None else gathered(column, order, begin, stop - start)

    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """As `rows`, in a traced function."""
        return sliced(column, start, size) if order is None else gathered(column, order, start, size)

    def copy(self, array: Any) -> Any:
        """`jnp.copy`."""
        return jnp.copy(array)

    # -- randomness, losses, optimizers ----------------------------------------------------------------------------

    def key(self, seed: int) -> Any:
        """The 64 bits as JAX's own data of a key: two uint32."""
        return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], dtype=np.uint32)

    def fold(self, key: Any, number: Any) -> Any:
        """`jax.random.fold_in`."""
        return jax.random.key_data(jax.random.fold_in(_wrapped(key), number))

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A function of arrays that gives the mean, or a loss of Keras, whose mean over what it gives is taken."""
        return super().custom_loss(scalar_loss(loss))

    def update_rule(self, recipe: Optimizer) -> UpdateRule:
        """By the formulas, or one of Optax's."""
        return super().update_rule(recipe) if recipe.own is None else rule(recipe)


class DonatingOps(JaxOps):
    """The same with a loop that writes the new state where the old one was: for models whose state is large.

    If such a call fails, or is interrupted, what was trained since the last `publish` is lost.
    """

    donates = True


def _lost(model: Any) -> StateError:
    return StateError(
        f"the trained values of a {type(model).__name__} were lost in a step that failed",
        available="the model has the values of the beginning of the phase, or of the last checkpoint in it",
        hint="see the error of that step, and train again from there",
    )


def _applied(model: Model, train: bool, parameters: Any, buffers: Any, inputs: Any, key: Any) -> Any:
    outputs, after = model.apply(parameters, buffers, inputs, train, _wrapped(key))
    return outputs_of(outputs), after


def _applied_to(held: Any, train: bool, parameters: Any, buffers: Any, inputs: Any, key: Any) -> Any:
    """Of a model that is not held: it is there while functions are traced."""
    return _applied(view(held()), train, parameters, buffers, inputs, key)


def _wrapped(key: Any) -> Any:
    return jax.random.wrap_key_data(key, impl=_IMPLEMENTATION)
