"""What learns in a segment: parameters, their gradients, and the optimizer state, by node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter.array_ops import ArrayOps, Function, factor_on_device
from anyaccel.adapter.optimizer_step import Acts, Updates, by_node
from anyaccel.adapter.optimizers import UpdateRule
from anyaccel.adapter.segment_analysis import Layout
from anyaccel.device import Device
from anyaccel.segment import NodeState, Segment


class Learning:
    """The parameters of all owners of a segment, and the gradients and optimizer state of those that are trained.

    The mappings by node are replaced and never changed, so that a snapshot need not copy them.

    Attributes:
        updates: what a step does.
        acts: the same, compiled or not.
        parameters: by owner and name.
        states: the optimizer state by owner.

    Raises:
        SpecError: an optimizer that the framework lacks.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: Layout) -> None:
        self._segment = segment
        self._ops = ops
        self._layout = layout
        self.updates = Updates(ops, segment.groups)
        self.acts = Acts(self.updates, _as_it_is if segment.compile == "off" else ops.compile)
        self._gradients: dict[str, dict[str, Any]] = {}
        self.parameters = dict(layout.parameters)
        self.states = {
            node: self._resumed(node, self.updates.rules[name])
            for name, nodes in layout.groups.items()
            for node in nodes
        }

    def _resumed(self, node: str, rule: UpdateRule) -> NodeState:
        """The state of an earlier phase, where it is one of this rule and these parameters; else a fresh one."""
        given, owner = self._segment.states, self._layout.owner
        sharing = [node, *(label for label in owner if owner[label] == node)]
        found = next((given[label] for label in sharing if label in given), NodeState())
        if not rule.fits(found.slots, self.parameters[node]):
            return NodeState()
        device = self._layout.device[node]
        return NodeState(
            found.step,
            {
                name: {slot: self._ops.move(array, device) for slot, array in kept.items()}
                for name, kept in found.slots.items()
            },
        )

    # -- gradients -------------------------------------------------------------------------------------------------

    def add(self, node: str, gradients: Mapping[str, Any]) -> None:
        """Add to an owner's gradients."""
        there = self._gradients.setdefault(node, {})
        for name, gradient in gradients.items():
            there[name] = there[name] + gradient if name in there else gradient

    def discard(self) -> None:
        """Forget the gradients."""
        self._gradients = {}

    def reduce(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient, in the order of the groups' nodes and of the nodes' parameters."""
        for nodes in self._layout.groups.values():
            for node in nodes:
                there = self._gradients.get(node, {})
                there.update({name: fn(there[name]) for name in self.parameters[node] if name in there})

    def average(self, parts: int) -> None:
        """Divide every gradient by a number of parts, in which it was added up."""
        self.reduce(lambda gradient: gradient / parts)

    def stats(self) -> dict[str, tuple[Any, Any]]:
        """Squared norm and finiteness by group, on the device of its first node."""
        return {name: self._stats(nodes) for name, nodes in self._layout.groups.items()}

    def _stats(self, nodes: Sequence[str]) -> tuple[Any, Any]:
        xp, there = self._ops.xp, self._with_gradients(nodes)
        found: list[tuple[Any, Any]] = [self.acts.measured(by_node(self._gradients, here)) for here in there.values()]
        home = self._layout.device[nodes[0]] if nodes else None
        if not found or home is None:
            nothing = self._ops.astype(xp.zeros(()), xp.float32)  # not every device has wider numbers
            nothing = nothing if home is None else self._ops.move(nothing, home)
            return nothing, nothing == 0
        if len(found) == 1 and home in there:
            return found[0]
        squares, finite = ([self._ops.move(one, home) for one in scalars] for scalars in zip(*found, strict=True))
        return xp.sum(xp.stack(squares)), xp.all(xp.stack(finite))

    def _with_gradients(self, nodes: Sequence[str]) -> dict[Device, list[str]]:
        found: dict[Device, list[str]] = {}
        for node in nodes:
            if node in self._gradients:
                found.setdefault(self._layout.device[node], []).append(node)
        return found

    def clips(self) -> dict[str, Any]:
        """The factor of each group that has a `clip_norm`, on the device."""
        groups = self._layout.groups
        return {
            name: self.updates.factor(limit, [self._stats(groups[name])[0]])
            for name, limit in self.updates.limits.items()
        }

    # -- updates ---------------------------------------------------------------------------------------------------

    def apply(self, scale: Mapping[str, Any]) -> None:
        """One optimizer step of every node that has gradients; then forget them."""
        for name, nodes in self._layout.groups.items():
            for there in self._with_gradients(nodes).values():
                self._update(name, there, scale.get(name))
        self.discard()

    def _update(self, group: str, nodes: Sequence[str], scale: Any) -> None:
        ops, gradients = self._ops, by_node(self._gradients, nodes)
        factor = None if scale is None else factor_on_device(ops, scale, self._layout.device[nodes[0]])
        before = {node: {name: self.parameters[node][name] for name in there} for node, there in gradients.items()}
        slots = {node: self.slots(group, node, there) for node, there in gradients.items()}
        coefficients = {
            node: {key: ops.scalar(value) for key, value in self.coefficients(group, node).items()} for node in nodes
        }
        scalar = ops.scalar(factor) if isinstance(factor, float) else factor
        self.take(*self.acts.updated[group](before, slots, gradients, coefficients, scalar))

    def slots(self, group: str, node: str, names: Iterable[str]) -> dict[str, Any]:
        """The slots of some of a node's parameters, as the rule keeps them or begins."""
        parameters, kept = {name: self.parameters[node][name] for name in names}, self.states[node].slots
        return dict(self.updates.rules[group].slots(self._ops.xp, kept, parameters))

    def coefficients(self, group: str, node: str) -> dict[str, float]:
        """The scalars of a node's next step."""
        return self.updates.rules[group].coefficients(self.states[node].step + 1)

    def table(self, group: str, node: str, later: int, count: int) -> dict[str, np.ndarray]:
        """The scalars of a node's steps that come `later` steps after the next one, float64 [count] each."""
        return self.updates.rules[group].table(self.states[node].step + 1 + later, count)

    def take(self, parameters: Mapping[str, Any], slots: Mapping[str, Any], steps: int = 1) -> None:
        """Hold what `Updates.updated` gave after some steps, by node."""
        for node, after in parameters.items():
            state = self.states[node]
            self.parameters[node] = {**self.parameters[node], **after}
            self.states[node] = NodeState(state.step + steps, {**state.slots, **slots[node]})

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, Any]:
        """Parameters and optimizer state as they are now."""
        return dict(self.parameters), dict(self.states)

    def restore(self, snapshot: tuple[Any, Any]) -> None:
        """Go back to a snapshot; gradients are forgotten."""
        self.parameters, self.states = map(dict, snapshot)
        self.discard()

    def all_states(self) -> dict[str, NodeState]:
        """The optimizer state of the trained nodes as it is now, and of all others as it was given."""
        owner, given = self._layout.owner, self._segment.states
        others = {label: state for label, state in given.items() if owner.get(label) not in self.states}
        return {**others, **self.states}


def _as_it_is(function: Function) -> Function:
    return function
