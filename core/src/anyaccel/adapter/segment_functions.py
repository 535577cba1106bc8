"""SegmentFunctions: a segment as pure functions of trees of arrays, for a framework to differentiate and compile."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, Function, LossResult, concatenate_vjp, is_differentiable, scaled
from anyaccel.adapter.loss_scaling import KEY, kept_unless, loss_scale_of, scale_after
from anyaccel.adapter.losses import divisor
from anyaccel.adapter.model_outputs import operation_outputs
from anyaccel.adapter.optimizer_step import OptimizerStep, select_nodes, weighted_sum
from anyaccel.adapter.optimizers import UpdateRule
from anyaccel.adapter.segment_analysis import (
    CotangentSums,
    GradientFlow,
    SegmentDataflow,
    StepValues,
    devices_of,
    loss_sums,
)
from anyaccel.adapter.step_profiler import trace_name
from anyaccel.adapter.traced_ops import TracedOps
from anyaccel.device import Device
from anyaccel.formulas import cast
from anyaccel.segment import LossTerm, Operation

MAX_SIZE = 2**17
"""Elements of a model that is flattened; the arithmetic of a larger one outweighs the overhead of its operations."""

Arrays = Mapping[str, Any]
ByOwner = Mapping[str, Arrays]
Shapes = Mapping[str, tuple[int, ...]]


class ParameterFlattening:
    """Converts parameters, gradients and slots by owner: those of some owners to one vector per dtype, and back.

    A vector has the name of its dtype in place of the names of its arrays.

    Args:
        ops: the framework.
        shapes: by owner and dtype, the shapes of arrays by name, in their order in the vector; other owners stay.
    """

    def __init__(self, ops: ArrayOps, shapes: Mapping[str, Mapping[str, Shapes]]) -> None:
        self._ops = ops
        self._shapes = shapes

    def flatten(self, arrays: ByOwner) -> dict[str, Any]:
        """Arrays by owner and name, as vectors."""
        return {owner: self._vectors(owner, named) for owner, named in arrays.items()}

    def unflatten(self, arrays: ByOwner) -> dict[str, Any]:
        """The inverse of `flatten`."""
        return {owner: self._arrays(owner, vectors) for owner, vectors in arrays.items()}

    def flatten_slots(self, slots: ByOwner) -> dict[str, Any]:
        """Slots by owner, name and slot, as vectors."""
        return {owner: self._slot_vectors(owner, named) for owner, named in slots.items()}

    def unflatten_slots(self, slots: ByOwner) -> dict[str, Any]:
        """The inverse of `flatten_slots`."""
        return {owner: self._slot_arrays(owner, vectors) for owner, vectors in slots.items()}

    def _vectors(self, owner: str, arrays: Arrays) -> Arrays:
        if owner not in self._shapes:
            return arrays
        return {dtype: self._vector(arrays, shapes) for dtype, shapes in self._shapes[owner].items()}

    def _vector(self, arrays: Arrays, shapes: Shapes) -> Any:
        return self._ops.xp.concatenate([self._ops.xp.reshape(arrays[name], (-1,)) for name in shapes])

    def _arrays(self, owner: str, vectors: Arrays) -> Arrays:
        if owner not in self._shapes:
            return vectors
        arrays: dict[str, Any] = {}
        for dtype, shapes in self._shapes[owner].items():
            begin = 0
            for name, shape in shapes.items():
                end = begin + math.prod(shape)
                arrays[name] = self._ops.xp.reshape(vectors[dtype][begin:end], shape)
                begin = end
        return arrays

    def _slot_vectors(self, owner: str, arrays: Arrays) -> Arrays:
        if owner not in self._shapes:
            return arrays
        slots = _slot_names(arrays)
        each = {slot: self._vectors(owner, {name: kept[slot] for name, kept in arrays.items()}) for slot in slots}
        return {dtype: {slot: each[slot][dtype] for slot in slots} for dtype in self._shapes[owner]}

    def _slot_arrays(self, owner: str, vectors: Arrays) -> Arrays:
        if owner not in self._shapes:
            return vectors
        slots = _slot_names(vectors)
        each = {slot: self._arrays(owner, {dtype: kept[slot] for dtype, kept in vectors.items()}) for slot in slots}
        names = [name for shapes in self._shapes[owner].values() for name in shapes]
        return {name: {slot: each[slot][name] for slot in slots} for name in names}


def plan_flattening(
    ops: ArrayOps, rules: Mapping[str, UpdateRule], parameters: ByOwner, slots: ByOwner
) -> ParameterFlattening:
    """Flatten small models of several arrays whose update rule is elementwise.

    Args:
        ops: the framework.
        rules: by owner.
        parameters: by owner and name.
        slots: by owner, name and slot.
    """
    shapes = {
        owner: _shapes_by_dtype(arrays)
        for owner, arrays in parameters.items()
        if _is_worth_it(rules[owner], arrays) and _have_own_dtype(slots[owner], arrays)
    }
    return ParameterFlattening(ops, shapes)


def _is_worth_it(rule: UpdateRule, arrays: Arrays) -> bool:
    size = sum(math.prod(array.shape) for array in arrays.values())
    return rule.elementwise and len({str(array.dtype) for array in arrays.values()}) < len(arrays) and size <= MAX_SIZE


def _have_own_dtype(slots: Mapping[str, Arrays], arrays: Arrays) -> bool:
    """Whether slots have the dtypes of their parameters."""
    return all(slot.dtype == array.dtype for name, array in arrays.items() for slot in slots[name].values())


def _shapes_by_dtype(arrays: Arrays) -> dict[str, dict[str, tuple[int, ...]]]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, array in arrays.items():
        shapes.setdefault(str(array.dtype), {})[name] = tuple(array.shape)
    return shapes


def _slot_names(arrays: Mapping[str, Arrays]) -> Iterable[str]:
    return list(next(iter(arrays.values())))


_READABLE = 40
"""Characters of nodes' names in the names of compiled functions."""


