"""FlaxTrainState: a `flax.training.train_state.TrainState` as a model with its optimizer's state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from anyaccel.errors import StateError
from anyaccel.segment import NodeState
from anyaccel_jax.models.linen import Linen

_COLLECTIONS = ("batch_stats",)


class FlaxTrainState(Linen):
    """A TrainState of a Linen module: its parameters, running statistics, optimizer state and step continue from here.

    A TrainState that you pass to a node is wrapped into this class. Pass its optimizer as that of the node:
    `ModelNode("net", state, ..., optimizer=Optimizer(state.tx))`. The TrainState itself does not change.

    Args:
        state: The TrainState; `state.apply_fn` is `module.apply`. Among the attributes that a subclass adds,
            `batch_stats` is a collection of variables; others do not change.

    Raises:
        StateError: `apply_fn` does not belong to a Linen module.
    """

    def __init__(self, state: Any) -> None:
        module = getattr(state.apply_fn, "__self__", None)
        if not isinstance(module, nn.Module):
            raise StateError(
                "the apply_fn of a TrainState is not a method of a Linen module",
                cause=f"{state.apply_fn!r:.80}",
                hint="pass anyaccel_jax.Function(function, state.params), with optimizer=Optimizer(state.tx)",
            )
        self._given = state
        self._collections = [name for name in _COLLECTIONS if getattr(state, name, None) is not None]
        super().__init__(module, {"params": state.params, **{name: getattr(state, name) for name in self._collections}})
        opt_state = jax.tree.map(jnp.asarray, state.opt_state)
        self.optimizer_state = NodeState(int(state.step), self.parameter_tree.split_state(opt_state, self.parameters))

    @property
    def train_state(self) -> Any:
        """The TrainState with the current values, step and optimizer state."""
        variables, state = self.variables, self._given
        opt_state = self.parameter_tree.join_state(state.opt_state, self.parameters, self.optimizer_state.slots)
        changed = {name: variables[name] for name in self._collections}
        step = jnp.asarray(self.optimizer_state.step, jnp.int32) if hasattr(state.step, "dtype") else None
        return state.replace(
            params=variables["params"],
            opt_state=opt_state,
            step=self.optimizer_state.step if step is None else step,
            **changed,
        )
