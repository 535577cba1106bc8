"""Model: a pure function of arrays by name, and the arrays that it holds now."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter.model_outputs import output_tuple
from anyaccel.segment import TensorSpec

Arrays = Mapping[str, Any]


class Model(ABC):
    """A model as a pure function of arrays by name, and the arrays that it holds now.

    Attributes:
        parameters: what gradients change, by name.
        buffers: the other arrays, by name.
    """

    parameters: dict[str, Any]
    buffers: dict[str, Any]

    @property
    def is_built(self) -> bool:
        """Whether it has its arrays."""
        return True

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """Create the arrays for inputs of these specs, if there are none yet.

        Raises:
            ShapeError: the model does not accept these inputs.
        """

    @abstractmethod
    def apply(
        self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any
    ) -> tuple[Any, Arrays | None]:
        """What the model returns, and its buffers afterwards (None where they are unchanged), as a pure function.

        Args:
            parameters: by name.
            buffers: by name.
            inputs: [batch, ...] each.
            train: whether in training mode.
            key: a key of `jax.random`, from which everything random follows.
        """

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Hold these arrays; both have all names."""
        self.parameters, self.buffers = dict(parameters), dict(buffers)

    def map_arrays(self, function: Callable[[Any], Any]) -> Any:
        """The model, which from now on holds the results of `function` for each of its arrays."""
        parameters = {name: function(array) for name, array in self.parameters.items()}
        self.write(parameters, {name: function(array) for name, array in self.buffers.items()})
        return self

    @property
    def dtype(self) -> str | None:
        """The dtype of the first floating parameter; of an unbuilt model the one that it will have."""
        dtypes = (array.dtype for array in self.parameters.values() if jnp.issubdtype(array.dtype, jnp.floating))
        return next((str(dtype) for dtype in dtypes), None)

    @property
    def data_format(self) -> tuple[str, str]:
        """As `Compute.data_format`."""
        return "", ""

    @property
    def batch_coupling(self) -> str:
        """As `Compute.batch_coupling`."""
        return ""

    @property
    def cache_key(self) -> Any:
        """As `TracedOps.cache_key`; None, the default, where it is unknown."""
        return None

    def __call__(self, *inputs: Any) -> Any:
        """What the model returns in evaluation mode, with the values that it holds now."""
        return self.apply(self.parameters, self.buffers, inputs, False, jax.random.key(0))[0]


def outputs_of(result: Any) -> tuple[Any, ...]:
    """The arrays that a model returned; see `output_tuple`."""
    return output_tuple(result, jax.Array, "array")


def mode_keywords(call: Callable[..., Any], train: bool) -> dict[str, Any]:
    """The keywords, of those in common use, by which a function learns whether it is in training mode."""
    known = inspect.signature(call).parameters
    on = dict.fromkeys(("train", "training", "is_training"), train)
    off = dict.fromkeys(("deterministic", "use_running_average"), not train)
    return {name: value for name, value in {**on, **off}.items() if name in known}


def has_parameter(call: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(call).parameters


class NamedTree:
    """The structure of a pytree whose leaves go by name."""

    def __init__(self, tree: Any) -> None:
        self._structure = jax.tree.structure(tree)
        self.names = list(named_leaves(tree))

    def unflatten(self, arrays: Arrays) -> Any:
        """The pytree with these leaves."""
        return jax.tree.unflatten(self._structure, [arrays[name] for name in self.names])


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name: the keys that lead to each, joined by dots; whole paths where these are equal."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    short = [_short_name(path) for path, _ in leaves]
    full = [jax.tree_util.keystr(path) for path, _ in leaves]
    names = [name if short.count(name) == 1 else path for name, path in zip(short, full, strict=True)]
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _short_name(path: Any) -> str:
    """Without the key of the box in which NNX and Flax keep each value."""
    text = jax.tree_util.keystr(path, simple=True, separator=".")
    return text.removesuffix(".value") or "value"


def copy_array(value: Any) -> Any:
    """A copy of an array or number with a strong dtype: with a weak one, steps would be compiled twice."""
    array = jnp.asarray(value)
    return jnp.array(array, dtype=array.dtype, copy=True)


def split_floating(arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Floating and complex arrays, which gradients can train, and the others."""
    floating = {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
    return floating, {name: array for name, array in arrays.items() if name not in floating}


def zero_inputs(specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    """Inputs of these specs, on the host."""
    return [np.zeros((batch, *spec.shape), getattr(jnp, spec.dtype)) for spec in specs]
