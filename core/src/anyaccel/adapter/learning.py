"""What learns in a segment: parameters, their gradients, and the optimizer state, by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel.adapter.layout import Layout
from anyaccel.adapter.ops import ArrayOps, cast, factor_on, scaled
from anyaccel.adapter.optimizers import Rule, rule
from anyaccel.device import Device
from anyaccel.segment import NodeState, Segment


class Learning:
    """The parameters of all owners of a segment, and the gradients and optimizer state of those that are trained.

    The mappings by node are replaced and never changed, so that a snapshot need not copy them.

    Attributes:
        parameters: by owner and name.
        states: the optimizer state by owner.

    Raises:
        RecipeError: an optimizer that the framework lacks.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: Layout) -> None:
        self._segment = segment
        self._ops = ops
        self._layout = layout
        self._rules = {group.name: rule(group.optimizer) for group in segment.groups}
        self._gradients: dict[str, dict[str, Any]] = {}
        self.parameters = dict(layout.parameters)
        self.states = {
            node: self._resumed(node, self._rules[name]) for name, nodes in layout.groups.items() for node in nodes
        }

    def _resumed(self, node: str, rule: Rule) -> NodeState:
        """The state of an earlier phase, where it is one of this rule and these parameters; else a fresh one."""
        given, owner = self._segment.states, self._layout.owner
        sharing = [node, *(label for label in owner if owner[label] == node)]
        found = next((given[label] for label in sharing if label in given), NodeState())
        slots: dict[str, dict[str, Any]] = {}
        for name, w in self.parameters[node].items():
            kept = found.slots.get(name, {})
            if set(kept) != set(rule.slots) or any(tuple(kept[slot].shape) != tuple(w.shape) for slot in kept):
                return NodeState()
            slots[name] = {slot: self._ops.move(kept[slot], self._layout.device[node]) for slot in rule.slots}
        return NodeState(found.step, slots)

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

    def stats(self) -> dict[str, tuple[Any, Any]]:
        """Squared norm and finiteness by group, on the device of the first node that has gradients."""
        return {name: self._stats(nodes) for name, nodes in self._layout.groups.items()}

    def _stats(self, nodes: Sequence[str]) -> tuple[Any, Any]:
        xp = self._ops.xp
        found: dict[Device, list[Any]] = {}
        for node in nodes:
            if node in self._gradients:
                found.setdefault(self._layout.device[node], []).extend(self._gradients[node].values())
        if not found:
            return xp.zeros(()), xp.zeros(()) == 0
        squares = [xp.sum(xp.stack([xp.sum(g * g) for g in there])) for there in found.values()]
        finite = [xp.all(xp.stack([xp.all(xp.isfinite(g)) for g in there])) for there in found.values()]
        return xp.sum(self._together(squares, *found)), xp.all(self._together(finite, *found))

    def _together(self, scalars: Sequence[Any], first: Device, *_: Device) -> Any:
        return self._ops.xp.stack([self._ops.move(scalar, first) for scalar in scalars])

    def clips(self) -> dict[str, Any]:
        """The factor of each group that has a `clip_norm`, on the device."""
        xp, limits = self._ops.xp, {group.name: group.optimizer.clip_norm for group in self._segment.groups}
        return {
            name: xp.minimum(1.0, limit / (xp.sqrt(self._stats(self._layout.groups[name])[0]) + 1e-6))
            for name, limit in limits.items()
            if limit is not None
        }

    # -- updates ---------------------------------------------------------------------------------------------------

    def apply(self, scale: Mapping[str, Any]) -> None:
        """One optimizer step of every node that has gradients; then forget them."""
        for name, nodes in self._layout.groups.items():
            for node in nodes:
                if node in self._gradients:
                    self._update(node, self._rules[name], scale.get(name))
        self.discard()

    def _update(self, node: str, rule: Rule, scale: Any) -> None:
        state, parameters = self.states[node], self.parameters[node]
        factor = 1.0 if scale is None else factor_on(self._ops, scale, self._layout.device[node])
        coefficients, slots, after = rule.coefficients(state.step + 1), dict(state.slots), dict(parameters)
        for name, gradient in self._gradients[node].items():
            w = parameters[name]
            g = gradient if scale is None else scaled(gradient, factor)
            before = slots.get(name) or {slot: self._ops.xp.zeros_like(w) for slot in rule.slots}
            updated, slots[name] = rule.update(self._ops.xp, w, g, before, coefficients)
            after[name] = cast(updated, w.dtype)
        self.parameters[node], self.states[node] = after, NodeState(state.step + 1, slots)

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
