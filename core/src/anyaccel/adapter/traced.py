"""TracedProgram: a segment as pure functions that a framework differentiates and compiles as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyaccel.adapter.ops import Function, cast, factor_on, joined, scaled
from anyaccel.adapter.program import ArrayProgram
from anyaccel.adapter.reach import Reach
from anyaccel.adapter.tracing import TracedOps, is_floating, numbers
from anyaccel.adapter.updates import by_node
from anyaccel.adapter.values import Cotangents, Values
from anyaccel.device import Device
from anyaccel.segment import NodeState, Operation, Segment


class TracedProgram(ArrayProgram):
    """The same numbers as `ArrayProgram`, from one compiled function for each act instead of many small ones.

    Where a segment uses several devices and compiled functions may not (`TracedOps.spans`), nothing is compiled as a
    whole. A parameter of a reached model that its outputs do not depend on has a gradient of zeros.

    Raises:
        RecipeError: an optimizer or loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        self._traced = ops
        self._reach = Reach(segment, self._layout)
        reached = self._reach.owners(self._reach.active(()))
        by_group = {group: [one for one in owners if one in reached] for group, owners in self._layout.groups.items()}
        self._reached = [(group, owners) for group, owners in by_group.items() if owners]
        self._whole = ops.spans or len(_devices(segment)) == 1
        self._evaluated: Function = ops.compiled(self._evaluate) if self._whole else self._evaluate
        self._pulled = ops.linear(self._run) if self._whole else partial(ops.pulled, self._run)
        self._repeaters: dict[int, Callable[..., Any]] = {}
        self._key = ops.key(0)
        self._own()

    def seed(self, key: int) -> None:
        """Restart the random streams."""
        super().seed(key)
        self._key = self._traced.key(key)

    # -- the segment as functions ----------------------------------------------------------------------------------

    def _evaluate(self, parameters: Any, buffers: Any, inputs: Any) -> Any:
        values = self._values(inputs)
        for op in self.segment.operations:
            given = tuple(values.on(name, op.device) for name in op.inputs)
            if op.model is None:
                outputs = joined(self._ops, op, given).outputs
            else:
                owner = self._layout.owner[op.label]
                outputs = self._ops.call(op.model, parameters[owner], buffers[owner], given)
            self._enter(op, outputs, values)
        return self._outputs(values), {term.label: loss[:2] for term, loss in self._judge(values)}

    def _run(self, primals: Any, rest: Any) -> tuple[Any, Any]:
        """Values by name that gradients flow back from; and seeds for these, losses, buffers and outputs."""
        values = self._values([primals["inputs"].get(name, rest["inputs"].get(name)) for name in self.segment.inputs])
        changed: dict[str, Any] = {}
        for index, op in enumerate(self.segment.operations):
            self._enter(op, self._applied_to(index, op, values, changed, primals, rest), values)
        judged = self._judge(values)
        live = {name: values.home(name) for name in self._reach.ends if is_floating(values.home(name))}
        others = {
            "seeds": self._seeds(judged, rest["scale"], values, live),
            "losses": {term.label: loss[:2] for term, loss in judged},
            "buffers": changed,
            "outputs": {name: values.home(name) for name in self.segment.outputs if name not in live},
        }
        return live, others

    def _applied_to(
        self, index: int, op: Operation, values: Values, changed: dict[str, Any], primals: Any, rest: Any
    ) -> tuple[Any, ...]:
        given = tuple(values.on(name, op.device) for name in op.inputs)
        if op.model is None:
            return joined(self._ops, op, given).outputs
        owner = self._layout.owner[op.label]
        parameters = (primals if op.label in self._layout.trained else rest)["parameters"][owner]
        buffers = changed.get(owner, rest["buffers"][owner])
        key = self._traced.fold(self._traced.fold(rest["key"], rest["draw"]), index)
        outputs, after = self._traced.apply(op.model, parameters, buffers, given, op.trainable, key)
        if op.trainable and after is not None:
            changed[owner] = after
        return outputs

    def _seeds(self, judged: Any, scale: Any, values: Values, live: Mapping[str, Any]) -> dict[str, Any]:
        flow = Cotangents(self._ops, self._layout.home)
        for term, loss in judged:
            if not live.keys() & set(term.inputs):
                continue
            factor = scale[term.label] if scale else term.weight / loss.weight
            for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
                if gradient is not None and name in live:
                    dtype = live[name].dtype
                    flow.add(name, term.device, cast(self._ops, scaled(self._ops, gradient, factor), dtype))
        found = {name: flow.take(name) for name in live}
        return {name: self._ops.xp.zeros_like(live[name]) if one is None else one for name, one in found.items()}

    # -- one by one ------------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode."""
        outputs, losses = self._evaluated(self._learning.parameters, self._buffers, tuple(inputs))
        return tuple(outputs), {term.label: losses[term.label] for term in self.segment.losses}

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode, and the pullback."""
        self._draws += 1
        parameters = self._learning.parameters
        named = dict(zip(self.segment.inputs, inputs, strict=True))
        primals = {
            "parameters": {owner: parameters[owner] for owner in self._reach.learning},
            "inputs": {name: named[name] for name in self.segment.needs_pullback if is_floating(named[name])},
        }
        rest = {
            "parameters": {owner: parameters[owner] for owner in self._reach.constant},
            "buffers": self._buffers,
            "inputs": {name: value for name, value in named.items() if name not in primals["inputs"]},
            "key": self._key,
            "draw": self._ops.scalar(self._draws),
            "scale": self._scales(scale),
        }
        live, others, pull = self._pulled(primals, rest)
        self._buffers = {**self._buffers, **others["buffers"]}
        outputs = tuple(live[name] if name in live else others["outputs"][name] for name in self.segment.outputs)
        losses = {term.label: tuple(others["losses"][term.label]) for term in self.segment.losses}
        return outputs, losses, partial(self._pull, pull, others["seeds"], named)

    def _scales(self, scale: Mapping[str, Any] | None) -> dict[str, Any]:
        if scale is None:
            return {}
        found = {term.label: factor_on(self._ops, scale[term.label], term.device) for term in self.segment.losses}
        return {label: self._ops.scalar(one) if isinstance(one, float) else one for label, one in found.items()}

    def _pull(
        self, pull: Callable[[Any], Any], seeds: Mapping[str, Any], inputs: Mapping[str, Any], cotangents: Sequence[Any]
    ) -> tuple[Any, ...]:
        given = {name: one for name, one in zip(self.segment.outputs, cotangents, strict=True) if one is not None}
        active, back = self._reach.active(given), {}
        if active:
            found = pull({name: seed + given[name] if name in given else seed for name, seed in seeds.items()})
            for owner in self._reach.owners(active):
                self._learning.add(owner, found["parameters"][owner])
            back = found["inputs"]
        wanted = self.segment.needs_pullback
        return tuple(back[name] if name in back else self._ops.xp.zeros_like(inputs[name]) for name in wanted)

    # -- whole steps -----------------------------------------------------------------------------------------------

    def steps(self, columns: Sequence[Any], orders: Sequence[Any], start: int, count: int, batch: int) -> Any:
        """`count` training steps in one call; mean losses [count, losses] on the device of the first loss."""
        if not self._whole or count == 0 or not self._losses:
            return super().steps(columns, orders, start, count, batch)
        learned = [(group, owner) for group, owners in self._reached for owner in owners]
        learning, parameters = self._learning, self._learning.parameters
        state = {
            "parameters": by_node(parameters, (owner for _, owner in learned)),
            "slots": {owner: learning.slots(group, owner, parameters[owner]) for group, owner in learned},
            "buffers": self._buffers,
        }
        rest = {
            "columns": tuple(columns),
            "orders": tuple(orders),
            "constant": by_node(parameters, self._reach.constant - {owner for _, owner in learned}),
            "idle": by_node(parameters, self._reach.learning - {owner for _, owner in learned}),
            "key": self._key,
        }
        rows = {
            "start": start + batch * np.arange(count),
            "draw": self._draws + 1 + np.arange(count),
            "coefficients": {
                owner: numbers([learning.coefficients(group, owner, i) for i in range(count)])
                for group, owner in learned
            },
        }
        if batch not in self._repeaters:
            self._repeaters[batch] = self._traced.repeated(partial(self._step_of, batch))
        after, means = self._repeaters[batch](state, rest, rows, count)
        learning.take(after["parameters"], after["slots"], count)
        self._buffers, self._draws = after["buffers"], self._draws + count
        return means

    def _step_of(self, batch: int, state: Any, rest: Any, row: Any) -> tuple[Any, Any]:
        """One training step, as a function of what changes, what does not, and the numbers of this step."""
        inputs = [
            self._traced.gather(column, order, row["start"], batch)
            for column, order in zip(rest["columns"], rest["orders"], strict=True)
        ]
        primals = {"parameters": {**state["parameters"], **rest["idle"]}, "inputs": {}}
        others = {
            "parameters": {**rest["constant"], **state["parameters"]},
            "buffers": state["buffers"],
            "inputs": dict(zip(self.segment.inputs, inputs, strict=True)),
            "key": rest["key"],
            "draw": row["draw"],
            "scale": {},
        }
        _, found, pull = self._traced.pulled(self._run, primals, others)
        gradients = pull(found["seeds"])["parameters"]
        parameters, slots = dict(state["parameters"]), dict(state["slots"])
        for group, owners in self._reached:
            new, kept = self._updated(group, by_node(gradients, owners), state, row["coefficients"])
            parameters, slots = {**parameters, **new}, {**slots, **kept}
        after = {"parameters": parameters, "slots": slots, "buffers": {**state["buffers"], **found["buffers"]}}
        return after, self._ops.xp.stack(list(self._means(found["losses"])))

    def _means(self, losses: Mapping[str, Any]) -> Iterator[Any]:
        """Mean losses in one dtype, on the device of the first."""
        first, dtype = self.segment.losses[0], None
        for term in self.segment.losses:
            total, weight = losses[term.label]
            mean = total / weight
            dtype = mean.dtype if dtype is None else dtype
            yield cast(self._ops, self._hop(mean, term.device, first.device), dtype)

    def _updated(self, group: str, gradients: Any, state: Any, coefficients: Any) -> tuple[Any, Any]:
        updates, device = self._learning.updates, self._layout.device
        homes = dict.fromkeys(device[owner] for owner in gradients)
        there = {home: by_node(gradients, (one for one in gradients if device[one] == home)) for home in homes}
        factor, limit, hub = None, updates.limits.get(group), next(iter(homes))
        if limit is not None:
            squares = [updates.measured(mine)[0] for mine in there.values()]
            factor = updates.factor(limit, [self._hop(one, at, hub) for one, at in zip(squares, there, strict=True)])
        parameters: dict[str, Any] = {}
        slots: dict[str, Any] = {}
        for home, mine in there.items():
            scale = None if factor is None else self._hop(factor, hub, home)
            new, kept = updates.updated(group, state["parameters"], state["slots"], mine, coefficients, scale)
            parameters, slots = {**parameters, **new}, {**slots, **kept}
        return parameters, slots

    def _hop(self, array: Any, home: Device, device: Device) -> Any:
        """An array on another device; not asked of the framework where it is there, as it may be traced."""
        return array if home == device else self._ops.move(array, device)

    # -- state -----------------------------------------------------------------------------------------------------

    # What is handed out is the arrays of now; where a step would destroy them, the program goes on with copies.

    def snapshot(self) -> Any:
        """As of `ArrayProgram`."""
        found = super().snapshot()
        self._own()
        return found

    def restore(self, snapshot: Any) -> None:
        """As of `ArrayProgram`."""
        super().restore(snapshot)
        self._own()

    def states(self) -> dict[str, NodeState]:
        """As of `ArrayProgram`."""
        found = super().states()
        self._own()
        return found

    def publish(self) -> None:
        """As of `ArrayProgram`."""
        super().publish()
        self._own()

    def _own(self) -> None:
        if not self._traced.donates:
            return
        learning = self._learning
        learning.parameters = {
            owner: self._copied(there) if owner in self._reach.learning else there
            for owner, there in learning.parameters.items()
        }
        learning.states = {node: self._state_copied(state) for node, state in learning.states.items()}
        self._buffers = {owner: self._copied(there) for owner, there in self._buffers.items()}

    def _copied(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._traced.copied(array) for name, array in arrays.items()}

    def _state_copied(self, state: NodeState) -> NodeState:
        return NodeState(state.step, {name: self._copied(slots) for name, slots in state.slots.items()})


def _devices(segment: Segment) -> set[Device]:
    """Every device that a value of the segment is on."""
    used = {op.device for op in segment.operations} | {term.device for term in segment.losses}
    return used | {device for _, device in segment.inputs.values()}
