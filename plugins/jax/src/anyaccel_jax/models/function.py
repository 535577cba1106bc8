"""Function: a pure function and its parameters as a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from anyaccel.adapter import values_of
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
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


class Function(Model):
    """A function `apply(parameters, *inputs)` of JAX, with its initial parameters.

    It is called with `key` (of `jax.random`), and with `train` or `deterministic`, if it has parameters of these names.

    Args:
        apply: pure and traceable; takes a pytree like `parameters` and inputs [batch, ...], and returns an array, or a
            tuple, list or dict of arrays [batch, ...].
        parameters: a pytree of arrays or numbers. They are copied, with the dtypes that `jax.numpy.array` gives
            them. Floating ones are trained, others are constants.

    Attributes:
        tree: the current parameters, as a pytree like the given one.
    """

    def __init__(self, apply: Callable[..., Any], parameters: Any) -> None:
        self._apply = apply
        self._tree = NamedTree(parameters)
        arrays = {name: copy_array(leaf) for name, leaf in named_leaves(parameters).items()}
        self.parameters, self.buffers = split_floating(arrays)

    def __repr__(self) -> str:
        return f"Function({getattr(self._apply, '__name__', self._apply)!s})"

    @property
    def tree(self) -> Any:
        """The current parameters, as a pytree like the given one."""
        return self._tree.unflatten({**self.parameters, **self.buffers})

    @property
    def untrainable_reason(self) -> str:
        """Haiku models with state: the function cannot give it back."""
        held = next((each for each in _held(self._apply) if _has_haiku_state(each)), None)
        return "" if held is None else f"{self!r} calls a model of Haiku with state, and its state would not change"

    @property
    def cache_key(self) -> Any:
        """The function, and what it reads besides its arguments."""
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
        """As in `Model`."""
        keywords = mode_keywords(self._apply, train)
        if has_parameter(self._apply, "key"):
            keywords["key"] = key
        arguments, named = layout.bind(inputs, jnp.moveaxis)
        result = self._apply(self._tree.unflatten({**parameters, **buffers}), *arguments, **named, **keywords)
        return outputs_of(result, layout), None

    @property
    def signature(self) -> inspect.Signature | None:
        """Of the function, without its parameters."""
        return input_signature(self._apply, 1, also=("key",))


def _held(apply: Any) -> Iterator[Any]:
    """What a function is bound to, closes over, or names among its globals."""
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
