"""StepOptimizer: what a training step of the user's own updates variables with, as with an optimizer of Keras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from anyaccel.adapter.custom_step import ROWS
from anyaccel.adapter.optimizer_step import OptimizerStep
from anyaccel.errors import PhaseError
from anyaccel_tensorflow.variables import read, tf_variable, write


class NodeVariables(NamedTuple):
    """What updates of a node read and write: variables on its device.

    Attributes:
        parameters: by name.
        slots: by name of parameter and of slot.
        step: updates so far.
        first: updates before the first row of the tables.
        tables: the scalars of the next updates, [ROWS] each.
    """

    parameters: dict[str, Any]
    slots: dict[str, dict[str, tf.Variable]]
    step: tf.Variable
    first: tf.Variable
    tables: dict[str, tf.Variable]


class StepOptimizer:
    """The optimizer of some nodes, with the schedule and the clipping of its `Optimizer`; called like one of Keras.

    Args:
        group: name of the parameter group.
        optimizer: the updates of all groups.
        nodes: the nodes of the group.
    """

    def __init__(self, group: str, optimizer: OptimizerStep, nodes: Mapping[str, NodeVariables]) -> None:
        self._group, self._optimizer, self._nodes = group, optimizer, nodes
        self._places = {
            id(tf_variable(variable)): (node, name)
            for node, held in nodes.items()
            for name, variable in held.parameters.items()
        }

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """One update of some variables; those whose gradient is None stay as they are.

        Clipping is by the norm of all gradients that are given here.

        Args:
            grads_and_vars: pairs of a gradient and a variable, as `zip(gradients, model.trainable_variables)`.

        Raises:
            PhaseError: a variable of none of the optimizer's nodes, or no gradient at all.
        """
        gradients: dict[str, dict[str, Any]] = {}
        for gradient, variable in grads_and_vars:
            node, name = self._place(variable)
            if gradient is not None:
                gradients.setdefault(node, {})[name] = tf.convert_to_tensor(gradient)
        if not gradients:
            raise PhaseError(
                f"the optimizer of {self._names} was given no gradient",
                hint="compute the loss inside `with tf.GradientTape() as tape:`, from the models' outputs",
            )
        limit = self._optimizer.clip_norms.get(self._group)
        factor = None
        if limit is not None:
            factor = self._optimizer.clip_factor(limit, [self._optimizer.gradient_stats(gradients)[0]])
        for node, arrays in gradients.items():
            self._update(node, arrays, factor)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        """As `apply_gradients`, with gradients and variables apart."""
        self.apply_gradients(zip(grads, trainable_variables, strict=True))

    @property
    def _names(self) -> str:
        return ", ".join(self._nodes)

    def _place(self, variable: Any) -> tuple[str, str]:
        place = self._places.get(id(tf_variable(variable)))
        if place is None:
            raise PhaseError(
                f"the optimizer of {self._names} was given the variable {getattr(variable, 'name', variable)!r}, "
                "which none of them trains",
                available=", ".join(name for held in self._nodes.values() for name in held.parameters),
                hint="give each node's variables to its own optimizer: optimizers['NODE']; frozen nodes have none",
            )
        return place

    def _update(self, node: str, gradients: Mapping[str, Any], factor: Any) -> None:
        held, row = self._nodes[node], self._nodes[node].step - self._nodes[node].first
        inside = tf.minimum(row, ROWS - 1)  # beyond, the rate is unknown
        scalars = {
            name: tf.where(row < ROWS, tf.gather(table, inside), tf.constant(np.nan, table.dtype))
            for name, table in held.tables.items()
        }
        parameters = {name: read(held.parameters[name]) for name in held.parameters}
        slots = {name: {slot: read(v) for slot, v in own.items()} for name, own in held.slots.items()}
        coefficients = self._optimizer.with_value(self._group, {node: scalars}, None)
        after, kept = self._optimizer.update(
            self._group, {node: parameters}, {node: slots}, {node: gradients}, coefficients, factor
        )
        for name, value in after[node].items():
            write(held.parameters[name], value)
        for name, own in kept[node].items():
            for slot, value in own.items():
                write(held.slots[name][slot], value)
        held.step.assign_add(1)