class SegmentFunctions:
    """The computations of a segment, without state. Parameters, slots and buffers go by owner, values by name.

    Args:
        dataflow: operations and losses. The models of the operations may be stand-ins.
        ops: the framework.
        flow: where gradients flow.
        optimizer: what an optimizer step computes.
        model_of: the model of an operation, from what the operation holds for it.

    Attributes:
        reached: by group, the owners that its losses reach; groups without any are left out.
        tracing: entered around each computation.
        suffix: of the names of compiled functions, made of the nodes' names: a cache of compiled programs that tells
            them apart by name and computation, as that of JAX, then keeps those of other nodes apart.
    """

    def __init__(
        self,
        dataflow: SegmentDataflow,
        ops: TracedOps,
        flow: GradientFlow,
        optimizer: OptimizerStep,
        model_of: Callable[[Any], Any],
    ) -> None:
        self.tracing: Callable[[], AbstractContextManager[None]] = nullcontext
        self._dataflow = dataflow
        self._model_of = model_of
        self._ops = ops
        self._flow = flow
        self._optimizer = optimizer
        self._segment = dataflow.segment
        self._loss_scale = loss_scale_of(dataflow.segment)
        self._layout = dataflow.layout
        self._names = {op.label: trace_name(op.label) for op in self._segment.operations}
        self.suffix = _identifier([*self._names.values()])
        self._numbers = {op.label: number for number, op in enumerate(self._segment.operations)}
        reached = flow.reached_owners(flow.active_ends(()))
        groups = {
            group: [owner for owner in owners if owner in reached] for group, owners in self._layout.groups.items()
        }
        self.reached = {group: owners for group, owners in groups.items() if owners}

    # -- forward ---------------------------------------------------------------------------------------------------

    def evaluate(self, parameters: Any, buffers: Any, inputs: Mapping[str, Any]) -> Any:
        """Outputs by name and losses by label in evaluation mode; a missing input is left out of `inputs`."""
        call = partial(self._evaluate, parameters, buffers)
        with self.tracing():
            values = self._dataflow.run([inputs.get(name) for name in self._segment.inputs], call)
            return self._outputs(values, ()), loss_sums(self._dataflow.losses(values))

    def _evaluate(self, parameters: Any, buffers: Any, op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if op.model is None:
            return concatenate_vjp(self._ops, op, inputs).outputs
        owner = self._layout.owner[op.label]
        call, keywords = self._ops.call, self._dataflow.calls[op.label]
        with self._ops.named_scope(self._names[op.label]):
            outputs = call(self._model_of(op.model), parameters[owner], buffers[owner], inputs, **keywords)
        return tuple(operation_outputs(op, outputs, training=False))

    def _outputs(self, values: StepValues, excluded: Container[str]) -> dict[str, Any]:
        """The outputs that are not missing, by name."""
        outputs = {name: values.at_home(name) for name in self._segment.outputs if name not in excluded}
        return {name: value for name, value in outputs.items() if value is not None}

    def forward(self, primals: Any, rest: Any) -> tuple[Any, Any]:
        """The segment in training mode, as `TracedOps.value_and_pullback` takes it.

        Args:
            primals: what gradients are wanted of: `parameters` and `inputs`.
            rest: `parameters`, `buffers`, `inputs`, the random `key`, the `draw`, the `scale` of losses if any, and
                the `loss_scale` of all where there is one. Inputs in neither are missing in this step; each such set is
                compiled separately.

        Returns:
            the values that gradients come back from; and their `seeds`, `losses`, `buffers` and the other `outputs`.
        """
        inputs = [primals["inputs"].get(name, rest["inputs"].get(name)) for name in self._segment.inputs]
        buffers: dict[str, Any] = {}
        key = self._ops.fold(rest["key"], rest["draw"])
        with self.tracing():
            values = self._dataflow.run(inputs, partial(self._apply, primals, rest, buffers, key))
            losses = self._dataflow.losses(values)
        ends = {name: values.at_home(name) for name in self._flow.ends}
        live = {
            name: value for name, value in ends.items() if value is not None and is_differentiable(self._ops, value)
        }
        return live, {
            "seeds": self._seeds(losses, rest["scale"], rest.get(KEY), live),
            "losses": loss_sums(losses),
            "buffers": buffers,
            "outputs": self._outputs(values, live),
        }

    def _apply(
        self, primals: Any, rest: Any, buffers: dict[str, Any], key: Any, op: Operation, inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if op.model is None:
            return concatenate_vjp(self._ops, op, inputs).outputs
        owner, source = self._layout.owner[op.label], primals if op.label in self._layout.trained else rest
        before, model = buffers.get(owner, rest["buffers"][owner]), self._model_of(op.model)
        own_key = self._ops.fold(key, self._numbers[op.label])
        keywords = (self._dataflow.training_calls if op.trainable else self._dataflow.calls)[op.label]
        parameters = source["parameters"][owner]
        with self._ops.named_scope(self._names[op.label]):
            outputs, after = self._ops.apply(model, parameters, before, inputs, op.trainable, own_key, **keywords)
        if op.trainable and after is not None:
            buffers[owner] = after
        return tuple(operation_outputs(op, outputs, training=op.trainable))

    def _seeds(
        self, losses: Sequence[tuple[LossTerm, LossResult]], scale: Any, loss_scale: Any, live: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The cotangents of the live values, from the losses, each times its factor and all times `loss_scale`."""
        sums = CotangentSums(self._ops, self._layout.home)
        for term, loss in losses:
            if live.keys().isdisjoint(term.inputs):
                continue
            default = term.weight / divisor(self._ops, term, loss.weight)
            factor = scale.get(term.label, default)
            factor = factor if loss_scale is None else factor * loss_scale
            for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
                if gradient is not None and name in live:
                    seed = cast(self._ops, scaled(self._ops, gradient, factor), live[name].dtype)
                    sums.add(name, term.device, seed)
        seeds = {name: sums.take(name) for name in live}
        zeros = self._ops.xp.zeros_like
        return {name: zeros(live[name]) if seed is None else seed for name, seed in seeds.items()}

    # -- a whole step ----------------------------------------------------------------------------------------------

    def flattening(self, state: Any) -> ParameterFlattening:
        """Which models of a `train_step` state are flattened: none where there are several devices."""
        rules = {owner: self._optimizer.rules[group] for group, owners in self.reached.items() for owner in owners}
        constrained, whole = self._optimizer.constraints, len(devices_of(self._segment)) == 1
        parameters = {owner: a for owner, a in state["parameters"].items() if whole and owner not in constrained}
        return plan_flattening(self._ops, rules, parameters, state["slots"])

    def train_step(
        self,
        batch_size: int,
        n_microbatches: int,
        state: Any,
        rest: Any,
        scalars: Any,
        flattening: ParameterFlattening | None = None,
    ) -> tuple[Any, Any]:
        """One training step: the state afterwards, and the mean losses.

        Args:
            batch_size: rows of the step.
            n_microbatches: parts of equal size in which they are computed.
            state: what changes: `parameters`, `slots`, `buffers`, and `loss_scale` where losses are scaled.
            rest: what does not: `columns`, `orders`, `key`, and the parameters that are `constant` or `idle`.
            scalars: of this step: `start`, `draw`, `coefficients`.
            flattening: how the state is flattened, if it is.
        """
        flattening = ParameterFlattening(self._ops, {}) if flattening is None else flattening
        parameters = flattening.unflatten(state["parameters"])
        scale = self._microbatch_scale(batch_size, n_microbatches, rest, scalars) if n_microbatches > 1 else {}
        rest = {**rest, "scale": scale, **({KEY: state[KEY][0]} if KEY in state else {})}
        microbatch = partial(self._microbatch, batch_size // n_microbatches, flattening, parameters, rest, scalars)
        if n_microbatches == 1:
            buffers, sums = microbatch(state["buffers"], 0)
        else:
            buffers, sums = self._ops.accumulate(microbatch, state["buffers"], n_microbatches)
        means = list(self._mean_losses(sums["losses"]))
        value = weighted_sum(means, self._segment.losses) if self._optimizer.needs_value else None
        averages = {owner: _average(grads, n_microbatches) for owner, grads in sums["gradients"].items()}
        averages, finite = self._unscaled(averages, state)
        after = {**self._optimizer_step(averages, state, scalars["coefficients"], value), "buffers": buffers}
        if finite is not None and self._loss_scale is not None:
            kept = {name: kept_unless(self._ops, finite, after[name], state[name]) for name in ("parameters", "slots")}
            after = {**after, **kept, KEY: scale_after(self._ops, self._loss_scale, state[KEY], finite)}
        return after, self._ops.xp.stack(means)

    def _optimizer_step(self, gradients: Any, state: Any, coefficients: Any, value: Any) -> dict[str, Any]:
        """The `parameters` and `slots` of a state after a step with gradients by owner."""
        parameters, slots = dict(state["parameters"]), dict(state["slots"])
        with self.tracing():
            for group, owners in self.reached.items():
                own = {owner: gradients[owner] for owner in owners}
                for updated, kept in self._updates(
                    group, own, state, self._optimizer.with_value(group, coefficients, value)
                ):
                    parameters.update(updated)
                    slots.update(kept)
        return {"parameters": parameters, "slots": slots}

    def _unscaled(self, gradients: Any, state: Any) -> tuple[Any, Any]:
        """Gradients by owner divided by the loss scale, and whether all are finite; as they are, and None without."""
        if KEY not in state:
            return gradients, None
        inverse = 1.0 / state[KEY][0]
        reached = [owner for owners in self.reached.values() for owner in owners]
        unscaled = {
            owner: {name: scaled(self._ops, gradient, inverse) for name, gradient in gradients[owner].items()}
            for owner in reached
        }
        return unscaled, self._optimizer.gradient_stats(unscaled)[1]

    def _microbatch(
        self, size: int, flattening: ParameterFlattening, trained: Any, rest: Any, scalars: Any, buffers: Any, i: Any
    ) -> tuple[Any, Any]:
        """Buffers after the i-th micro-batch of a step, and its flattened gradients and losses."""
        columns = zip(self._segment.inputs, rest["columns"], rest["orders"], strict=True)
        start, draw = scalars["start"], scalars["draw"]
        if not (isinstance(i, int) and i == 0):
            start, draw = start + i * size, draw + i
        primals = {"parameters": {**trained, **rest["idle"]}, "inputs": {}}
        others = {
            "parameters": {**rest["constant"], **trained},
            "buffers": buffers,
            "inputs": {name: self._ops.gather_batch(column, order, start, size) for name, column, order in columns},
            "key": rest["key"],
            "draw": draw,
            "scale": rest["scale"],
            **({KEY: rest[KEY]} if KEY in rest else {}),
        }
        _, results, pull = self._ops.value_and_pullback(self.forward, primals, others)
        gradients = flattening.flatten(pull(results["seeds"])["parameters"])
        return {**buffers, **results["buffers"]}, {"gradients": gradients, "losses": results["losses"]}

    def _microbatch_scale(self, batch_size: int, n_microbatches: int, rest: Any, scalars: Any) -> dict[str, Any]:
        """Factors of sums in each micro-batch, before gradients are averaged, of losses that weigh rows."""
        weighted = self._dataflow.weighted
        needed = {name for names in weighted.values() for name in names}
        columns = zip(self._segment.inputs, rest["columns"], rest["orders"], strict=True)
        whole = {
            name: self._ops.gather_batch(column, order, scalars["start"], batch_size)
            for name, column, order in columns
            if name in needed
        }
        weights = self._dataflow.loss_weights(whole)
        return {term.label: n_microbatches * term.weight / weights[term.label] for term in weighted}

    def _updates(self, group: str, gradients: Any, state: Any, coefficients: Any) -> Iterator[tuple[Any, Any]]:
        """The new parameters and slots of a group, device by device, clipped by their common norm."""
        device, limit = self._layout.owner_device, self._optimizer.clip_norms.get(group)
        devices = dict.fromkeys(device[owner] for owner in gradients)
        by_device = {d: select_nodes(gradients, (owner for owner in gradients if device[owner] == d)) for d in devices}
        first, factor = next(iter(devices)), None
        if limit is not None:
            squares = [
                self._moved(self._optimizer.gradient_stats(grads)[0], d, first) for d, grads in by_device.items()
            ]
            factor = self._optimizer.clip_factor(limit, squares)
        for d, grads in by_device.items():
            scale = None if factor is None else self._moved(factor, first, d)
            yield self._optimizer.update(group, state["parameters"], state["slots"], grads, coefficients, scale)

    def _mean_losses(self, losses: Mapping[str, Any]) -> Iterator[Any]:
        """Mean losses, and weights of those that weigh rows, in one dtype, on the device of the first."""
        first, dtype = self._segment.losses[0], losses[self._segment.losses[0].label][0].dtype
        for term in self._segment.losses:
            total, weight = losses[term.label]
            mean = total / divisor(self._ops, term, weight)
            yield cast(self._ops, self._moved(mean, term.device, first.device), dtype)
        for term in self._dataflow.weighted:
            weight = losses[term.label][1]
            yield cast(self._ops, self._moved(weight, term.device, first.device), dtype)

    def _moved(self, array: Any, home: Device, device: Device) -> Any:
        """An array on another device; a traced array cannot say where it is."""
        return array if home == device else self._ops.move(array, device)


class TrainStep:
    """`SegmentFunctions.train_step` for batches of one size: a `StepFunction`.

    Args:
        functions: of a segment.
        batch_size: rows of a step.
        n_microbatches: parts in which they are computed.
    """

    def __init__(self, functions: SegmentFunctions, batch_size: int, n_microbatches: int) -> None:
        self.batch_size = batch_size
        self.__name__ = f"train_step_{functions.suffix}"
        self._functions, self._n_microbatches = functions, n_microbatches

    def __call__(self, state: Any, rest: Any, scalars: Any) -> tuple[Any, Any]:
        """The state afterwards, and the mean losses."""
        return self._functions.train_step(self.batch_size, self._n_microbatches, state, rest, scalars)

    def flatten(self, state: Any) -> tuple[Any, Function, Function]:
        """As `StepFunction.flatten`."""
        flattening = self._functions.flattening(state)
        flat = {
            **state,
            "parameters": flattening.flatten(state["parameters"]),
            "slots": flattening.flatten_slots(state["slots"]),
        }
        step = partial(self._functions.train_step, self.batch_size, self._n_microbatches, flattening=flattening)
        return flat, step, partial(_unflatten, flattening)


def _unflatten(flattening: ParameterFlattening, state: Any) -> Any:
    parameters, slots = flattening.unflatten(state["parameters"]), flattening.unflatten_slots(state["slots"])
    return {**state, "parameters": parameters, "slots": slots}


def _identifier(names: Sequence[str]) -> str:
    """The beginning of the names, and a digest of all of them."""
    readable = re.sub(r"\W+", "_", "_".join(names), flags=re.ASCII)[:_READABLE].strip("_")
    return f"{readable}_{sha256(repr(list(names)).encode()).hexdigest()[:8]}"


def _average(gradients: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: gradient if count == 1 else gradient / count for name, gradient in gradients.items()}
