"""Models of any kind as pure functions of parameters, buffers and inputs."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.errors import PhaseError
from anyaccel_tensorflow import variables
from anyaccel_tensorflow.builtin_models import SpecModel
from anyaccel_tensorflow.stateless_rng import random_state
from anyaccel_tensorflow.variables import keras, tf_variable

Values = Mapping[str, Any]
_MODES = ("training", "is_training")

OutputsAndBuffers = tuple[tuple[Any, ...], dict[str, Any] | None]


def is_differentiable(tensor: Any) -> bool:
    """Whether gradients flow through a tensor."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


class FunctionalCall(ABC):
    """One model as a function.

    Attributes:
        model: A built model.
        variables: Its variables, by name.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.variables = variables.model_variables(model)
        buffers = self.variables.buffers
        states = {id(tf_variable(part.state)) for part in variables.parts(model) if keras().is_random(part)}
        self._random = [name for name, buffer in buffers.items() if id(tf_variable(buffer)) in states]
        # What is random follows from the key, so that training does not change the states of generators.
        self._lasting = {name: buffer for name, buffer in buffers.items() if name not in self._random}

    @abstractmethod
    def __call__(
        self,
        parameters: Values,
        buffers: Values,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """Return outputs and new buffers (None if unchanged); `key` determines everything random."""

    def _seeded(self, buffers: Values, train: bool, key: Any) -> dict[str, Any]:
        """Return the buffers, in training with states of random generators that follow from the key."""
        states = {name: random_state(key, i, buffers[name]) for i, name in enumerate(self._random) if train}
        return {**buffers, **states}


def functional_call(model: Any) -> FunctionalCall:
    """Return a built model as a function."""
    if isinstance(model, SpecModel):
        return SpecModelCall(model)
    if keras().is_layer(model) and not any(any(variables.functions(part)) for part in variables.parts(model)):
        return StatelessCall(model)
    return AssigningCall(model)


class SpecModelCall(FunctionalCall):
    """SequentialMLP and SequentialCNN are such functions."""

    def __call__(
        self,
        parameters: Values,
        buffers: Values,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        return outputs_of(self.model.forward(parameters, inputs, train, key), layout), None


class StatelessCall(FunctionalCall):
    """Call inside a StatelessScope, where Keras reads the passed values instead of its variables, and records
    assignments.
    """

    def __call__(
        self,
        parameters: Values,
        buffers: Values,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """Call the model; in training, losses that the model adds (regularizers) enter the gradients."""
        named = {**self.variables.parameters, **self.variables.buffers}
        values = {**parameters, **self._seeded(buffers, train, key)}
        mapping = [(named[name], value) for name, value in values.items()]
        with keras().module.StatelessScope(state_mapping=mapping, collect_losses=train) as scope:
            current = [scope.get_current_value(parameter) for parameter in self.variables.parameters.values()]
            outputs = outputs_of(call_model(self.model, inputs, train, layout), layout)
            if train:
                for (name, parameter), value in zip(self.variables.parameters.items(), current, strict=True):
                    if scope.get_current_value(parameter) is not value:
                        raise PhaseError(
                            f"a {type(self.model).__name__} cannot be trained: its call assigns to the trained "
                            f"variable {name}",
                            hint="make that weight trainable=False, or train the model with Keras's own loop and "
                            "freeze its node",
                        )
            added = list(self.model.losses) if train else []
            after = {name: scope.get_current_value(buffer) for name, buffer in self._lasting.items()}
        return (_with_added_losses(outputs, added) if added else outputs), ({**buffers, **after} if train else None)


class AssigningCall(FunctionalCall):
    """Call any module: the values are assigned to its variables, and it is called as usual.

    Its methods may be tf.functions; these run as plain Python, so that they become part of the function compiled here,
    and keep no trace of it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._trained = [tf_variable(parameter) for parameter in self.variables.parameters.values()]

    def __call__(
        self,
        parameters: Values,
        buffers: Values,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """Call the module; gradients flow through the variables."""
        for name, value in self._seeded(buffers, train, key).items():
            tf_variable(self.variables.buffers[name]).assign(value)
        primals = [parameters[name] for name in self.variables.parameters]
        primals += [x for x in inputs if is_differentiable(x)]
        kept: list[Any] = []
        constants = [None if is_differentiable(x) else x for x in inputs]
        floating = self._run(primals, constants, train, layout, kept)
        remaining = iter([floating] if isinstance(floating, tf.Tensor) else floating)
        outputs, after = kept
        values = tuple(next(remaining) if is_differentiable(output) else output for output in outputs)
        return values, ({**buffers, **after} if train else None)

    def _run(
        self, primals: Sequence[Any], constants: Sequence[Any], train: bool, layout: CallLayout, kept: list[Any]
    ) -> Any:
        """Return the floating outputs, as an operation with gradients for the variables and floating inputs.

        Args:
            primals: Values of the trained variables, then the floating inputs.
            constants: The other inputs, and None at the positions of the floating ones.
            train: Whether in training mode.
            layout: Layout of the call.
            kept: List that receives all outputs, and the buffers that training changes permanently.
        """
        count = len(self._trained)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*arrays: Any) -> Any:
            for variable, value in zip(self._trained, arrays, strict=False):
                variable.assign(value)
            floating_inputs, sources = iter(arrays[count:]), [*self._trained, *arrays[count:]]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                inputs = [next(floating_inputs) if x is None else x for x in constants]
                outputs = outputs_of(call_model(self.model, inputs, train, layout), layout)
            kept[:] = outputs, {name: tf.identity(tf_variable(b).read_value()) for name, b in self._lasting.items()}
            targets = [output for output in outputs if is_differentiable(output)] or [tf.zeros(())]
            return targets, gradient_function(tape, targets, sources)

        return run(*primals)


