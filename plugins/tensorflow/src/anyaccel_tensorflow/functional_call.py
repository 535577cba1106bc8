"""Models as pure functions of parameters, buffers and inputs, whatever they are."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from anyaccel.errors import ShapeError
from anyaccel_tensorflow import variables
from anyaccel_tensorflow.builtin_models import FromRecipe
from anyaccel_tensorflow.stateless_rng import state_from

Values = Mapping[str, Any]
Called = tuple[tuple[Any, ...], dict[str, Any] | None]


class Call(ABC):
    """One model as a function.

    Attributes:
        model: the model, which has its variables.
        held: these, by name.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.held = variables.held(model)
        states = {id(variables.inner(part.state)) for part in variables.parts(model) if variables.is_random(part)}
        self._random = [name for name, one in self.held.buffers.items() if id(variables.inner(one)) in states]

    @abstractmethod
    def __call__(self, parameters: Values, buffers: Values, inputs: Sequence[Any], train: bool, key: Any) -> Called:
        """Outputs, and buffers afterwards (None where they are as before); `key` decides all that is random."""

    def _seeded(self, buffers: Values, train: bool, key: Any) -> dict[str, Any]:
        """The buffers, with the states of random generators from the key in training."""
        drawn = {name: state_from(key, i, buffers[name]) for i, name in enumerate(self._random) if train}
        return {**buffers, **drawn}

    def _lasting(self) -> dict[str, Any]:
        """The buffers that training changes for good: what is random comes from the key, not from these states."""
        return {name: one for name, one in self.held.buffers.items() if name not in self._random}


def call_of(model: Any) -> Call:
    """The way to call a built model."""
    if isinstance(model, FromRecipe):
        return OwnCall(model)
    if variables.is_layer(model) and not any(any(variables.functions(part)) for part in variables.parts(model)):
        return StatelessCall(model)
    return InPlaceCall(model)


class OwnCall(Call):
    """SequentialMLP and SequentialCNN are such functions."""

    def __call__(self, parameters: Values, buffers: Values, inputs: Sequence[Any], train: bool, key: Any) -> Called:
        """As in `Call`."""
        return (self.model.forward(parameters, inputs, train, key),), None


class StatelessCall(Call):
    """Keras reads other values than its variables' inside a StatelessScope, and keeps what would be assigned."""

    def __call__(self, parameters: Values, buffers: Values, inputs: Sequence[Any], train: bool, key: Any) -> Called:
        """As in `Call`; losses that the model adds (regularizers, `add_loss`) enter the gradients in training."""
        given, named = {**parameters, **self._seeded(buffers, train, key)}, {**self.held.parameters}
        named.update(self.held.buffers)
        pairs = [(named[name], value) for name, value in given.items()]
        with variables.keras().StatelessScope(state_mapping=pairs, collect_losses=train) as scope:
            outputs = outputs_of(called(self.model, inputs, train))
            added = list(self.model.losses) if train else []
            after = {name: scope.get_current_value(one) for name, one in self._lasting().items()}
        return (_carrying(outputs, added) if added else outputs), ({**buffers, **after} if train else None)


