"""TensorFlowOps: the operations of TensorFlow that `TracedProgram` trains with."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from anyaccel.adapter import (
    ArrayOps,
    Function,
    IdentityKey,
    Kind,
    LossFunction,
    StepFunction,
    StepLoop,
    TracedOps,
    UpdateRule,
    attributes_key,
)
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.layer_optimizers import LayerOptimizerRule
from anyaccel.adapter.losses import make_loss
from anyaccel.adapter.precision_casts import apply_in_precision, layers_computing_in
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, trace_label, trace_span, write_trace
from anyaccel.adapter.xla_scopes import with_nodes, xla_programs
from anyaccel.device import Device
from anyaccel.precision import NodePrecision
from anyaccel.segment import Segment
from anyaccel.specs import Loss, Optimizer
from anyaccel_tensorflow import host_transfer, numpy_namespace, variables
from anyaccel_tensorflow.builtin_models import SpecModel
from anyaccel_tensorflow.device_policy import silent_copies
from anyaccel_tensorflow.functional_call import (
    FunctionalCall,
    OutputsAndBuffers,
    StatelessCall,
    functional_call,
    gradient_function,
    is_differentiable,
)
from anyaccel_tensorflow.object_location import is_first_cpu
from anyaccel_tensorflow.stateless_rng import fold_in, key_of
from anyaccel_tensorflow.step_loop import compile_loop
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.transfers import is_on, move_tensor
from anyaccel_tensorflow.variables import keras, model_variables, tf_variable

ValueAndPullback = tuple[Any, Any, Callable[[Any], Any]]


class TensorFlowOps(TracedOps):
    """TensorFlow, for one segment.

    Compiled functions are tf.functions, called inside the scope of the segment's `home`: the device of its first loss,
    or of its last operation without losses. If the segment uses other devices too, the forward and backward pass of a
    model stay on the model's device, and so does the update of its parameters.

    Args:
        segment: The segment to compute.
        device_string: Function that returns TensorFlow's name of a device.
    """

    xp = numpy_namespace

    libraries = frozenset({"tensorflow", "keras", "tf_keras", "absl", "ml_dtypes", "anyaccel_tensorflow"})
    eager_seconds: float = 0.2

    def __init__(self, segment: Segment, device_string: Callable[[Device], str]) -> None:
        self._device_string = device_string
        self._keeps_models = True
        self._calls: dict[int, FunctionalCall] = {}
        self._devices = {id(op.model): device_string(op.device) for op in segment.operations}
        self._values: WeakValueDictionary[int, Any] = WeakValueDictionary()
        losses = [term.device for term in segment.losses]
        self.home = device_string([segment.operations[-1].device, *losses[:1]][-1])
        self.uses_several_devices = len({*losses, *(op.device for op in segment.operations)}) > 1
        if self.uses_several_devices or not is_first_cpu(self.home):
            self.eager_seconds = 0.0  # eager steps would have to send the numbers in a model's code to the device

    def named_scope(self, name: str) -> AbstractContextManager[Any]:
        """Return a name scope while a function is traced; eagerly, a span if a recorder is active."""
        eagerly = tf.executing_eagerly()
        scope: AbstractContextManager[Any] = (
            tf.profiler.experimental.Trace(name) if eagerly else tf.name_scope(f"{scope_name(name)}/")
        )
        return scope

    def eager_scope(self) -> AbstractContextManager[Any]:
        """Numbers in a model's code are sent to its device."""
        return nullcontext() if is_first_cpu(self.home) else silent_copies()

    def shareable(self) -> TensorFlowOps:
        """The same without functional calls, which hold models."""
        shared = copy.copy(self)
        shared._keeps_models, shared._calls, shared._values = False, {}, WeakValueDictionary()  # noqa: SLF001
        return shared

    def cache_key(self, model: Any) -> Any:
        """Return its variables, and the plain attributes of all its parts."""
        named = ((name, variable) for group in model_variables(model) for name, variable in group.items())
        identities = tuple((name, IdentityKey(tf_variable(variable))) for name, variable in named)
        if isinstance(model, SpecModel):
            return identities, repr(model.spec.get_config())
        parts = variables.named_parts(model)
        attributes = attributes_key(parts, keras().skipped_attributes, keras().is_listed, self.libraries)
        return (("variables", identities), *attributes)

    def is_live(self, value: Any) -> bool:
        """Return whether it is a variable, which functions refer to."""
        return keras().is_variable(value)

    def _call(self, model: Any) -> FunctionalCall:
        if not self._keeps_models:
            return functional_call(model)
        if id(model) not in self._calls:
            self._calls[id(model)] = functional_call(model)
        return self._calls[id(model)]

    # -- arrays ----------------------------------------------------------------------------------------------------

    def kind(self, array: Any) -> Kind:
        """Return the kind of an array's dtype."""
        dtype = array.dtype
        if dtype.is_floating or dtype.is_complex:
            return "floating" if dtype.is_floating else "complex"
        return "boolean" if dtype.is_bool else "integer"

    def itemsize(self, array: Any) -> int:
        """Return the size of an element in bytes."""
        return int(array.dtype.size)

    # -- models ----------------------------------------------------------------------------------------------------

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """Return the values of its trainable variables; a shared variable is the same tensor in every model."""
        return {name: self._value(variable) for name, variable in self._call(model).variables.parameters.items()}

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """Return the values of its other variables."""
        return {name: self._value(variable) for name, variable in self._call(model).variables.buffers.items()}

    def constraints(self, model: Any) -> Mapping[str, Callable[[Any], Any]]:
        """Return those of its trained variables, of Keras or TensorFlow."""
        named = self._call(model).variables.parameters
        constraints = {name: getattr(variable, "constraint", None) for name, variable in named.items()}
        return {name: constraint for name, constraint in constraints.items() if constraint is not None}

    def _value(self, variable: Any) -> Any:
        key = id(tf_variable(variable))
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = variables.read(variable)
        return value

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Assign to the model's variables, where they are."""
        held, values = self._call(model).variables, {**parameters, **buffers}
        for name, variable in {**held.parameters, **held.buffers}.items():
            variables.write(variable, values[name])

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
    ) -> tuple[tuple[Any, ...], Mapping[str, Any] | None]:
        """Return the model's outputs, and its buffers afterwards in training."""
        call: Any = self._call(model)
        if precision is not None:
            call = InPrecision(self, call, precision)
        if remat:
            call = Recomputed(call)
        if not self.uses_several_devices:
            result: tuple[tuple[Any, ...], Mapping[str, Any] | None] = call(
                parameters, buffers, inputs, train, key, layout
            )
            return result
        return call_on_device(call, self._devices[id(model)], parameters, buffers, inputs, train, key, layout)

    def call(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        layout: Any = POSITIONAL,
        precision: NodePrecision | None = None,
    ) -> tuple[Any, ...]:
        """Return the model's outputs in evaluation mode."""
        return self.apply(model, parameters, buffers, inputs, False, None, layout, precision)[0]

    # -- differentiation and compilation ---------------------------------------------------------------------------

    def value_and_pullback(self, function: Function, primals: Any, rest: Any) -> ValueAndPullback:
        """Compute with a GradientTape over tensors that are not in `rest`; the others are constants."""
        constants = {id(array) for array in tf.nest.flatten(rest)}
        sources = [_identity(x) if id(x) in constants else x for x in tf.nest.flatten(primals)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            values, others = function(tf.nest.pack_sequence_as(primals, sources), rest)
        targets = tf.nest.flatten(values)

        def pullback(cotangents: Any) -> Any:
            if targets:
                flat, zero = tf.nest.flatten(cotangents), tf.UnconnectedGradients.ZERO
                gradients = tape.gradient(targets, sources, flat, unconnected_gradients=zero)
                dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            else:
                dense = [tf.zeros_like(source) for source in sources]
            return tf.nest.pack_sequence_as(primals, list(map(on_device_of, dense, sources)))

        return values, others, pullback

    def compile(self, function: Function) -> Function:
        """Return one tf.function, which is traced once for each set of shapes and dtypes."""
        whole = compiled(function)
        return with_true_devices(whole, self.home) if self.uses_several_devices else whole

    def compile_value_and_pullback(self, function: Function) -> Callable[[Any, Any], ValueAndPullback]:
        """Compile a function with its pullback, without its auxiliary results.

        The gradient of a tf.function passes zeros through everything that it returns: auxiliary results would be
        differentiated too, and 0 times an infinite derivative is NaN.
        """

        def without_auxiliary_gradients(primals: Any, rest: Any) -> tuple[Any, Any]:
            values, others = function(primals, rest)
            return values, tf.nest.map_structure(_without_gradient, others)

        return super().compile_value_and_pullback(without_auxiliary_gradients)

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """Return one tf.function with a loop in it, which is traced once for any count."""
        return compile_loop(body, self.home, quick=quick)

    def accumulate(self, body: Function, carried: Any, count: int) -> tuple[Any, Any]:
        """Return a loop after the first call."""
        carried, total = body(carried, 0)

        def iteration(i: Any, flat: Any, sums: Any) -> tuple[Any, Any, Any]:
            after, result = body(tf.nest.pack_sequence_as(carried, flat), i)
            return i + 1, tf.nest.flatten(after), [a + b for a, b in zip(sums, tf.nest.flatten(result), strict=True)]

        begun = (tf.constant(1, tf.int64), tf.nest.flatten(carried), tf.nest.flatten(total))
        _, flat, sums = tf.while_loop(lambda i, *_: i < count, iteration, begun, parallel_iterations=1)
        return tf.nest.pack_sequence_as(carried, flat), tf.nest.pack_sequence_as(total, sums)

    # -- numbers and arrays ----------------------------------------------------------------------------------------

    def scalar(self, value: float) -> Any:
        """Return a tensor of float64 or int64, so that another number causes no new trace."""
        return tf.constant(value, tf.float64 if isinstance(value, float) else tf.int64)

    def astype(self, array: Any, dtype: Any) -> Any:
        """Cast with `tf.cast`."""
        return tf.cast(array, dtype)

    def arange(self, count: int, like: Any) -> Any:
        """Return the integers in the dtype of `like`."""
        return tf.range(tf.cast(count, like.dtype), dtype=like.dtype)

    def constant(self, values: Sequence[float], like: Any) -> Any:
        """Return the numbers as a tensor."""
        return tf.constant(values, like.dtype)

    def move(self, array: Any, device: Device) -> Any:
        """Return a tensor on a device; while a function is traced, an operation that moves it."""
        return move_or_trace(array, self._device_string(device), multi_device=self.uses_several_devices)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        if order is None:
            return host_transfer.slice_rows(column, start, stop)
        return host_transfer.gather_rows(column, order, start, stop)

    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """Return the rows that a part of the order names; gathered, as XLA would compile a slice for each `start`."""
        if order is None:  # the column has the rows of one step
            return column if column.shape[0] == size else tf.gather(column, start + tf.range(size, dtype=tf.int64))
        return tf.gather(column, tf.gather(order, start + tf.range(size, dtype=tf.int64)))

    # -- randomness and losses -------------------------------------------------------------------------------------

    def key(self, seed: int) -> Any:
        """Return two 64-bit integers."""
        return key_of(seed)

    def fold(self, key: Any, number: Any) -> Any:
        """Fold with `stateless_fold_in`."""
        return fold_in(key, number)

    def parameter_tree(self, model: Any) -> Mapping[str, Any]:
        """Return the trained variables by name, held weakly, which optimizers of Keras go by."""
        return WeakValueDictionary(self._call(model).variables.parameters)

    def update_rule(self, optimizer: Optimizer) -> UpdateRule:
        """Return the rule by the formulas, or by Keras."""
        if not keras().is_optimizer(optimizer.own):
            return super().update_rule(optimizer)
        return LayerOptimizerRule(optimizer, keras().module, tf.init_scope, _put_like)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """Return a function of tensors that gives the mean, or a loss of Keras, whose mean is taken."""
        return super().custom_loss(scalar_loss(loss))


def _put_like(variable: Any, parameter: Any) -> Any:
    with tf.device(parameter.device):
        return tf.constant(variable.numpy())


def _identity(array: Any) -> Any:
    with tf.device(array.device):
        return tf.identity(array)


def _without_gradient(array: Any) -> Any:
    if not tf.is_tensor(array):
        return array
    with tf.device(array.device):
        return tf.stop_gradient(array)


class InPrecision:
    """A `FunctionalCall` computed in a precision: layers of Keras by their dtype policies, other models by casts."""

    def __init__(self, ops: ArrayOps, call: FunctionalCall, precision: NodePrecision) -> None:
        self._ops, self._call, self._precision = ops, call, precision

    def __call__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        def apply(parameters: Any, buffers: Any, inputs: Any) -> OutputsAndBuffers:
            return self._call(parameters, buffers, inputs, train, key, layout)

        scope: AbstractContextManager[None] | None = None
        if isinstance(self._call, StatelessCall):
            scope = layers_computing_in(keras(), self._call.model, self._precision)
        dtype = tf.as_dtype(self._precision.dtype)
        outputs, after = apply_in_precision(
            self._ops, self._precision, dtype, apply, parameters, buffers, tuple(inputs), scope
        )
        return outputs, None if after is None else dict(after)


class Recomputed:
    """A call that keeps only its arguments for its backward pass, which calls it again."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """Call with `tf.recompute_grad`."""
        sources = [*parameters.values(), *(x for x in inputs if is_differentiable(x))]
        kept: list[Any] = []

        def run(*arrays: Any) -> Any:
            named = dict(zip(parameters, arrays, strict=False))
            floating = iter(arrays[len(named) :])
            filled = [next(floating) if is_differentiable(x) else x for x in inputs]
            outputs, after = self._call(named, buffers, filled, train, key, layout)
            kept[:] = [outputs, after]
            return tf.nest.flatten((tuple(x for x in outputs if is_differentiable(x)), () if after is None else after))

        flat = tf.recompute_grad(run)(*sources)
        flat = list(flat) if isinstance(flat, (list, tuple)) else [flat]
        outputs, after = kept
        count = sum(is_differentiable(x) for x in outputs)
        values = iter(flat[:count])
        packed = None if after is None else tf.nest.pack_sequence_as(after, flat[count:])
        return tuple(next(values) if is_differentiable(x) else x for x in outputs), packed


def scalar_loss(loss: Loss) -> Loss:
    """Return the spec of a loss with a function of tensors as its `own`; losses of Keras do not broadcast.

    Raises:
        SpecError: a class that does not take `loss_kwargs`.
    """
    if keras().is_loss(loss.own):
        return Loss(keras().loss_function(loss, tf.reduce_mean))
    return Loss(make_loss(loss))


# -- What a segment on several devices needs so that everything is computed on the right one ---------------------------
#
# While a function is traced, an operation without a device of its own goes where the scope around the function says;
# and the outputs of a function are labelled with that device, wherever they are.


def move_or_trace(array: Any, name: str, *, multi_device: bool) -> Any:
    """Return a tensor on a device; while tracing a function on one device, the tensor itself."""
    if tf.executing_eagerly():
        return move_tensor(array, name)
    if not multi_device:
        return array
    with tf.device(name):
        return tf.identity(array)


def on_device_of(array: Any, other: Any) -> Any:
    """Return a tensor on the device of another one."""
    if not tf.executing_eagerly() or array.device == other.device:
        return array
    return move_tensor(array, other.device)


def with_true_devices(function: Function, home: str) -> Function:
    """Return a compiled function called in the scope of its first argument's device, or of `home` if it has several.

    Its outputs are labelled with their devices.
    """

    def run(*arguments: Any) -> Any:
        devices = {array.device for array in tf.nest.flatten(arguments[0])}
        with tf.device(devices.pop() if len(devices) == 1 else home):
            return tf.nest.map_structure(_with_true_device, function(*arguments))

    return run


def _with_true_device(tensor: Any) -> Any:
    """Return a tensor labelled with its true device: TensorFlow keeps 32-bit integers in host memory on every
    device.
    """
    if tensor.dtype == tf.int32 or is_on(tensor, tensor.backing_device):
        return tensor
    return move_tensor(tensor, tensor.backing_device)


def call_on_device(
    call: FunctionalCall,
    device: str,
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
    inputs: tuple[Any, ...],
    train: bool,
    key: Any,
    layout: CallLayout,
) -> OutputsAndBuffers:
    """A call of a model as one operation whose forward and backward pass are both computed on the model's device."""
    is_active = [is_differentiable(x) for x in inputs]
    primals = (dict(parameters), [x for x in inputs if is_differentiable(x)])
    kept: list[Any] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*arrays: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(arrays)
            own_parameters, floating_inputs = tf.nest.pack_sequence_as(primals, arrays)
            floating = iter(floating_inputs)
            filled = [next(floating) if yes else x for yes, x in zip(is_active, inputs, strict=True)]
            outputs, after = call(own_parameters, buffers, filled, train, key, layout)
        kept[:] = outputs, after
        targets = [output for output in outputs if is_differentiable(output)] or [tf.zeros(())]
        gradients_of = gradient_function(tape, targets, arrays)

        def on_device(*cotangents: Any, variables: Any = None) -> Any:
            with tf.device(device):
                return gradients_of(*cotangents, variables=variables)

        return targets, on_device

    with tf.device(device):  # also for what TensorFlow puts around what it runs
        floating_outputs = iter(run(*tf.nest.flatten(primals)))
    outputs, after = kept
    return tuple(next(floating_outputs) if is_differentiable(output) else output for output in outputs), after


# -- Step profile: `tf.profiler` with the names of nodes ---------------------------------------------------------------


def scope_name(name: str) -> str:
    """Return a name as TensorFlow allows it in a scope, and in the nodes of a function that XLA compiles."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "node"


class TensorFlowProfiler(ProfilesSteps):
    """`tf.profiler`, with the names of nodes."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """Profile steps with the scopes of compiled code."""
        with TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            try:
                yield tf.profiler.experimental.Trace
            finally:
                tf.profiler.experimental.stop()
                content = next(Path(folder).rglob("*.xplane.pb")).read_bytes()
                space = xplane_pb2.XSpace()
                space.ParseFromString(content)
                labels = {scope_name(name): name for name in nodes}
                events = [
                    event for number, plane in enumerate(space.planes, start=1) for event in _events(plane, number)
                ]
                with_nodes(events, xla_programs(content), labels)
                write_trace(path, events)


def _events(plane: Any, process: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a plane, a process in the trace whose lines are threads."""
    if not plane.lines:
        return
    yield trace_label("process_name", plane.name, process)
    statistics = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
    for thread, line in enumerate(plane.lines, start=1):
        yield trace_label("thread_name", line.display_name or line.name, process, thread)
        for event in line.events:
            metadata = plane.event_metadata[event.metadata_id]
            args = {"scope": metadata.name.rpartition(":")[0]} if "/" in metadata.name else {}
            args |= {
                statistics.get(statistic.metadata_id, ""): _value(statistic, statistics) for statistic in event.stats
            }
            start, lasted = line.timestamp_ns + event.offset_ps / 1e3, event.duration_ps / 1e3
            yield trace_span(metadata.display_name or metadata.name, start, lasted, (process, thread), args)


def _value(statistic: Any, names: Mapping[int, str]) -> Any:
    kind = statistic.WhichOneof("value")
    if kind == "ref_value":
        return names.get(statistic.ref_value, "")
    value = getattr(statistic, kind) if kind else ""
    return "" if isinstance(value, bytes) else value
