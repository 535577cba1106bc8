"""TensorFlowOps: what TensorFlow says about itself so that `TracedProgram` can train with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from anyaccel.adapter import Function, IdentityKey, LossFunction, StepFunction, StepLoop, TracedOps, attributes_key
from anyaccel.device import Device
from anyaccel.segment import Segment
from anyaccel.specs import Loss
from anyaccel_tensorflow import host_transfer, numpy_namespace, variables
from anyaccel_tensorflow.builtin_models import FromRecipe
from anyaccel_tensorflow.device_policy import lenient
from anyaccel_tensorflow.device_scope import beside, enclosed, moved_in, settled
from anyaccel_tensorflow.functional_call import Call, call_of
from anyaccel_tensorflow.losses import scalar_loss
from anyaccel_tensorflow.stateless_rng import folded, key_of
from anyaccel_tensorflow.step_loop import looped
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.tree_utils import parsed

ValueAndPullback = tuple[Any, Any, Callable[[Any], Any]]


class TensorFlowOps(TracedOps):
    """TensorFlow, for one segment.

    Compiled functions are tf.functions, called inside the scope of the segment's `home`: the device of its first loss,
    or else of its last operation. Where the segment uses other devices too, what a model does forward and back stays
    on the model's, and so does the update of its parameters.

    Args:
        segment: what is computed.
        name: TensorFlow's name of a device.
    """

    xp = numpy_namespace

    eager_seconds: float = 0.2

    def __init__(self, segment: Segment, name: Callable[[Device], str], *, keeps: bool = True) -> None:
        self._name = name
        self._keeps = keeps
        self._calls: dict[int, Call] = {}
        self._places = {id(op.model): name(op.device) for op in segment.operations}
        self._read: WeakValueDictionary[int, Any] = WeakValueDictionary()
        losses = [term.device for term in segment.losses]
        self.home = name([segment.operations[-1].device, *losses[:1]][-1])
        self.several = len({*losses, *(op.device for op in segment.operations)}) > 1
        if self.several or parsed(self.home) != ("CPU", 0):
            self.eager_seconds = 0.0  # one by one, numbers in a model's code would have to be sent there

    def eager_scope(self) -> AbstractContextManager[Any]:
        """Numbers in a model's code are sent to its device."""
        return nullcontext() if parsed(self.home) == ("CPU", 0) else lenient()

    def shareable(self) -> TensorFlowOps:
        """The same without ways to call models, which hold them."""
        found = copy.copy(self)
        found._keeps, found._calls, found._read = False, {}, WeakValueDictionary()  # noqa: SLF001
        return found

    def cache_key(self, model: Any) -> Any:
        """Its variables, and the plain attributes of all its parts."""
        held = variables.held(model)
        own = tuple((name, IdentityKey(variables.inner(one))) for there in held for name, one in there.items())
        if isinstance(model, FromRecipe):
            return own, repr(model.recipe.get_config())
        found = attributes_key(variables.named_parts(model), variables.incidental, variables.is_told)
        return None if found is None else (own, found)

    def _call(self, model: Any) -> Call:
        if not self._keeps:
            return call_of(model)
        if id(model) not in self._calls:
            self._calls[id(model)] = call_of(model)
        return self._calls[id(model)]

    # -- models ----------------------------------------------------------------------------------------------------

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """The values of its trainable variables; a shared variable is the same tensor in every model."""
        return {name: self._value(one) for name, one in self._call(model).held.parameters.items()}

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """The values of its other variables."""
        return {name: self._value(one) for name, one in self._call(model).held.buffers.items()}

    def _value(self, variable: Any) -> Any:
        key = id(variables.inner(variable))
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = variables.read(variable)
        return found

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Assign to the model's variables, where they are."""
        held = self._call(model).held
        for name, variable in {**held.parameters, **held.buffers}.items():
            variables.write(variable, parameters[name] if name in parameters else buffers[name])

    def apply(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
    ) -> tuple[tuple[Any, ...], Mapping[str, Any] | None]:
        """The model's outputs, and its buffers afterwards in training."""
        call, place = self._call(model), self._places[id(model)]
        if not self.several:
            return call(parameters, buffers, inputs, train, key)
        return enclosed(call, place, parameters, buffers, inputs, train, key)

    def call(
        self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any], inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The model's outputs in evaluation mode."""
        return self.apply(model, parameters, buffers, inputs, False, None)[0]

    # -- differentiation and compilation ---------------------------------------------------------------------------

    def value_and_pullback(self, function: Function, primals: Any, rest: Any) -> ValueAndPullback:
        """By a GradientTape over tensors of its own: others that hold the same values are constants to it."""
        constant = {id(one) for one in tf.nest.flatten(rest)}
        sources = [_own(one) if id(one) in constant else one for one in tf.nest.flatten(primals)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            values, others = function(tf.nest.pack_sequence_as(primals, sources), rest)
        targets = tf.nest.flatten(values)

        def pull(cotangents: Any) -> Any:
            zero = tf.UnconnectedGradients.ZERO
            given = tf.nest.flatten(cotangents)
            found = tape.gradient(targets, sources, given, unconnected_gradients=zero) if targets else sources
            dense = [tf.convert_to_tensor(one) for one in found] if targets else list(map(tf.zeros_like, sources))
            return tf.nest.pack_sequence_as(
                primals, [beside(one, two) for one, two in zip(dense, sources, strict=True)]
            )

        return values, others, pull

    def compile(self, function: Function) -> Function:
        """As one tf.function, which is traced once for each set of shapes and dtypes."""
        whole = compiled(function)
        return settled(whole, self.home) if self.several else whole

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """As one tf.function with a loop in it, which is traced once for any count."""
        return looped(body, self.home, quick=quick)

    def accumulate(self, body: Function, carried: Any, count: int) -> tuple[Any, Any]:
        """As a loop after the first call."""
        carried, total = body(carried, 0)

        def again(i: Any, now: Any, summed: Any) -> tuple[Any, Any, Any]:
            after, found = body(tf.nest.pack_sequence_as(carried, now), i)
            more = [one + other for one, other in zip(summed, tf.nest.flatten(found), strict=True)]
            return i + 1, tf.nest.flatten(after), more

        first = (tf.constant(1, tf.int64), tf.nest.flatten(carried), tf.nest.flatten(total))
        _, last, summed = tf.while_loop(lambda i, *_: i < count, again, first, parallel_iterations=1)
        return tf.nest.pack_sequence_as(carried, last), tf.nest.pack_sequence_as(total, summed)

    # -- numbers and arrays ----------------------------------------------------------------------------------------

    def scalar(self, value: float) -> Any:
        """A tensor, so that nothing is traced anew for another number; float64 or int64."""
        return tf.constant(value, tf.float64 if isinstance(value, float) else tf.int64)

    def astype(self, array: Any, dtype: Any) -> Any:
        """`tf.cast`."""
        return tf.cast(array, dtype)

    def arange(self, count: int, like: Any) -> Any:
        """The integers in the dtype of `like`."""
        return tf.range(tf.cast(count, like.dtype), dtype=like.dtype)

    def move(self, array: Any, device: Device) -> Any:
        """A tensor on a device; while a function is traced, an operation that moves it."""
        return moved_in(array, self._name(device), several=self.several)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """As `Exchange.rows`."""
        return (
            host_transfer.cut(column, start, stop)
            if order is None
            else host_transfer.gathered(column, order, start, stop)
        )

    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """The rows that a part of the order names; a slice would be compiled by XLA for each `start` anew."""
        if order is None:  # the column has the rows of one step
            return column if column.shape[0] == size else tf.gather(column, start + tf.range(size, dtype=tf.int64))
        return tf.gather(column, tf.gather(order, start + tf.range(size, dtype=tf.int64)))

    # -- randomness and losses -------------------------------------------------------------------------------------

    def key(self, seed: int) -> Any:
        """Two integers of 64 bits."""
        return key_of(seed)

    def fold(self, key: Any, number: Any) -> Any:
        """By TensorFlow's own `stateless_fold_in`."""
        return folded(key, number)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A function of tensors that gives the mean, or a loss of Keras, whose mean over what it gives is taken."""
        return super().custom_loss(scalar_loss(loss))


def _own(array: Any) -> Any:
    with tf.device(array.device):
        return tf.identity(array)
