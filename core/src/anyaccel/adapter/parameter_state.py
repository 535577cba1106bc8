"""ParameterState: the parameters of a segment, their gradients, and the optimizer state, by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter.array_ops import ArrayOps, factor_on_device
from anyaccel.adapter.optimizer_step import CompiledOptimizerStep, OptimizerStep, select_nodes
from anyaccel.adapter.optimizers import UpdateRule
from anyaccel.adapter.segment_functions import SegmentLayout
from anyaccel.device import Device
from anyaccel.errors import StateError
from anyaccel.segment import NodeState, Segment


class ParameterState:
    """The parameters of all owners of a segment, and the gradients and optimizer state of the trained ones.

    The mappings by node are replaced and never changed, so a snapshot does not have to copy them.

    Attributes:
        optimizer: Computation of a step.
        optimizer_functions: The same functions, compiled or not.
        parameters: Arrays by owner and name.
        states: Optimizer state by owner.

    Raises:
        SpecError: the framework lacks an optimizer.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: SegmentLayout) -> None:
        self._segment = segment
        self._ops = ops
        self._layout = layout
        constraints = {owner: ops.constraints(layout.models[owner]) for owner in layout.models}
        trained = [node for nodes in layout.groups.values() for node in nodes]
        self.optimizer = OptimizerStep(
            ops,
            segment.groups,
            {owner: c for owner, c in constraints.items() if c},
            {node: ops.parameter_tree(layout.models[node]) for node in trained},
        )
        compile_function = (lambda function: function) if segment.compile == "off" else ops.compile
        self.optimizer_functions = CompiledOptimizerStep(self.optimizer, compile_function)
        self._gradients: dict[str, dict[str, Any]] = {}
        self.parameters = dict(layout.parameters)
        self.states = {
            node: self._resumed(node, self.optimizer.rule_of(name, node))
            for name, nodes in layout.groups.items()
            for node in nodes
        }

    def _resumed(self, node: str, rule: UpdateRule) -> NodeState:
        """Return the state of an earlier phase if it fits this rule and these parameters; otherwise a new one."""
        earlier, owner = self._segment.states, self._layout.owner
        sharing = [node, *(label for label in owner if owner[label] == node)]
        brought = (
            None if any(label in earlier for label in sharing) else self._ops.optimizer_state(self._layout.models[node])
        )
        state = brought or next((earlier[label] for label in sharing if label in earlier), NodeState())
        earlier_slots = rule.continued(state.slots, self.parameters[node])
        if not rule.fits(earlier_slots, self.parameters[node]):
            if brought is not None and brought.step:
                raise StateError(
                    f"the model of node {node!r} has the state of another optimizer after {brought.step} "
                    f"steps, which {rule.optimizer.name} cannot continue",
                    hint="use the optimizer that the node was trained with, or a model without optimizer state",
                )
            return NodeState()
        device = self._layout.owner_device[node]
        slots = {
            name: {slot: self._ops.move(array, device) for slot, array in kept.items()}
            for name, kept in earlier_slots.items()
        }
        return NodeState(state.step, slots)

    # -- gradients -------------------------------------------------------------------------------------------------

    def add_gradients(self, node: str, gradients: Mapping[str, Any]) -> None:
        """Add to an owner's gradients."""
        total = self._gradients.setdefault(node, {})
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient

    def zero_grad(self) -> None:
        """Discard the gradients."""
        self._gradients = {}

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient, in the order of the groups' nodes and of the nodes' parameters."""
        for nodes in self._layout.groups.values():
            for node in nodes:
                gradients = self._gradients.get(node, {})
                gradients.update({name: fn(gradients[name]) for name in self.parameters[node] if name in gradients})

    def gradient_stats(self) -> dict[str, tuple[Any, Any]]:
        """Return squared norm and finiteness by group, on the device of its first node."""
        return {name: self._group_stats(nodes) for name, nodes in self._layout.groups.items()}

    def _group_stats(self, nodes: Sequence[str]) -> tuple[Any, Any]:
        xp, by_device = self._ops.xp, self._nodes_with_gradients(nodes)
        measure = self.optimizer_functions.gradient_stats
        stats: list[tuple[Any, Any]] = [measure(select_nodes(self._gradients, here)) for here in by_device.values()]
        home = self._layout.owner_device[nodes[0]] if nodes else None
        if not stats or home is None:
            zero = self._ops.astype(xp.zeros(()), xp.float32)  # some devices have no float64
            zero = zero if home is None else self._ops.move(zero, home)
            return zero, zero == 0
        if len(stats) == 1 and home in by_device:
            return stats[0]
        squares, finite = ([self._ops.move(x, home) for x in scalars] for scalars in zip(*stats, strict=True))
        return xp.sum(xp.stack(squares)), xp.all(xp.stack(finite))

    def _nodes_with_gradients(self, nodes: Sequence[str]) -> dict[Device, list[str]]:
        by_device: dict[Device, list[str]] = {}
        for node in nodes:
            if node in self._gradients:
                by_device.setdefault(self._layout.owner_device[node], []).append(node)
        return by_device

    def clip_factors(self) -> dict[str, Any]:
        """Return the factor of each group that has a `clip_norm`, on the device."""
        groups = self._layout.groups
        return {
            name: self.optimizer.clip_factor(limit, [self._group_stats(groups[name])[0]])
            for name, limit in self.optimizer.clip_norms.items()
        }

    # -- updates ---------------------------------------------------------------------------------------------------

    def optimizer_step(self, scale: Mapping[str, Any], value: Any = None) -> None:
        """Run one optimizer step of every node that has gradients; then discard them. `value` is the loss, if known."""
        updates = [
            self._updated(name, on_device, scale.get(name), value)
            for name, nodes in self._layout.groups.items()
            for on_device in self._nodes_with_gradients(nodes).values()
        ]
        for updated in updates:  # all of them or, where one fails, none
            self.store(*updated)
        self.zero_grad()

    def _updated(self, group: str, nodes: Sequence[str], scale: Any, value: Any) -> tuple[Any, Any]:
        """Return the parameters and slots of some nodes of a group after the step."""
        ops, gradients, device = self._ops, select_nodes(self._gradients, nodes), self._layout.owner_device[nodes[0]]
        factor = None if scale is None else factor_on_device(ops, scale, device)
        parameters = {node: {name: self.parameters[node][name] for name in grads} for node, grads in gradients.items()}
        slots = {node: self.slots(group, node, grads) for node, grads in gradients.items()}
        coefficients = {
            node: {
                key: ops.scalar(number)
                for key, number in self.optimizer.rules[group].coefficients(self.states[node].step + 1).items()
            }
            for node in nodes
        }
        loss = None if value is None else ops.move(value, device)
        coefficients = self.optimizer.with_value(group, coefficients, loss)
        scalar = ops.scalar(factor) if isinstance(factor, float) else factor
        updated: tuple[Any, Any] = self.optimizer_functions.update[group](
            parameters, slots, gradients, coefficients, scalar
        )
        return updated

    def slots(self, group: str, node: str, names: Iterable[str]) -> dict[str, Any]:
        """Return the slots of some of a node's parameters: the kept ones, or initial ones."""
        parameters, kept = {name: self.parameters[node][name] for name in names}, self.states[node].slots
        return dict(self.optimizer.rule_of(group, node).slots(self._ops.xp, kept, parameters))

    def table(self, group: str, node: str, later: int, count: int) -> dict[str, np.ndarray]:
        """Return the scalars of `count` steps of a node, `later` steps after its next one, float64 [count] each."""
        return self.optimizer.rules[group].table(self.states[node].step + 1 + later, count)

    def store(self, parameters: Mapping[str, Any], slots: Mapping[str, Any], n_steps: int = 1) -> None:
        """Store the result of `OptimizerStep.update` after some steps, by node."""
        for node, updated in parameters.items():
            state = self.states[node]
            self.parameters[node] = {**self.parameters[node], **updated}
            self.states[node] = NodeState(state.step + n_steps, {**state.slots, **slots[node]})

    def set_steps(self, steps: Mapping[str, int]) -> None:
        """Set how many optimizer steps some nodes have taken."""
        for node, step in steps.items():
            self.states[node] = NodeState(step, self.states[node].slots)

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, Any]:
        """Return the current parameters and optimizer state."""
        return dict(self.parameters), dict(self.states)

    def restore(self, snapshot: tuple[Any, Any]) -> None:
        """Restore a snapshot; gradients are discarded."""
        self.parameters, self.states = map(dict, snapshot)
        self.zero_grad()

    def all_states(self) -> dict[str, NodeState]:
        """Return the current optimizer state of the trained nodes, and the initial state of all others."""
        owner, earlier = self._layout.owner, self._segment.states
        others = {label: state for label, state in earlier.items() if owner.get(label) not in self.states}
        return {**others, **self.states}
