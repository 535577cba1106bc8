"""Linen: a Flax Linen module and its variables as a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from anyaccel.adapter import IdentityKey
from anyaccel.segment import TensorSpec
from anyaccel_jax.models.base import Arrays, Model, Tree, mode, named, owned, zeros
from anyaccel_jax.models.data_format import ends
from anyaccel_jax.tree_utils import comes_from

_PARAMETERS = "params"


class Linen(Model):
    """A Linen module, which is a function, and its variables, which it does not hold itself.

    A module that is given to a node is wrapped into one of these. Parameters go by the names of the modules and
    parameters that lead to them (`Dense_0.kernel`); other collections are buffers (`batch_stats.BatchNorm_0.mean`),
    which training may change. Random numbers of every name (`dropout`, ...) follow from the program's key. If
    `__call__` has a parameter `train`, `training`, `is_training` or `deterministic`, it is told the mode by it.

    Args:
        module: the module; never changed.
        variables: what `module.init` gave, with the collection `params`; None lets the graph make them from its seed.
    """

    def __init__(self, module: nn.Module, variables: Mapping[str, Any] | None = None) -> None:
        self.module = module
        self.parameters = {}
        self.buffers = {}
        self._tree: Tree | None = None
        if variables is not None:
            self._hold(jax.tree.map(owned, dict(variables)))

    def __repr__(self) -> str:
        return f"Linen({type(self.module).__name__})"

    @property
    def is_built(self) -> bool:
        """Whether it has its variables."""
        return self._tree is not None

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of now, as `module.apply` takes them."""
        return {} if self._tree is None else self._joined(self.parameters, self.buffers)

    @property
    def dtype(self) -> str | None:
        """That of the first floating parameter; before there are any, the module's `param_dtype`, or float32."""
        if self.is_built:
            return super().dtype
        return str(jnp.dtype(getattr(self.module, "param_dtype", None) or jnp.float32))

    @property
    def layout(self) -> tuple[str, str]:
        """Channels last, for single layers for images and plain sequences of them."""
        return ends(_layers(self.module), _is_spatial, _is_elementwise, "channels_last")

    @property
    def mixes(self) -> str:
        """BatchNorm, which shows in its collection of variables."""
        return "BatchNorm" if any(name.startswith("batch_stats.") for name in self.buffers) else ""

    @property
    def cache_key(self) -> Any:
        """The module, which cannot be changed."""
        return IdentityKey(self.module)

    def build(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        """As in `Model`: `module.init`, in evaluation mode."""
        if not self.is_built:
            words: dict[str, Any] = mode(type(self.module).__call__, train=False)
            init = partial(self.module.init, **words)
            self._hold(jax.jit(init)(jax.random.key(seed % 2**63), *zeros(inputs, 2)))

    def apply(self, parameters: Arrays, buffers: Arrays, inputs: Sequence[Any], train: bool, key: Any) -> Any:
        """As in `Model`."""
        variables = self._joined(parameters, buffers)
        changing = [name for name in variables if name != _PARAMETERS] if train else []
        words: dict[str, Any] = mode(type(self.module).__call__, train)
        found = self.module.apply(variables, *inputs, rngs={_PARAMETERS: key}, mutable=changing, **words)
        outputs, after = found
        if not changing:
            return outputs, None
        return outputs, {name: one for name, one in named({**variables, **after}).items() if name in buffers}

    def _hold(self, variables: Mapping[str, Any]) -> None:
        self._tree = Tree(dict(variables))
        self.parameters, self.buffers = {}, {}
        for name, one in named(dict(variables)).items():
            trained = name.startswith(f"{_PARAMETERS}.") and jnp.issubdtype(one.dtype, jnp.floating)
            (self.parameters if trained else self.buffers)[_short(name)] = one

    def _joined(self, parameters: Arrays, buffers: Arrays) -> dict[str, Any]:
        assert self._tree is not None
        both = {**parameters, **buffers}
        found: dict[str, Any] = self._tree.tree({name: both[_short(name)] for name in self._tree.names})
        return found


def _short(name: str) -> str:
    return name.removeprefix(f"{_PARAMETERS}.")


def _layers(module: Any) -> list[Any]:
    if isinstance(module, nn.Sequential):
        return [part for layer in module.layers for part in _layers(layer)]
    return [module]


def _is_spatial(layer: Any) -> bool:
    return isinstance(layer, (nn.Conv, nn.ConvTranspose, nn.ConvLocal))


def _is_elementwise(layer: Any) -> bool:
    return isinstance(layer, nn.Dropout) or comes_from(layer, "flax.linen.activation")
