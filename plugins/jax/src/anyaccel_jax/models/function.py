"""Function: a pure function and its parameters as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anyaccel.adapter import IdentityKey
from anyaccel_jax.models.base import (
    Arrays,
    Model,
    NamedTree,
    copy_array,
    has_parameter,
    mode_keywords,
    named_leaves,
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
    def cache_key(self) -> Any:
        """The function; what it reads besides its arguments is assumed to be constant."""
        return IdentityKey(self._apply)

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        keywords = mode_keywords(self._apply, train)
        if has_parameter(self._apply, "key"):
            keywords["key"] = key
        return self._apply(self._tree.unflatten({**parameters, **buffers}), *inputs, **keywords), None