def gradient_function(tape: tf.GradientTape, targets: Sequence[Any], sources: Sequence[Any]) -> Callable[..., Any]:
    """Return the gradient function for `tf.custom_gradient`: from cotangents of `targets` to dense gradients of
    `sources`.
    """

    def gradients_of(*cotangents: Any, variables: Any = None) -> Any:
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(targets, list(sources), list(cotangents), unconnected_gradients=zero)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return dense if variables is None else (dense, [None] * len(variables))

    return gradients_of


def call_model(model: Any, inputs: Sequence[Any], train: bool, layout: CallLayout = POSITIONAL) -> Any:
    """Return the result of a model, called with its inputs packed as it takes them and the mode if it has a keyword for
    it.
    """
    if keras().is_layer(model):
        arguments, named = keras().packing(model, len(inputs), layout)(inputs)
        with functions_inlined():
            result = model(*arguments, **named, training=train)
        if train:
            keras().refuse_masks(model, result)
        return result
    method: Any = type(model).__call__
    if not isinstance(method, tf.types.experimental.PolymorphicFunction):
        call = method
    elif tf.executing_eagerly():  # autograph is for traces alone
        call = method.python_function
    else:
        call = tf.autograph.to_graph(method.python_function)
    mode = {name: train for name in inspect.signature(call).parameters if name in _MODES}
    arguments, named = layout.bind(inputs, _move_axis)
    with functions_inlined():
        return call(model, *arguments, **named, **mode)


def signature(model: Any) -> inspect.Signature | None:
    """Return the signature of a call; see `Compute.signature`."""
    if keras().is_layer(model):
        return keras().signature(model)
    method: Any = type(model).__call__
    function = method.python_function if isinstance(method, tf.types.experimental.PolymorphicFunction) else method
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return inspect.Signature([parameter for parameter in parameters if parameter.name not in _MODES])


@contextmanager
def functions_inlined() -> Iterator[None]:
    """Inside, calling a tf.function runs its Python code, so that it keeps no trace of foreign values."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def outputs_of(result: Any, layout: CallLayout = POSITIONAL) -> tuple[Any, ...]:
    """Return the outputs in the result of a model; see `CallLayout.outputs`."""
    return layout.outputs(result, tf.Tensor, _move_axis)


def _move_axis(tensor: Any, source: int, to: int) -> Any:
    order = [axis for axis in range(len(tensor.shape)) if axis != source]
    return tf.transpose(tensor, [*order[:to], source, *order[to:]])


def _with_added_losses(outputs: tuple[Any, ...], added: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outputs; on the way back, each added loss has the gradient 1, whichever output it begins from."""
    places = [i for i, output in enumerate(outputs) if is_differentiable(output)]
    if not places:
        return outputs

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def carry(loss: Any, *arrays: Any) -> Any:
        return [tf.identity(array) for array in arrays], lambda *cotangents: [tf.ones_like(loss), *cotangents]

    total = tf.add_n([tf.cast(tf.reduce_sum(loss), outputs[places[0]].dtype) for loss in added])
    carried = dict(zip(places, carry(total, *(outputs[i] for i in places)), strict=True))
    return tuple(carried.get(i, output) for i, output in enumerate(outputs))
