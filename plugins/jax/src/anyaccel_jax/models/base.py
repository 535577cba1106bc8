"""Model: a pure function of arrays by name, and the arrays that it holds now."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import attributes_key
from anyaccel.adapter.attribute_snapshot import AttributeSnapshot
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.precision import NodePrecision
from anyaccel.segment import TensorSpec
from anyaccel_jax.parameter_tree import ParameterTree

Arrays = Mapping[str, Any]

LIBRARIES = frozenset(
    {
        *("jax", "jaxlib", "flax", "equinox", "haiku", "keras", "optax", "chex", "jaxtyping", "orbax", "ml_dtypes"),
        *("absl", "anyaccel_jax"),
    }
)
"""Modules whose code is taken to be constant; see `TracedOps.libraries`."""


class Model(ABC):
    """A model as a pure function of arrays by name, with its current arrays.

    Attributes:
        parameters: Arrays that gradients change, by name.
        buffers: The other arrays, by name.
    """

    parameters: dict[str, Any]
    buffers: dict[str, Any]

    @property
    def is_built(self) -> bool:
        """Whether it has its arrays."""
        return True

    def build(self, inputs: Sequence[TensorSpec], seed: int, layout: CallLayout = POSITIONAL) -> None:
        """Create the arrays for inputs of these specs, if they do not exist yet.

        Raises:
            ShapeError: the model does not accept these inputs.
        """

    @abstractmethod
    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> tuple[tuple[Any, ...], Arrays | None]:
        """Return the model's outputs, and its buffers afterwards (None where they are unchanged), as a pure function.

        Args:
            parameters: Parameters by name.
            buffers: Buffers by name.
            inputs: [batch, ...] each.
            train: Whether in training mode.
            key: A key of `jax.random`, that determines everything random.
            layout: Layout of the call: its arguments are built from the inputs, and its results become the outputs.
        """

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of a call; see `Compute.signature`. None, the default, if unknown."""
        return None

    def attribute_snapshot(self) -> AttributeSnapshot:
        """Return the plain attributes that a call of the model may change; by default it is a pure function."""
        return AttributeSnapshot((), vars)

    def write(self, parameters: Arrays, buffers: Arrays) -> None:
        """Hold these arrays; both have all names."""
        self.parameters, self.buffers = dict(parameters), dict(buffers)

    def map_arrays(self, function: Callable[[Any], Any]) -> Any:
        """Return the model, which from now on holds the results of `function` for each of its arrays."""
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
        return "", ""

    @property
    def batch_coupling(self) -> str:
        return ""

    def computing_in(self, precision: NodePrecision) -> AbstractContextManager[None] | None:
        """Return a context that makes the model's library compute in a precision; None, the default: arrays are
        cast.
        """
        return None

    def precision_reason(self, precision: str) -> str:
        """Return why the model cannot be computed in a precision on any device; see
        `ComputesPrecision.precision_reason`.
        """
        return ""

    @property
    def untrainable_reason(self) -> str:
        return ""

    @property
    def constraints(self) -> Mapping[str, Callable[[Any], Any]]:
        return {}

    @property
    def parameter_tree(self) -> ParameterTree:
        """The parameters in the tree of the model's library, for Optax; a dict by name if the library has no tree."""
        return ParameterTree(
            {name: name for name in self.parameters}, self.parameters, "a dict by the names of graph.state()"
        )

    @property
    def cache_key(self) -> Any:
        """The cache key; see `TracedOps.cache_key`. None, the default, if unknown."""
        return None

    def __call__(self, *inputs: Any) -> Any:
        """Return the result of the model in evaluation mode, with its current values."""
        (result,), _ = self.apply(self.parameters, self.buffers, inputs, False, jax.random.key(0), AsReturned())
        return result


class AsReturned(CallLayout):
    """A call whose only output is the return value of the model."""

    def outputs(self, result: Any, *_: Any) -> tuple[Any, ...]:
        """Return the result itself."""
        return (result,)


def outputs_of(result: Any, layout: CallLayout = POSITIONAL) -> tuple[Any, ...]:
    """Return the outputs in the result of a model; see `CallLayout.outputs`."""
    return layout.outputs(result, jax.Array, jnp.moveaxis, "array")


def input_signature(call: Callable[..., Any], n_skipped: int, *, also: Collection[str] = ()) -> inspect.Signature:
    """The signature of a call without its first parameters, those for the mode, and others that are not inputs."""
    skipped = {*_MODES, *also}
    parameters = list(inspect.signature(call).parameters.values())[n_skipped:]
    return inspect.Signature([parameter for parameter in parameters if parameter.name not in skipped])


_ON, _OFF = ("train", "training", "is_training"), ("deterministic", "use_running_average")
_MODES = (*_ON, *_OFF)


def mode_keywords(call: Callable[..., Any], train: bool) -> dict[str, Any]:
    """Return the common keywords that tell a function whether it is in training mode."""
    accepted = inspect.signature(call).parameters
    on, off = dict.fromkeys(_ON, train), dict.fromkeys(_OFF, not train)
    return {name: value for name, value in {**on, **off}.items() if name in accepted}


def has_parameter(call: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter with this name."""
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
    """Return the name without the key of the box that NNX and Flax store each value in."""
    text = jax.tree_util.keystr(path, simple=True, separator=".")
    return text.removesuffix(".value") or "value"


def fields_key(module: Any, is_module: Callable[[Any], bool], skipped: Collection[str] = ()) -> Any:
    """Return a `cache_key` of a module that is a dataclass: the fields and code of all modules in it, except some
    fields.
    """

    def ignored(part: Any) -> set[str]:
        return {*vars(part)} - {field.name for field in dataclasses.fields(part)} | {*skipped}

    return attributes_key(_modules_in(module, is_module, skipped), ignored, is_module, LIBRARIES)


def _modules_in(
    module: Any, is_module: Callable[[Any], bool], skipped: Collection[str], path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield a module and those in its fields, by the path of fields that leads to each."""
    yield path, module
    for name in (field.name for field in dataclasses.fields(module) if field.name not in skipped):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(module, name, None), is_leaf=is_module)
        for keys, leaf in leaves:
            if is_module(leaf):
                inner = f"{path}.{name}{jax.tree_util.keystr(keys)}".lstrip(".")
                yield from _modules_in(leaf, is_module, skipped, inner)


def copy_array(value: Any) -> Any:
    """Return a copy of an array or number with a strong dtype: with a weak one, steps would be compiled twice."""
    array = jnp.asarray(value)
    return jnp.array(array, dtype=array.dtype, copy=True)


def split_floating(arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split arrays into floating and complex ones, which gradients can train, and the others."""
    floating = {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
    return floating, {name: array for name, array in arrays.items() if name not in floating}


def zero_inputs(specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    """Return inputs of these specs, on the host."""
    return [np.zeros((batch, *spec.shape), getattr(jnp, spec.dtype)) for spec in specs]
