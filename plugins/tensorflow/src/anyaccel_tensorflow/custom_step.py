"""CustomStep: a custom training step on the user's models: with GradientTape, as a `train_step` of Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from anyaccel.adapter.custom_step import ROWS, CustomStepRunner
from anyaccel.adapter.optimizer_step import OptimizerStep
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.segment_functions import SegmentLayout
from anyaccel.errors import PhaseError
from anyaccel.segment import Segment
from anyaccel_tensorflow.ops import TensorFlowOps
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.variables import keras, model_variables, read, tf_variable, write


class CustomStep(CustomStepRunner):
    """A custom step of (models, batch, optimizers). While it is current, the models' own variables have the trained
    values.
    """

    arguments = ("models", "batch", "optimizers")
    example = "def step(models, batch, optimizers): ... return {'loss': loss}"

    def __init__(
        self,
        step: Callable[..., Any],
        segment: Segment,
        ops: TensorFlowOps,
        layout: SegmentLayout,
        state: ParameterState,
        *,
        off: bool,
    ) -> None:
        def put(owner: Any, column: Any) -> Any:
            return column  # `run` assigns it to the variables

        super().__init__(
            step, segment, ops, layout, state, off=off, put=put, compile_function=compiled, fatal=(tf.errors.OpError,)
        )
        self._ops, self._layout = ops, layout
        self._variables = {label: model_variables(model) for label, model in layout.models.items()}
        self._frozen = FrozenLayers(model for label, model in layout.models.items() if label not in self._groups)
        self._nodes = {owner: self._node_variables(owner) for owner in self._groups}
        by_group = {
            group: StepOptimizer(group, state.optimizer, {owner: self._nodes[owner] for owner in owners})
            for group, owners in layout.groups.items()
            if owners
        }
        self._optimizers = {
            label: by_group[self._groups[owner]] for label, owner in layout.owner.items() if owner in self._groups
        }
        self._models = {op.label: op.model for op in segment.operations if op.model is not None}

    def _node_variables(self, owner: str) -> NodeVariables:
        parameters, group = self._variables[owner].parameters, self._groups[owner]
        slots = self._state.slots(group, owner, self._state.parameters[owner])
        with tf.device(tf_variable(next(iter(parameters.values()))).device):
            tables = self._state.table(group, owner, 0, 1)
            return NodeVariables(
                parameters=parameters,
                slots={
                    name: {slot: tf.Variable(value, trainable=False) for slot, value in parameter_slots.items()}
                    for name, parameter_slots in slots.items()
                },
                step=tf.Variable(0, dtype=tf.int64, trainable=False),
                first=tf.Variable(0, dtype=tf.int64, trainable=False),
                tables={name: tf.Variable(np.zeros(ROWS), trainable=False) for name in tables},
            )

    def begin(self, buffers: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy the values to the variables."""
        for label, model in self._layout.models.items():
            self._ops.write(model, self._state.parameters[label], buffers[label])
        for owner, held in self._nodes.items():
            slots = self._state.slots(self._groups[owner], owner, self._state.parameters[owner])
            for name, parameter_slots in slots.items():
                for slot, value in parameter_slots.items():
                    write(held.slots[name][slot], value)
            _assign(held.step, np.int64(self._state.states[owner].step))
        self._tables.invalidate()

    def run(self, batch: Mapping[str, Any], key: Any) -> Any:
        """Return the result of the step; random numbers come from the models' own generators."""
        if self._tables.advance(lambda: {owner: int(held.step) for owner, held in self._nodes.items()}):
            for owner, held in self._nodes.items():
                _assign(held.first, np.int64(self._tables.first[owner]))
                for name, table in held.tables.items():
                    _assign(table, self._tables.tables[owner][name])
        return self._compiler.run(self._call, dict(batch))

    def _call(self, batch: dict[str, Any]) -> Any:
        if not tf.executing_eagerly():
            return self.step(self._models, batch, self._optimizers)
        with self._ops.eager_scope():
            return self.step(self._models, batch, self._optimizers)

    def collect(self) -> Mapping[str, Mapping[str, Any]]:
        trained = {owner: self._variables[owner] for owner in self._groups}
        parameters = {owner: {name: read(v) for name, v in held.parameters.items()} for owner, held in trained.items()}
        slots = {
            owner: {
                name: {slot: read(v) for slot, v in parameter_slots.items()}
                for name, parameter_slots in held.slots.items()
            }
            for owner, held in self._nodes.items()
        }
        self._state.store(parameters, slots, 0)
        self._state.set_steps({owner: int(held.step) for owner, held in self._nodes.items()})
        return {owner: {name: read(v) for name, v in held.buffers.items()} for owner, held in trained.items()}

    def close(self) -> None:
        """Make layers of frozen nodes trainable again if they were."""
        self._frozen.restore()


