"""Linen: a Flax Linen module and its variables as a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.call_hints import constructor_hints
from anyaccel.segment import TensorSpec
from anyaccel_jax.array_trees import comes_from
from anyaccel_jax.models.base import (
    Arrays,
    Model,
    NamedTree,
    copy_array,
    fields_key,
    input_signature,
    mode_keywords,
    named_leaves,
    outputs_of,
    zero_inputs,
)
from anyaccel_jax.models.data_format import flat_layers, outer_formats
from anyaccel_jax.parameter_tree import ParameterTree

_PARAMS = "params"


@constructor_hints
class Linen(Model):
    """A Linen module, which is a function, with its variables, which it does not hold itself.

    A module that you pass to a node is wrapped into this class. Parameters are named by the modules and parameters that
    lead to them (`Dense_0.kernel`); other collections are buffers (`batch_stats.BatchNorm_0.mean`), which training may
    change. Random numbers of every name (`dropout`, ...) follow from the program's key. If `__call__` has a parameter
    `train`, `training`, `is_training` or `deterministic`, it receives the mode.

    Args:
        module: The module; never changed.
        variables: Output of `module.init`, with the collection `params`; None lets the graph create them from its seed.

    Example:
        >>> import flax.linen as nn, numpy as np, anyaccel as aa
        >>> from anyaccel_jax import Linen
        >>> data = aa.FeatureSet.from_dict("d", {"x": np.zeros((8, 3), "float32")}, ["x"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", Linen(nn.Dense(2)), data)], seed=0).build()
        >>> graph.shapes.specs["net"].shape
        (2,)
    """

    def __init__(self, module: nn.Module, variables: Mapping[str, Any] | None = None) -> None:
        self.module = module
        self.parameters = {}
        self.buffers = {}
        self._tree: NamedTree | None = None
        if variables is not None:
            self._hold(jax.tree.map(copy_array, dict(variables)))

    def __repr__(self) -> str:
        return f"Linen({type(self.module).__name__})"

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return self._tree is not None

    @property
    def variables(self) -> dict[str, Any]:
        """The current variables, as `module.apply` takes them."""
        return {} if self._tree is None else self._join(self.parameters, self.buffers)

    @property
    def dtype(self) -> str | None:
        """That of the first floating parameter; before there are any, the module's `param_dtype`, or float32."""
        if self.is_built:
            return super().dtype
        return str(jnp.dtype(getattr(self.module, "param_dtype", None) or jnp.float32))

    @property
    def data_format(self) -> tuple[str, str]:
        """Channels last, for single layers for images and plain sequences of them."""
        return outer_formats(flat_layers(self.module, nn.Sequential), _is_spatial, _is_elementwise, "channels_last")

    @property
    def batch_coupling(self) -> str:
        """BatchNorm, which shows in its collection of variables."""
        return "BatchNorm" if any(name.startswith("batch_stats.") for name in self.buffers) else ""

    @property
    def parameter_tree(self) -> ParameterTree:
        """The collection `params`."""
        variables = self._join({name: name for name in self.parameters}, dict.fromkeys(self.buffers))
        return ParameterTree(variables.get(_PARAMS, {}), self.parameters, "variables['params'] of the module")

    @property
    def cache_key(self) -> Any:
        """The module's fields, which may be objects that can be changed, and the code of all its parts."""
        return fields_key(self.module, _is_module, skipped=("parent", "name"))

    def build(self, inputs: Sequence[TensorSpec], seed: int, layout: CallLayout = POSITIONAL) -> None:
        """Build with `module.init`, in evaluation mode."""
        if not self.is_built:
            init = partial(self.module.init, **mode_keywords(type(self.module).__call__, train=False))
            arguments, named = layout.bind(zero_inputs(inputs, 2), jnp.moveaxis)
            self._hold(jax.jit(init)(jax.random.key(seed % 2**63), *arguments, **named))

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the module's `__call__`."""
        return input_signature(type(self.module).__call__, 1)

    def apply(
        self,
        parameters: Arrays,
        buffers: Arrays,
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> Any:
        variables = self._join(parameters, buffers)
        mutable = [name for name in variables if name != _PARAMS] if train else []
        keywords = mode_keywords(type(self.module).__call__, train)
        arguments, named = layout.bind(inputs, jnp.moveaxis)
        streams = {_PARAMS: key}
        result, after = self.module.apply(variables, *arguments, **named, rngs=streams, mutable=mutable, **keywords)
        outputs = outputs_of(result, layout)
        if not mutable:
            return outputs, None
        return outputs, {name: leaf for name, leaf in named_leaves({**variables, **after}).items() if name in buffers}

    def _hold(self, variables: Mapping[str, Any]) -> None:
        self._tree = NamedTree(dict(variables))
        self.parameters, self.buffers = {}, {}
        for name, leaf in named_leaves(dict(variables)).items():
            is_trained = name.startswith(f"{_PARAMS}.") and jnp.issubdtype(leaf.dtype, jnp.inexact)
            (self.parameters if is_trained else self.buffers)[_without_collection(name)] = leaf

    def _join(self, parameters: Arrays, buffers: Arrays) -> dict[str, Any]:
        assert self._tree is not None
        arrays = {**parameters, **buffers}
        variables: dict[str, Any] = self._tree.unflatten(
            {name: arrays[_without_collection(name)] for name in self._tree.names}
        )
        return variables


def _is_module(obj: Any) -> bool:
    return isinstance(obj, nn.Module)


def _without_collection(name: str) -> str:
    return name.removeprefix(f"{_PARAMS}.")


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (nn.Conv, nn.ConvTranspose, nn.ConvLocal))


def _is_elementwise(layer: Any) -> bool:
    return isinstance(layer, nn.Dropout) or comes_from(layer, "flax.linen.activation")
