"""SegmentFunctions: a segment as pure functions of trees of arrays, for a framework to differentiate and compile."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import Function, LossResult, cast, joined, scaled
from anyaccel.adapter.optimizer_step import Updates, by_node
from anyaccel.adapter.parameter_flattening import Packing, packing
from anyaccel.adapter.segment_analysis import Cotangents, Reach, Values, Wired, devices_of, pairs
from anyaccel.adapter.traced_ops import TracedOps, is_floating
from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation


class SegmentFunctions:
    """What a segment does, with nothing kept. Parameters and slots go by owner, buffers too, values by name.

    Args:
        wired: how values hang together. The models of its operations need not be models.
        ops: the framework.
        reach: what gradients reach.
        updates: what a step does.
        model_of: the model itself, from what an operation has for it.

    Attributes:
        reached: by group, the owners that its losses reach; groups without any are left out.
    """

    def __init__(
        self, wired: Wired, ops: TracedOps, reach: Reach, updates: Updates, model_of: Callable[[Any], Any]
    ) -> None:
        self._wired = wired
        self._model_of = model_of
        self._ops = ops
        self._reach = reach
        self._updates = updates
        self._segment = wired.segment
        self._layout = wired.layout
        found = reach.owners(reach.active(()))
        groups = {group: [one for one in owners if one in found] for group, owners in wired.layout.groups.items()}
        self.reached = {group: owners for group, owners in groups.items() if owners}

    # -- forward ---------------------------------------------------------------------------------------------------

    def evaluate(self, parameters: Any, buffers: Any, inputs: Mapping[str, Any]) -> Any:
        """Outputs, and losses by label, in evaluation mode; inputs that are not there are None."""
        values = self._wired.begin([inputs.get(name) for name in self._segment.inputs])
        for op in self._segment.operations:
            given = self._wired.given(op, values)
            if given is not None:
                self._wired.enter(op, self._called(op, given, parameters, buffers), values)
        return self._outputs(values, ()), pairs(self._wired.judge(values))

    def _called(self, op: Operation, given: tuple[Any, ...], parameters: Any, buffers: Any) -> tuple[Any, ...]:
        if op.model is None:
            return joined(self._ops, op, given).outputs
        owner = self._layout.owner[op.label]
        return self._ops.call(self._model_of(op.model), parameters[owner], buffers[owner], given)

    def _outputs(self, values: Values, others: Container[str]) -> dict[str, Any]:
        """The outputs that there are, by name, but for some others."""
        found = {name: values.home(name) for name in self._segment.outputs if name not in others}
        return {name: value for name, value in found.items() if value is not None}

    def run(self, primals: Any, rest: Any) -> tuple[Any, Any]:
        """The values that gradients come back from; and seeds for these, losses, buffers and the other outputs.

        Args:
            primals: what gradients are wanted of: `parameters` and `inputs`.
            rest: `parameters`, `buffers`, `inputs`, the random `key`, the `draw`, and the `scale` of losses if any.
                Inputs that are in neither are None in this step; a function is compiled for each such set.
        """
        values = self._wired.begin(
            [primals["inputs"].get(name, rest["inputs"].get(name)) for name in self._segment.inputs]
        )
        buffers: dict[str, Any] = {}
        key = self._ops.fold(rest["key"], rest["draw"])
        for index, op in enumerate(self._segment.operations):
            given = self._wired.given(op, values)
            if given is None:
                continue
            if op.model is None:
                outputs = joined(self._ops, op, given).outputs
            else:
                source = primals if op.label in self._layout.trained else rest
                outputs = self._applied(op, given, source["parameters"], rest, buffers, self._ops.fold(key, index))
            self._wired.enter(op, outputs, values)
        judged = self._wired.judge(values)
        ends = {name: values.home(name) for name in self._reach.ends}
        live = {name: value for name, value in ends.items() if value is not None and is_floating(value)}
        others = {
            "seeds": self._seeds(judged, rest["scale"], live),
            "losses": pairs(judged),
            "buffers": buffers,
            "outputs": self._outputs(values, live),
        }
        return live, others

    def _applied(
        self, op: Operation, given: tuple[Any, ...], parameters: Any, rest: Any, buffers: dict[str, Any], key: Any
    ) -> tuple[Any, ...]:
        owner = self._layout.owner[op.label]
        before = buffers.get(owner, rest["buffers"][owner])
        outputs, after = self._ops.apply(self._model_of(op.model), parameters[owner], before, given, op.trainable, key)
        if op.trainable and after is not None:
            buffers[owner] = after
        return outputs

    def _seeds(
        self, judged: Sequence[tuple[LossTerm, LossResult]], scale: Any, live: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The cotangents that the losses begin with."""
        flow = Cotangents(self._ops, self._layout.home)
        for term, loss in judged:
            if live.keys().isdisjoint(term.inputs):
                continue
            factor = scale[term.label] if scale else term.weight / loss.weight
            for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
                if gradient is not None and name in live:
                    seed = cast(self._ops, scaled(self._ops, gradient, factor), live[name].dtype)
                    flow.add(name, term.device, seed)
        found = {name: flow.take(name) for name in live}
        return {name: self._ops.xp.zeros_like(live[name]) if one is None else one for name, one in found.items()}

    # -- a whole step ----------------------------------------------------------------------------------------------

    def packing(self, state: Any) -> Packing:
        """Which models of a state of `step` are packed: none where there are several devices."""
        rules = {owner: self._updates.rules[group] for group, owners in self.reached.items() for owner in owners}
        learned = state["parameters"] if len(devices_of(self._segment)) == 1 else {}
        return packing(self._ops, rules, learned, state["slots"])

    def step(
        self, batch: int, parts: int, state: Any, rest: Any, row: Any, packing: Packing | None = None
    ) -> tuple[Any, Any]:
        """One training step: the state afterwards, and the mean losses.

        Args:
            batch: number of rows.
            parts: in how many parts of equal size they are computed.
            state: what changes: `parameters`, `slots`, `buffers`.
            rest: what does not: `columns`, `orders`, `key`, and the parameters that are `constant` or `idle`.
            row: the numbers of this step: `start`, `draw`, `coefficients`.
            packing: how the state is packed, if it is.
        """
        packing = Packing(self._ops, {}) if packing is None else packing
        part = partial(self._part, batch // parts, packing, packing.unpacked(state["parameters"]), rest, row)
        if parts == 1:
            buffers, found = part(state["buffers"], 0)
        else:
            buffers, found = self._ops.accumulate(part, state["buffers"], parts)
        gradients = found["gradients"]
        parameters, slots = dict(state["parameters"]), dict(state["slots"])
        for group, owners in self.reached.items():
            own = {owner: _shared(gradients[owner], parts) for owner in owners}
            for new, kept in self._updated(group, own, state, row["coefficients"]):
                parameters.update(new)
                slots.update(kept)
        after = {"parameters": parameters, "slots": slots, "buffers": buffers}
        return after, self._ops.xp.stack(list(self._means(found["losses"])))

    def _part(
        self, size: int, packing: Packing, learned: Any, rest: Any, row: Any, buffers: Any, i: Any
    ) -> tuple[Any, Any]:
        """Buffers after the i-th part of a step, and its gradients, packed, and losses."""
        columns = zip(self._segment.inputs, rest["columns"], rest["orders"], strict=True)
        start, draw = (row["start"], row["draw"]) if _is_zero(i) else (row["start"] + i * size, row["draw"] + i)
        inputs = {name: self._ops.gather_batch(column, order, start, size) for name, column, order in columns}
        primals = {"parameters": {**learned, **rest["idle"]}, "inputs": {}}
        others = {
            "parameters": {**rest["constant"], **learned},
            "buffers": buffers,
            "inputs": inputs,
            "key": rest["key"],
            "draw": draw,
            "scale": {},
        }
        _, found, pull = self._ops.value_and_pullback(self.run, primals, others)
        gradients = packing.packed(pull(found["seeds"])["parameters"])
        return {**buffers, **found["buffers"]}, {"gradients": gradients, "losses": found["losses"]}

    def _updated(self, group: str, gradients: Any, state: Any, coefficients: Any) -> Iterator[tuple[Any, Any]]:
        """The parameters and slots of a group, device by device, clipped together."""
        device, limit = self._layout.device, self._updates.limits.get(group)
        homes = dict.fromkeys(device[owner] for owner in gradients)
        there = {home: by_node(gradients, (one for one in gradients if device[one] == home)) for home in homes}
        hub, factor = next(iter(homes)), None
        if limit is not None:
            squares = [self._updates.measured(mine)[0] for mine in there.values()]
            factor = self._updates.factor(
                limit, [self._hop(one, at, hub) for one, at in zip(squares, there, strict=True)]
            )
        for home, mine in there.items():
            scale = None if factor is None else self._hop(factor, hub, home)
            yield self._updates.updated(group, state["parameters"], state["slots"], mine, coefficients, scale)

    def _means(self, losses: Mapping[str, Any]) -> Iterator[Any]:
        """Mean losses in one dtype, on the device of the first."""
        first, dtype = self._segment.losses[0], None
        for term in self._segment.losses:
            total, weight = losses[term.label]
            mean = total / weight
            dtype = mean.dtype if dtype is None else dtype
            yield cast(self._ops, self._hop(mean, term.device, first.device), dtype)

    def _hop(self, array: Any, home: Device, device: Device) -> Any:
        """An array on another device; the framework is not asked where it is, as it may be traced."""
        return array if home == device else self._ops.move(array, device)


class Step:
    """`SegmentFunctions.step` of some rows.

    Args:
        functions: of a segment.
        batch: number of rows.
        parts: in how many parts they are computed.

    Attributes:
        batch: number of rows.
    """

    def __init__(self, functions: SegmentFunctions, batch: int, parts: int) -> None:
        self.batch_size = batch
        self._functions, self._parts = functions, parts

    def __call__(self, state: Any, rest: Any, row: Any) -> tuple[Any, Any]:
        """The state afterwards, and the mean losses."""
        return self._functions.step(self.batch_size, self._parts, state, rest, row)

    def flatten(self, state: Any) -> tuple[Any, Function, Function]:
        """For many steps: the state with small models packed, the step of such a state, and the way to unpack it."""
        found, step = self._functions.packing(state), self._functions.step
        inside = {
            **state,
            "parameters": found.packed(state["parameters"]),
            "slots": found.packed_slots(state["slots"]),
        }
        return inside, partial(step, self.batch_size, self._parts, packing=found), partial(_unpacked, found)


def _unpacked(packing: Packing, state: Any) -> Any:
    parameters, slots = packing.unpacked(state["parameters"]), packing.unpacked_slots(state["slots"])
    return {**state, "parameters": parameters, "slots": slots}


def _shared(gradients: Mapping[str, Any], parts: int) -> dict[str, Any]:
    return {name: gradient if parts == 1 else gradient / parts for name, gradient in gradients.items()}


def _is_zero(i: Any) -> bool:
    return isinstance(i, int) and i == 0
