"""ArrayProgram: a segment made ready to run by any framework that has `ArrayOps`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel import rng
from anyaccel.adapter.layout import Layout
from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.ops import Applied, ArrayOps, Judged, cast, scaled
from anyaccel.adapter.optimizers import Rule, rule
from anyaccel.adapter.values import Cotangents, Values
from anyaccel.backend import Stepping
from anyaccel.segment import LossTerm, NodeState, Operation, Segment


class ArrayProgram(Stepping):
    """Forward, pullback and update of a segment, in functional style: every step makes new arrays.

    Frozen operations run in evaluation mode: nothing in them changes, and nothing is random. A parameter that no
    gradient has reached is not touched, and a node without any gradient does not count the step. The optimizer state
    of a shared model goes by the label of its first trainable node.

    Raises:
        RecipeError: an optimizer or loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        self.segment = segment
        self._ops = ops
        self._layout = layout = Layout(segment, ops)
        self._rules = {group.name: rule(group.optimizer) for group in segment.groups}
        self._losses = [(term, loss_function(ops, term)) for term in segment.losses]
        # The mappings by node are replaced and never changed, so that a snapshot need not copy them.
        self._parameters = dict(layout.parameters)
        self._buffers: dict[str, Mapping[str, Any]] = {
            label: dict(ops.buffers(model)) for label, model in layout.models.items()
        }
        self._states = {
            node: self._resumed(node, self._rules[name]) for name, nodes in layout.groups.items() for node in nodes
        }
        self._gradients: dict[str, dict[str, Any]] = {}
        self._stream = 0
        self._draws = 0

    def seed(self, key: int) -> None:
        """Restart the random streams."""
        self._stream, self._draws = key, 0

    # -- forward and back ------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode."""
        values = self._values(inputs)
        for op in self.segment.operations:
            self._enter(op, self._called(op, values), values)
        return self._outputs(values), _pairs(self._judge(values))

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode, and the pullback."""
        self._draws += 1
        values = self._values(inputs)
        tape = [(op, self._recorded(op, values)) for op in self.segment.operations]
        judged = self._judge(values)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            flow = Cotangents(self._ops, self._layout.home)
            for name, cotangent in zip(self.segment.outputs, cotangents, strict=True):
                if cotangent is not None:
                    flow.add(name, self._layout.home[name], cotangent)
            for term, loss in judged:
                self._start(term, loss, (scale or {}).get(term.label), values, flow)
            for op, applied in reversed(tape):
                self._back(op, applied, values, flow)
            return tuple(self._cotangent(name, values, flow) for name in self.segment.needs_pullback)

        return self._outputs(values), _pairs(judged), pullback

    def _values(self, inputs: Sequence[Any]) -> Values:
        values = Values(self._ops, self._layout.home)
        for name, value in zip(self.segment.inputs, inputs, strict=True):
            values.put(name, value)
        return values

    def _enter(self, op: Operation, outputs: Sequence[Any], values: Values) -> None:
        for name, output in zip(op.outputs, outputs, strict=True):
            values.put(name, output)

    def _outputs(self, values: Values) -> tuple[Any, ...]:
        return tuple(values.home(name) for name in self.segment.outputs)

    def _judge(self, values: Values) -> list[tuple[LossTerm, Judged]]:
        return [(term, loss([values.on(name, term.device) for name in term.inputs])) for term, loss in self._losses]

    def _called(self, op: Operation, values: Values) -> tuple[Any, ...]:
        given = tuple(values.on(name, op.device) for name in op.inputs)
        if op.model is None:
            return _joined(self._ops, op, given).outputs
        owner = self._layout.owner[op.label]
        return self._ops.call(op.model, self._parameters[owner], self._buffers[owner], given)

    def _recorded(self, op: Operation, values: Values) -> Applied | None:
        """Run an operation and keep its way back; None where nothing will flow back through it."""
        wanted = not self._layout.wanted.isdisjoint(op.outputs)
        if not op.trainable and not wanted:
            self._enter(op, self._called(op, values), values)
            return None
        applied = self._applied(op, tuple(values.on(name, op.device) for name in op.inputs))
        self._enter(op, applied.outputs, values)
        return applied if wanted else None

    def _applied(self, op: Operation, given: tuple[Any, ...]) -> Applied:
        if op.model is None:
            return _joined(self._ops, op, given)
        owner, key = self._layout.owner[op.label], rng.key(self._stream, op.label, self._draws)
        parameters, buffers = self._parameters[owner], self._buffers[owner]
        applied = self._ops.vjp(op.model, parameters, buffers, given, op.trainable, key)
        if op.trainable and applied.buffers is not None:
            self._buffers[owner] = applied.buffers
        return applied

    def _start(self, term: LossTerm, loss: Judged, scale: Any, values: Values, flow: Cotangents) -> None:
        if self._layout.wanted.isdisjoint(term.inputs):
            return
        factor = term.weight / loss.weight if scale is None else scale
        for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
            if gradient is not None and name in self._layout.wanted:
                whole = scaled(self._ops, gradient, factor, term.device)
                flow.add(name, term.device, cast(whole, values.home(name).dtype))

    def _back(self, op: Operation, applied: Applied | None, values: Values, flow: Cotangents) -> None:
        found = [flow.take(name) for name in op.outputs]
        if applied is None or all(cotangent is None for cotangent in found):
            return
        zeros = self._ops.xp.zeros_like
        whole = tuple(
            zeros(out) if cotangent is None else cotangent
            for out, cotangent in zip(applied.outputs, found, strict=True)
        )
        gradients, cotangents = applied.pullback(whole)
        if op.label in self._layout.trained:
            self._add(self._layout.owner[op.label], gradients)
        for name, cotangent in zip(op.inputs, cotangents, strict=True):
            if cotangent is not None and name in self._layout.wanted:
                flow.add(name, op.device, cotangent)

    def _cotangent(self, name: str, values: Values, flow: Cotangents) -> Any:
        cotangent = flow.take(name)
        return self._ops.xp.zeros_like(values.home(name)) if cotangent is None else cotangent

    # -- gradients and updates -------------------------------------------------------------------------------------

    def _add(self, node: str, gradients: Mapping[str, Any]) -> None:
        there = self._gradients.setdefault(node, {})
        for name, gradient in gradients.items():
            there[name] = there[name] + gradient if name in there else gradient

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Squared norm and finiteness by group, on the device of its first node."""
        return {name: self._stats(nodes) for name, nodes in self._layout.groups.items()}

    def _stats(self, nodes: Sequence[str]) -> tuple[Any, Any]:
        xp = self._ops.xp
        found = [gradient for node in nodes for gradient in self._gradients.get(node, {}).values()]
        if not found:
            return xp.zeros(()), xp.zeros(()) == 0
        first = self._layout.device[nodes[0]]
        squares = [self._ops.move(xp.sum(gradient * gradient), first) for gradient in found]
        finite = [self._ops.move(xp.all(xp.isfinite(gradient)), first) for gradient in found]
        return xp.sum(xp.stack(squares)), xp.all(xp.stack(finite))

    def reduce(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient, in the order of the groups' nodes and of the nodes' parameters."""
        for nodes in self._layout.groups.values():
            for node in nodes:
                there = self._gradients.get(node, {})
                there.update({name: fn(there[name]) for name in self._parameters[node] if name in there})

    def apply(self, scale: Mapping[str, Any] | None = None) -> None:
        """One optimizer step; then forget the gradients."""
        for name, nodes in self._layout.groups.items():
            for node in nodes:
                if node in self._gradients:
                    self._update(node, self._rules[name], (scale or {}).get(name))
        self.discard()

    def _update(self, node: str, rule: Rule, scale: Any) -> None:
        state, parameters = self._states[node], self._parameters[node]
        coefficients, slots, after = rule.coefficients(state.step + 1), dict(state.slots), dict(parameters)
        for name, gradient in self._gradients[node].items():
            w = parameters[name]
            g = gradient if scale is None else scaled(self._ops, gradient, scale, self._layout.device[node])
            before = slots.get(name) or {slot: self._ops.xp.zeros_like(w) for slot in rule.slots}
            updated, slots[name] = rule.update(self._ops.xp, w, g, before, coefficients)
            after[name] = cast(updated, w.dtype)
        self._parameters[node], self._states[node] = after, NodeState(state.step + 1, slots)

    def discard(self) -> None:
        """Forget the gradients."""
        self._gradients = {}

    # -- whole steps -----------------------------------------------------------------------------------------------

    def steps(self, columns: Sequence[Any], orders: Sequence[Any], start: int, count: int, batch: int) -> Any:
        """`count` training steps as a plain loop; mean losses [count, losses] on the device of the first loss."""
        pairs = list(zip(columns, orders, strict=True))
        means = []
        for first in range(start, start + count * batch, batch):
            means.append(self._step([self._ops.rows(column, first, first + batch, order) for column, order in pairs]))
        device = self.segment.losses[0].device
        table = [self._ops.move(self._ops.xp.stack(column), device) for column in zip(*means, strict=True)]
        return self._ops.xp.stack(table, axis=1)

    def _step(self, inputs: Sequence[Any]) -> list[Any]:
        _, losses, pullback = self.forward_pullback(inputs)
        pullback([None] * len(self.segment.outputs))
        self.apply(self._clips())
        return [losses[term.label][0] / losses[term.label][1] for term in self.segment.losses]

    def _clips(self) -> dict[str, Any]:
        xp, limits = self._ops.xp, {group.name: group.optimizer.clip_norm for group in self.segment.groups}
        return {
            name: xp.minimum(1.0, limit / (xp.sqrt(self._stats(self._layout.groups[name])[0]) + 1e-6))
            for name, limit in limits.items()
            if limit is not None
        }

    # -- state -----------------------------------------------------------------------------------------------------

    def _resumed(self, node: str, rule: Rule) -> NodeState:
        """The state of an earlier phase, where it is one of this rule and these parameters; else a fresh one."""
        sharing = [node, *(label for label, owner in self._layout.owner.items() if owner == node)]
        found = next((self.segment.states[label] for label in sharing if label in self.segment.states), NodeState())
        slots: dict[str, dict[str, Any]] = {}
        for name, w in self._parameters[node].items():
            kept = found.slots.get(name, {})
            if set(kept) != set(rule.slots) or any(tuple(kept[slot].shape) != tuple(w.shape) for slot in kept):
                return NodeState()
            slots[name] = {slot: self._ops.move(kept[slot], self._layout.device[node]) for slot in rule.slots}
        return NodeState(found.step, slots)

    def snapshot(self) -> Any:
        """Parameters, buffers, optimizer state and random state, as they are now."""
        return dict(self._parameters), dict(self._buffers), dict(self._states), self._stream, self._draws

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot; gradients are forgotten."""
        parameters, buffers, states, self._stream, self._draws = snapshot
        self._parameters, self._buffers, self._states = dict(parameters), dict(buffers), dict(states)
        self.discard()

    def states(self) -> dict[str, NodeState]:
        """The optimizer state by node: of the trained ones as it is now, of all others as it was given."""
        owner = self._layout.owner
        others = {label: state for label, state in self.segment.states.items() if owner.get(label) not in self._states}
        return {**others, **self._states}

    def release(self) -> dict[str, NodeState]:
        """Write parameters and buffers to the user's models and hand out the optimizer state."""
        for label, model in self._layout.models.items():
            self._ops.write(model, self._parameters[label], self._buffers[label])
        return self.states()


def _pairs(judged: Sequence[tuple[LossTerm, Judged]]) -> dict[str, tuple[Any, Any]]:
    return {term.label: (loss.sum, loss.weight) for term, loss in judged}


def _joined(ops: ArrayOps, op: Operation, given: tuple[Any, ...]) -> Applied:
    """The concatenation along an axis of the samples, and the cut that is its pullback."""
    axis = op.axis + 1 if op.axis >= 0 else op.axis + given[0].ndim
    ends = [0, *itertools.accumulate(part.shape[axis] for part in given)]

    def pullback(cotangents: tuple[Any, ...]) -> tuple[dict[str, Any], list[Any]]:
        cut = [(*[slice(None)] * axis, slice(begin, end)) for begin, end in itertools.pairwise(ends)]
        return {}, [cotangents[0][where] for where in cut]

    return Applied((ops.xp.concatenate(given, axis=axis),), pullback)