class FrozenLayers:
    """Layers of Keras that do not train, nor update running statistics, until `restore`."""

    def __init__(self, models: Iterable[Any]) -> None:
        parts = [part for model in models for _, part in keras().walk(model)]
        layers = [part for part in parts if keras().is_layer(part)]
        layers.sort(key=lambda layer: -sum(1 for _ in keras().walk(layer)))  # a layer sets what is in it
        held = [*layers, *(part for part in parts if keras().is_keras_variable(part))]
        self._before = [(part, part.trainable) for part in held]
        for layer in layers:
            layer.trainable = False

    def restore(self) -> None:
        """Let them train again, where they did."""
        for part, trainable in self._before:
            part.trainable = trainable
        self._before = []


def _assign(variable: tf.Variable, value: Any) -> None:
    with tf.device(variable.device):
        variable.assign(tf.constant(value))


# -- StepOptimizer: what a training step of the user's own updates variables with, as with an optimizer of Keras -------


class NodeVariables(NamedTuple):
    """The variables that updates of a node read and write, on its device.

    Attributes:
        parameters: Parameters by name.
        slots: Slots by name of parameter and of slot.
        step: Number of updates so far.
        first: Number of updates before the first row of the tables.
        tables: Scalars of the next updates, [ROWS] each.
    """

    parameters: dict[str, Any]
    slots: dict[str, dict[str, tf.Variable]]
    step: tf.Variable
    first: tf.Variable
    tables: dict[str, tf.Variable]


class StepOptimizer:
    """The optimizer of some nodes, with the schedule and the clipping of its `Optimizer`; called like one of Keras.

    Args:
        group: Name of the parameter group.
        optimizer: The updates of all groups.
        nodes: The nodes of the group.
    """

    def __init__(self, group: str, optimizer: OptimizerStep, nodes: Mapping[str, NodeVariables]) -> None:
        self._group, self._optimizer, self._nodes = group, optimizer, nodes
        self._places = {
            id(tf_variable(variable)): (node, name)
            for node, held in nodes.items()
            for name, variable in held.parameters.items()
        }

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Update some variables, except those with a gradient of None.

        Clipping uses the norm of all gradients passed here.

        Args:
            grads_and_vars: Pairs of a gradient and a variable, as `zip(gradients, model.trainable_variables)`.

        Raises:
            PhaseError: a variable of none of the optimizer's nodes, or no gradient at all.
        """
        gradients: dict[str, dict[str, Any]] = {}
        for gradient, variable in grads_and_vars:
            place = self._places.get(id(tf_variable(variable)))
            if place is None:
                raise PhaseError(
                    f"the optimizer of {self._names} received the variable {getattr(variable, 'name', variable)!r}, "
                    "which none of them trains",
                    available=", ".join(name for held in self._nodes.values() for name in held.parameters),
                    hint="pass each node's variables to its own optimizer, optimizers['NODE']; frozen nodes have no "
                    "optimizer",
                )
            node, name = place
            if gradient is not None:
                gradients.setdefault(node, {})[name] = tf.convert_to_tensor(gradient)
        if not gradients:
            raise PhaseError(
                f"the optimizer of {self._names} received no gradient",
                hint="compute the loss inside `with tf.GradientTape() as tape:`, from the models' outputs",
            )
        limit = self._optimizer.clip_norms.get(self._group)
        factor = None
        if limit is not None:
            factor = self._optimizer.clip_factor(limit, [self._optimizer.gradient_stats(gradients)[0]])
        for node, arrays in gradients.items():
            held, row = self._nodes[node], self._nodes[node].step - self._nodes[node].first
            inside = tf.minimum(row, ROWS - 1)  # beyond, the rate is unknown
            scalars = {
                label: tf.where(row < ROWS, tf.gather(table, inside), tf.constant(np.nan, table.dtype))
                for label, table in held.tables.items()
            }
            parameters = {label: read(held.parameters[label]) for label in held.parameters}
            slots = {
                label: {slot: read(v) for slot, v in parameter_slots.items()}
                for label, parameter_slots in held.slots.items()
            }
            coefficients = self._optimizer.with_value(self._group, {node: scalars}, None)
            after, kept = self._optimizer.update(
                self._group, {node: parameters}, {node: slots}, {node: arrays}, coefficients, factor
            )
            for label, value in after[node].items():
                write(held.parameters[label], value)
            for label, new_slots in kept[node].items():
                for slot, value in new_slots.items():
                    write(held.slots[label][slot], value)
            held.step.assign_add(1)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        """Update variables like `apply_gradients`, with separate gradients and variables."""
        self.apply_gradients(zip(grads, trainable_variables, strict=True))

    @property
    def _names(self) -> str:
        return ", ".join(self._nodes)
