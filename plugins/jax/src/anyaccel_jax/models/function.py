"""Function: a pure function and its parameters as a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter import values_of
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ArgumentError, PhaseError
from anyaccel_jax.array_trees import comes_from
from anyaccel_jax.models.base import (
    LIBRARIES,
    Arrays,
    Model,
    NamedTree,
    copy_array,
    has_parameter,
    input_signature,
    mode_keywords,
    named_leaves,
    outputs_of,
    split_floating,
)
from anyaccel_jax.parameter_tree import ParameterTree

_STATE = "state."
_KEYS = ("key", "rng")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@constructor_hints
class Function(Model):
    """A function `apply(parameters, *inputs)` of JAX, with its initial parameters.

    It is called with `key` or `rng` (of `jax.random`), and with `train` or `deterministic`, if it has parameters with
    these names. A key before the inputs, as in `haiku.transform`, is passed there.

    Args:
        apply: Pure and traceable function; it takes a pytree like `parameters` and inputs [batch, ...], and returns an
            array, or a tuple, list or dict of arrays [batch, ...]. With `state` it is
            `apply(parameters, state, *inputs)`, as in `haiku.transform_with_state`, and returns the outputs and the new
            state.
        parameters: A pytree of arrays or numbers. They are copied, with the dtypes of `jax.numpy.array`. Floating ones
            are trained, others are constants.
        state: A pytree of arrays that calls in training change, such as running statistics; None without such arrays.
            Its arrays are copied, and are buffers named `state.NAME`.

    Attributes:
        tree: Current parameters, as a pytree like the given one.
        state: Current state, as a pytree like the given one.

    Example:
        >>> import jax.numpy as jnp
        >>> from anyaccel_jax import Function
        >>> line = Function(lambda p, x: x @ p["w"] + p["b"], {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)})
        >>> line(jnp.ones((2, 3))).shape
        (2, 1)
    """

    def __init__(self, apply: Callable[..., Any], parameters: Any, state: Any = None) -> None:
        if not callable(apply):
            raise ArgumentError(
                f"Function takes a function, not a {type(apply).__name__}",
                hint="pass the function: Function(model.apply, parameters)",
            )
        self._apply = apply
        self._tree, self._state = NamedTree(parameters), None if state is None else NamedTree(state)
        arrays = {name: copy_array(leaf) for name, leaf in named_leaves(parameters).items()}
        self.parameters, self.buffers = split_floating(arrays)
        self.buffers.update(_state_arrays({} if state is None else jax.tree.map(copy_array, state)))

    def __repr__(self) -> str:
        return f"Function({getattr(self._apply, '__name__', self._apply)!s})"

    @property
    def tree(self) -> Any:
        """The current parameters, as a pytree like the given one."""
        return self._tree.unflatten({**self.parameters, **self.buffers})

    @property
    def state(self) -> Any:
        """The current state, as a pytree like the given one, or None."""
        return self._state_from(self.buffers)

    def _state_from(self, buffers: Arrays) -> Any:
        if self._state is None:
            return None
        return self._state.unflatten({name: buffers[_STATE + name] for name in self._state.names})

    @property
    def untrainable_reason(self) -> str:
        """Haiku models with state, where the function does not give it back."""
        if self._state is not None:
            return ""
        held = next((held for held in _held(self._apply) if _has_haiku_state(held)), None)
        if held is None:
            return ""
        way = "pass the state: Function(apply, parameters, state=state) calls apply(parameters, state, *inputs)"
        return f"{self!r} calls a model of Haiku with state, and its state would not change; {way}"

    @property
    def parameter_tree(self) -> ParameterTree:
        """The pytree that it was created with, without untrained values."""
        names = {name: name if name in self.parameters else None for name in self._tree.names}
        return ParameterTree(
            self._tree.unflatten(names), self.parameters, "the pytree of parameters that Function was given"
        )

    @functools.cached_property
    def _key_name(self) -> str | None:
        return next((name for name in _KEYS if has_parameter(self._apply, name)), None)

    @functools.cached_property
    def _key_comes_first(self) -> bool:
        """Whether the key stands before the inputs."""
        accepted = list(inspect.signature(self._apply).parameters.values())
        place = 1 if self._state is None else 2
        return [one.name for one in accepted if one.kind in _POSITIONAL][place : place + 1] == [self._key_name]

    @property
    def cache_key(self) -> Any:
        """The function, and the values that it reads in addition to its arguments."""
        return values_of("apply", self._apply, LIBRARIES)

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        keywords = mode_keywords(self._apply, train)
        arguments, named = layout.bind(inputs, jnp.moveaxis)
        tree, state = self._tree.unflatten({**parameters, **buffers}), self._state_from(buffers)
        leading = (tree,) if self._state is None else (tree, state)
        if self._key_comes_first:
            leading = (*leading, key)
        elif self._key_name is not None:
            keywords[self._key_name] = key
        result = self._apply(*leading, *arguments, **named, **keywords)
        if self._state is None:
            return outputs_of(result, layout), None
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not is_pair or list(named_leaves(result[1])) != list(named_leaves(state)):
            what = "a state with another structure" if is_pair else f"a {type(result).__name__}"
            raise PhaseError(
                f"{self!r} has a state, but returned {what}",
                available=", ".join(named_leaves(state)),
                hint="return outputs, state, where state is a pytree like the given one",
            )
        result, after = result
        return outputs_of(result, layout), {**buffers, **_state_arrays(after)} if train else None

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the function, without its parameters and state."""
        return input_signature(self._apply, 1 if self._state is None else 2, also=(self._key_name or "",))


def _state_arrays(state: Any) -> dict[str, Any]:
    return {_STATE + name: leaf for name, leaf in named_leaves(state).items()}


def _held(apply: Any) -> Iterator[Any]:
    """Yield the values that a function is bound to, closes over, or uses as globals."""
    function = apply.func if isinstance(apply, functools.partial) else getattr(apply, "__func__", apply)
    yield from (function, getattr(apply, "__self__", None))
    yield from (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_names
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _has_haiku_state(obj: Any) -> bool:
    """Whether an object comes from `transform_with_state` of Haiku, or is the `apply` of one."""
    if inspect.isfunction(obj):
        return (obj.__module__ or "").startswith("haiku.") and has_parameter(obj, "state")
    return comes_from(obj, "haiku") and "WithState" in type(obj).__name__
