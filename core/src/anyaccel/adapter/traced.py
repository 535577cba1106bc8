"""TracedProgram: a segment as pure functions that a framework differentiates and compiles as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyaccel.adapter.functions import SegmentFunctions
from anyaccel.adapter.ops import Function, factor_on
from anyaccel.adapter.program import ArrayProgram
from anyaccel.adapter.reach import Reach
from anyaccel.adapter.tracing import TracedOps, is_floating, numbers
from anyaccel.adapter.updates import by_node
from anyaccel.device import Device
from anyaccel.segment import NodeState, Segment


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
        self._functions = functions = SegmentFunctions(self._wired, ops, self._reach, self._learning.updates)
        self._whole = ops.spans or len(_devices(segment)) == 1
        self._evaluated: Function = ops.compiled(functions.evaluate) if self._whole else functions.evaluate
        self._pulled = ops.linear(functions.run) if self._whole else partial(ops.pulled, functions.run)
        self._repeaters: dict[int, Callable[..., Any]] = {}
        self._key = ops.key(0)
        self._own()

    def seed(self, key: int) -> None:
        """Restart the random streams."""
        super().seed(key)
        self._key = self._traced.key(key)

    # -- one by one ------------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode."""
        outputs, losses = self._evaluated(self._learning.parameters, self._buffers, self._named(inputs))
        return tuple(outputs.get(name) for name in self.segment.outputs), self._in_order(losses)

    def _named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The inputs that there are in this step."""
        found = zip(self.segment.inputs, inputs, strict=True)
        return {name: value for name, value in found if value is not None}

    def _in_order(self, losses: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        return {term.label: tuple(losses[term.label]) for term in self.segment.losses if term.label in losses}

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode, and the pullback."""
        self._draws += 1
        parameters = self._learning.parameters
        named = self._named(inputs)
        primals = {
            "parameters": {owner: parameters[owner] for owner in self._reach.learning},
            "inputs": {name: named[name] for name in self._pulled_back(named)},
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
        outputs = tuple(live.get(name, others["outputs"].get(name)) for name in self.segment.outputs)
        losses = self._in_order(others["losses"])
        return outputs, losses, partial(self._pull, pull, others["seeds"], named, tuple(losses))

    def _pulled_back(self, named: Mapping[str, Any]) -> list[str]:
        return [name for name in self.segment.needs_pullback if name in named and is_floating(named[name])]

    def _scales(self, scale: Mapping[str, Any] | None) -> dict[str, Any]:
        if scale is None:
            return {}
        terms = [term for term in self.segment.losses if term.label in scale]
        found = {term.label: factor_on(self._ops, scale[term.label], term.device) for term in terms}
        return {label: self._ops.scalar(one) if isinstance(one, float) else one for label, one in found.items()}

    def _pull(
        self,
        pull: Callable[[Any], Any],
        seeds: Mapping[str, Any],
        inputs: Mapping[str, Any],
        losses: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[Any, ...]:
        together = zip(self.segment.outputs, cotangents, strict=True)
        given = {name: one for name, one in together if one is not None and name in seeds}
        active, back = self._reach.active(given, losses), {}
        if active:
            found = pull({name: seed + given[name] if name in given else seed for name, seed in seeds.items()})
            for owner in self._reach.owners(active):
                self._learning.add(owner, found["parameters"][owner])
            back = found["inputs"]
        return tuple(self._cotangent_of(name, back, inputs) for name in self.segment.needs_pullback)

    def _cotangent_of(self, name: str, back: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        if name in back or name not in inputs:
            return back.get(name)
        return self._ops.xp.zeros_like(inputs[name])

    # -- whole steps -----------------------------------------------------------------------------------------------

    def steps(self, columns: Sequence[Any], orders: Sequence[Any], start: int, count: int, batch: int) -> Any:
        """`count` training steps in one call; mean losses [count, losses] on the device of the first loss."""
        if not self._whole or count == 0 or not self.segment.losses:
            return super().steps(columns, orders, start, count, batch)
        learned = [(group, owner) for group, owners in self._functions.reached.items() for owner in owners]
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
            self._repeaters[batch] = self._traced.repeated(partial(self._functions.step, batch))
        after, means = self._repeaters[batch](state, rest, rows, count)
        learning.take(after["parameters"], after["slots"], count)
        self._buffers, self._draws = after["buffers"], self._draws + count
        return means

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
