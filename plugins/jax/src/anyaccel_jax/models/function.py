"""Function: a pure function and its parameters as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from anyaccel.adapter import IdentityKey
from anyaccel_jax.models.base import Arrays, Model, Tree, mode, named, owned, takes


class Function(Model):
    """A function `apply(parameters, *inputs)` of JAX, with the parameters that it shall begin with.

    It is called with `key` (of `jax.random`), and with `train` or `deterministic`, if it has parameters of these names.

    Args:
        apply: pure and traceable; takes a pytree like `parameters` and inputs [batch, ...], and gives an array, or a
            tuple, list or dict of arrays [batch, ...].
        parameters: a pytree of arrays or numbers. They are copied, with the dtypes that `jax.numpy.array` gives
            them. Floating ones are trained, others stay.

    Attributes:
        tree: the parameters of now, as a pytree like the one given.
    """

    def __init__(self, apply: Callable[..., Any], parameters: Any) -> None:
        self._apply = apply
        self._tree = Tree(parameters)
        arrays = {name: owned(one) for name, one in named(parameters).items()}
        self.parameters = {name: one for name, one in arrays.items() if jnp.issubdtype(one.dtype, jnp.inexact)}
        self.buffers = {name: one for name, one in arrays.items() if name not in self.parameters}

    def __repr__(self) -> str:
        return f"Function({getattr(self._apply, '__name__', self._apply)!s})"

    @property
    def tree(self) -> Any:
        """The parameters of now, as a pytree like the one given."""
        return self._tree.tree({**self.parameters, **self.buffers})

    @property
    def cache_key(self) -> Any:
        """The function; what it reads besides its arguments is taken to stay as it is."""
        return IdentityKey(self._apply)

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        words: dict[str, Any] = {**mode(self._apply, train), **({"key": key} if takes(self._apply, "key") else {})}
        return self._apply(self._tree.tree({**parameters, **buffers}), *inputs, **words), None
