"""Model: what every kind of model of JAX and its libraries is for a program: pure functions, and a holder of values."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.errors import ShapeError
from anyaccel.segment import TensorSpec

Arrays = Mapping[str, Any]
Applied = tuple[tuple[Any, ...], Arrays | None]


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
        """Make the arrays for inputs of these specifications, if they are not there yet.

        Raises:
            ShapeError: the model does not take these inputs.
        """

    @abstractmethod
    def apply(
        self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any
    ) -> tuple[Any, Arrays | None]:
        """What the model gives, and its buffers afterwards (None where they are as before), as a pure function.

        Args:
            parameters: by name.
            buffers: by name.
            inputs: [batch, ...] each.
            train: whether in training mode.
            key: a key of `jax.random`, on which alone depends what is random.
        """

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Hold these arrays; both have all names."""
        self.parameters, self.buffers = dict(parameters), dict(buffers)

    def mapped(self, fn: Callable[[Any], Any]) -> Any:
        """The model, which holds what `fn` gives for each of its arrays from now on."""
        self.write(*({name: fn(one) for name, one in there.items()} for there in (self.parameters, self.buffers)))
        return self

    @property
    def dtype(self) -> str | None:
        """The dtype of the first floating parameter; of an unbuilt model the one that it will have."""
        found = (one.dtype for one in self.parameters.values() if jnp.issubdtype(one.dtype, jnp.floating))
        return next((str(dtype) for dtype in found), None)

    @property
    def layout(self) -> tuple[str, str]:
        """As `Compute.layout`."""
        return "", ""

    @property
    def mixes(self) -> str:
        """As `Compute.mixes`."""
        return ""

    @property
    def cache_key(self) -> Any:
        """As `TracedOps.cache_key`; the default does not know."""
        return None

    def __call__(self, *inputs: Any) -> Any:
        """What the model gives in evaluation mode, with the values that it holds now."""
        return self.apply(self.parameters, self.buffers, inputs, False, jax.random.key(0))[0]


def outputs_of(result: Any) -> tuple[Any, ...]:
    """The arrays that a model gave: one, or those of a tuple, a list or a dict in its order.

    Raises:
        ShapeError: it gave something else.
    """
    if isinstance(result, jax.Array):
        return (result,)
    items = tuple(result.values()) if isinstance(result, Mapping) else result
    if isinstance(items, (tuple, list)) and items and all(isinstance(item, jax.Array) for item in items):
        return tuple(items)
    kinds = ", ".join(type(item).__name__ for item in items) if isinstance(items, (tuple, list)) else "no array"
    raise ShapeError(
        f"the model gives a {type(result).__name__} of {kinds or 'nothing'}, which is no output of a node",
        available="an array, or a tuple, list or dict of arrays, can be one",
        hint="wrap it in a model that gives only the arrays wanted",
    )


def mode(call: Callable[..., Any], train: bool) -> dict[str, bool]:
    """The keywords by which a function wants to know whether it is in training mode, by the names that are in use."""
    known = inspect.signature(call).parameters
    yes = dict.fromkeys(("train", "training", "is_training"), train)
    no = dict.fromkeys(("deterministic", "use_running_average"), not train)
    return {name: value for name, value in {**yes, **no}.items() if name in known}


def takes(call: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    return name in inspect.signature(call).parameters


class Tree:
    """The structure of a pytree, whose arrays go by name: the keys that lead to each, joined by dots."""

    def __init__(self, tree: Any) -> None:
        self._structure = jax.tree.structure(tree)
        self.names = list(named(tree))

    def tree(self, arrays: Arrays) -> Any:
        """The pytree with these leaves."""
        return jax.tree.unflatten(self._structure, [arrays[name] for name in self.names])


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    short = [_name(path) for path, _ in found]
    whole = [jax.tree_util.keystr(path) for path, _ in found]
    names = [one if short.count(one) == 1 else full for one, full in zip(short, whole, strict=True)]
    return {name: leaf for name, (_, leaf) in zip(names, found, strict=True)}


def _name(path: Any) -> str:
    """The keys of a path; NNX and Flax put each value in a box, which is not told."""
    text = jax.tree_util.keystr(path, simple=True, separator=".")
    return text.removesuffix(".value") or "value"


def owned(value: Any) -> Any:
    """A copy of an array or number, of a dtype of its own: one that JAX calls weak would have steps compiled twice."""
    array = jnp.asarray(value)
    return jnp.array(array, dtype=array.dtype, copy=True)


def zeros(specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    """Inputs of these specifications, on the host."""
    return [np.zeros((batch, *spec.shape), getattr(jnp, spec.dtype)) for spec in specs]