class InPlaceCall(Call):
    """Any module: its variables are given the values, and it is called as its author meant it to be.

    It may be written in any way, also with methods that are tf.functions; these are run as plain Python, so that they
    become part of what is compiled here, and keep nothing of it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._trained = [variables.inner(one) for one in self.held.parameters.values()]

    def __call__(self, parameters: Values, buffers: Values, inputs: Sequence[Any], train: bool, key: Any) -> Called:
        """As in `Call`. The gradient goes by way of the variables."""
        for name, value in self._seeded(buffers, train, key).items():
            variables.inner(self.held.buffers[name]).assign(value)
        floating = [x.dtype.is_floating for x in inputs]
        primals = [parameters[name] for name in self.held.parameters]
        primals += [x for x, yes in zip(inputs, floating, strict=True) if yes]
        others = iter([x for x, yes in zip(inputs, floating, strict=True) if not yes])
        rest = [None if yes else next(others) for yes in floating]
        kept: list[Any] = []
        found = self._run(primals, rest, train, kept)
        whole = iter([found] if isinstance(found, tf.Tensor) else found)
        outputs, after = kept
        values = tuple(next(whole) if one.dtype.is_floating else one for one in outputs)
        return values, ({**buffers, **after} if train else None)

    def _run(self, primals: Sequence[Any], rest: Sequence[Any], train: bool, kept: list[Any]) -> Any:
        """The floating outputs, as an operation whose gradient is that of the variables and inputs."""
        count = len(self._trained)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*arrays: Any) -> Any:
            for variable, value in zip(self._trained, arrays, strict=False):
                variable.assign(value)
            found, sources = iter(arrays[count:]), [*self._trained, *arrays[count:]]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                outputs = outputs_of(called(self.model, [next(found) if x is None else x for x in rest], train))
            lasting = {name: tf.identity(variables.inner(one).read_value()) for name, one in self._lasting().items()}
            kept[:] = outputs, lasting
            floating = [one for one in outputs if one.dtype.is_floating] or [tf.zeros(())]

            def back(*cotangents: Any, variables: Any = None) -> Any:
                zero = tf.UnconnectedGradients.ZERO
                gradients = tape.gradient(floating, sources, list(cotangents), unconnected_gradients=zero)
                dense = [tf.convert_to_tensor(one) for one in gradients]
                return dense if variables is None else (dense, [None] * len(variables))

            return floating, back

        return run(*primals)


def called(model: Any, inputs: Sequence[Any], train: bool) -> Any:
    """What a model gives for inputs, called as it wants to be: with a `training` argument, with a list, and so on."""
    given = _packed(model, inputs)
    if variables.is_layer(model):
        with inlined():
            return model(*given, training=train)
    call = _python(model)
    settings = {name: train for name in inspect.signature(call).parameters if name in ("training", "is_training")}
    with inlined():
        return call(model, *given, **settings)


@contextmanager
def inlined() -> Iterator[None]:
    """Inside, calling a tf.function runs its Python, so that it keeps no trace with values that are not its own."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def outputs_of(result: Any) -> tuple[Any, ...]:
    """The tensors that a model gave: one, or those of a tuple, a list or a dict in its order.

    Raises:
        ShapeError: it gave something else.
    """
    if isinstance(result, tf.Tensor):
        return (result,)
    items = tuple(result.values()) if isinstance(result, Mapping) else result
    if isinstance(items, (tuple, list)) and items and all(isinstance(item, tf.Tensor) for item in items):
        return tuple(items)
    kinds = ", ".join(type(item).__name__ for item in items) if isinstance(items, (tuple, list)) else "no tensor"
    raise ShapeError(
        f"the model gives a {type(result).__name__} of {kinds or 'nothing'}, which is no output of a node",
        available="a tensor, or a tuple, list or dict of tensors, can be one",
        hint="wrap it in a model that gives only the tensors wanted",
    )


def _packed(model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Inputs as the positional arguments of a model: a functional one, or one that takes a list, takes them as one."""
    if len(inputs) == 1 or not variables.is_layer(model):
        return inputs
    if variables.is_functional(model):
        return [variables.keras().tree.pack_sequence_as(model.input, list(inputs))]
    known = inspect.signature(model.call).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in known):
        return inputs
    positional = [one.name for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    wanted = [name for name in positional if name not in ("training", "mask")]
    return inputs if len(wanted) >= len(inputs) else [list(inputs)]


def _python(model: Any) -> Callable[..., Any]:
    """What a call of a module runs: of a tf.function its Python, with control flow as TensorFlow would rewrite it."""
    method: Any = type(model).__call__
    if not isinstance(method, tf.types.experimental.PolymorphicFunction):
        return method  # type: ignore[no-any-return]
    if tf.executing_eagerly():
        return method.python_function  # type: ignore[no-any-return]
    return tf.autograph.to_graph(method.python_function)  # type: ignore[no-any-return]


def _carrying(outputs: tuple[Any, ...], added: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs, which bring the gradient of the added losses along on the way back, from whichever it begins."""
    places = [i for i, one in enumerate(outputs) if one.dtype.is_floating]
    if not places:
        return outputs

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def carrying(loss: Any, *arrays: Any) -> Any:
        return [tf.identity(one) for one in arrays], lambda *back: [tf.ones_like(loss), *back]

    whole = tf.add_n([tf.cast(tf.reduce_sum(one), outputs[places[0]].dtype) for one in added])
    found = dict(zip(places, carrying(whole, *(outputs[i] for i in places)), strict=True))
    return tuple(found.get(i, one) for i, one in enumerate(outputs))
