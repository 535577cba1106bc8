"""SegmentFunctions: a segment as pure functions of trees of arrays, for a framework to differentiate and compile."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, Function, LossResult, concatenate_vjp, is_differentiable, scaled
from anyaccel.adapter.call_layout import POSITIONAL, layout_of
from anyaccel.adapter.loss_scaling import KEY, kept_unless, loss_scale_of, scale_after
from anyaccel.adapter.losses import divisor, loss_function, total_weight, weight_inputs
from anyaccel.adapter.model_outputs import operation_outputs
from anyaccel.adapter.optimizer_step import OptimizerStep, select_nodes, weighted_sum
from anyaccel.adapter.optimizers import UpdateRule
from anyaccel.adapter.step_profiler import trace_name
from anyaccel.adapter.traced_ops import TracedOps
from anyaccel.device import Device
from anyaccel.errors import GraphError
from anyaccel.formulas import cast
from anyaccel.segment import LossTerm, Operation, Segment

MAX_SIZE = 2**17
"""Elements of a model that is flattened; the arithmetic of a larger one outweighs the overhead of its operations."""

Arrays = Mapping[str, Any]
ByOwner = Mapping[str, Arrays]
Shapes = Mapping[str, tuple[int, ...]]


class ParameterFlattening:
    """Convert parameters, gradients and slots by owner: those of some owners to one vector per dtype, and back.

    A vector has the name of its dtype instead of the names of its arrays. Slots are dicts of arrays, and stay such.

    Args:
        ops: The framework.
        shapes: By owner and dtype, the shapes of arrays by name, in their order in the vector; other owners are
            unchanged.
    """

    def __init__(self, ops: ArrayOps, shapes: Mapping[str, Mapping[str, Shapes]]) -> None:
        self._ops = ops
        self._shapes = shapes

    def flatten(self, arrays: ByOwner) -> dict[str, Any]:
        """Return arrays, or slots, by owner and name as vectors."""
        return {
            owner: {
                dtype: self._joined([named[name] for name in shapes]) for dtype, shapes in self._shapes[owner].items()
            }
            if owner in self._shapes
            else named
            for owner, named in arrays.items()
        }

    def _joined(self, arrays: Sequence[Any]) -> Any:
        if isinstance(arrays[0], Mapping):
            return {slot: self._joined([slots[slot] for slots in arrays]) for slot in arrays[0]}
        return self._ops.xp.concatenate([self._ops.xp.reshape(array, (-1,)) for array in arrays])

    def unflatten(self, vectors: ByOwner) -> dict[str, Any]:
        """Invert `flatten`."""
        unflattened: dict[str, Any] = dict(vectors)
        for owner in filter(self._shapes.__contains__, vectors):
            unflattened[owner] = {}
            for dtype, shapes in self._shapes[owner].items():
                begin = 0
                for name, shape in shapes.items():
                    unflattened[owner][name] = self._part(vectors[owner][dtype], begin, shape)
                    begin += math.prod(shape)
        return unflattened

    def _part(self, vector: Any, begin: int, shape: tuple[int, ...]) -> Any:
        if isinstance(vector, Mapping):
            return {slot: self._part(inner, begin, shape) for slot, inner in vector.items()}
        return self._ops.xp.reshape(vector[begin : begin + math.prod(shape)], shape)


def plan_flattening(
    ops: ArrayOps, rules: Mapping[str, UpdateRule], parameters: ByOwner, slots: ByOwner
) -> ParameterFlattening:
    """Plan the flattening of small models of several arrays whose update rule is elementwise.

    Args:
        ops: The framework.
        rules: Rules by owner.
        parameters: Arrays by owner and name.
        slots: Arrays by owner, name and slot.
    """
    by_owner: dict[str, dict[str, dict[str, tuple[int, ...]]]] = {}
    for owner, arrays in parameters.items():
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, array in arrays.items():
            shapes.setdefault(str(array.dtype), {})[name] = tuple(array.shape)
        is_small = len(shapes) < len(arrays) and sum(math.prod(x.shape) for x in arrays.values()) <= MAX_SIZE
        slots_have_dtypes = all(
            slot.dtype == array.dtype for name, array in arrays.items() for slot in slots[owner][name].values()
        )
        if rules[owner].elementwise and is_small and slots_have_dtypes:
            by_owner[owner] = shapes
    return ParameterFlattening(ops, by_owner)


_READABLE = 40
"""Characters of nodes' names in the names of compiled functions."""


class SegmentFunctions:
    """The computations of a segment, without state. Parameters, slots and buffers are by owner, values by name.

    Args:
        dataflow: Operations and losses. The models of the operations may be stand-ins.
        ops: The framework.
        flow: Where gradients flow.
        optimizer: Computation of an optimizer step.
        model_of: Function that returns the model of an operation.

    Attributes:
        reached: By group, the owners that its losses reach; groups without any are left out.
        tracing: Context entered around each computation.
        suffix: Suffix of the names of compiled functions, built from the nodes' names. A cache of compiled programs
            that keys them by name and computation, like JAX's, then separates those of different nodes.
        names, numbers: Names of the operations in profiles, and their numbers for random keys, by label.
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
        self.names = {op.label: trace_name(op.label) for op in self._segment.operations}
        # The beginning of the names, and a digest of all of them.
        names = [*self.names.values()]
        readable = re.sub(r"\W+", "_", "_".join(names), flags=re.ASCII)[:_READABLE].strip("_")
        self.suffix = f"{readable}_{sha256(repr(list(names)).encode()).hexdigest()[:8]}"
        self.numbers = {op.label: number for number, op in enumerate(self._segment.operations)}
        reached = flow.reached_owners(flow.active_ends(()))
        groups = {
            group: [owner for owner in owners if owner in reached] for group, owners in self._layout.groups.items()
        }
        self.reached = {group: owners for group, owners in groups.items() if owners}

    # -- forward ---------------------------------------------------------------------------------------------------

    def evaluate(self, parameters: Any, buffers: Any, inputs: Mapping[str, Any]) -> Any:
        """Return outputs by name and losses by label in evaluation mode; a missing input is left out of `inputs`."""
        call = partial(self._evaluate, parameters, buffers)
        with self.tracing():
            values = self._dataflow.run([inputs.get(name) for name in self._segment.inputs], call)
            return self._outputs(values, ()), loss_sums(self._dataflow.losses(values))

    def _evaluate(self, parameters: Any, buffers: Any, op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if op.model is None:
            return concatenate_vjp(self._ops, op, inputs).outputs
        owner = self._layout.owner[op.label]
        call, keywords = self._ops.call, self._dataflow.calls[op.label]
        with self._ops.named_scope(self.names[op.label]):
            outputs = call(self._model_of(op.model), parameters[owner], buffers[owner], inputs, **keywords)
        return tuple(operation_outputs(op, outputs, training=False))

    def _outputs(self, values: StepValues, excluded: Container[str]) -> dict[str, Any]:
        """Return the outputs that are not missing, by name."""
        outputs = {name: values.at_home(name) for name in self._segment.outputs if name not in excluded}
        return {name: value for name, value in outputs.items() if value is not None}

    def forward(self, primals: Any, rest: Any) -> tuple[Any, Any]:
        """Compute the segment in training mode, in the form that `TracedOps.value_and_pullback` takes.

        Args:
            primals: Values that need gradients: `parameters` and `inputs`.
            rest: `parameters`, `buffers`, `inputs`, the random `key`, the `draw`, the `scale` of losses if any, and the
                `loss_scale` of all if there is one. Inputs in neither are missing in this step; each such set is
                compiled separately.

        Returns:
            The values that gradients flow back from; and their `seeds`, `losses`, `buffers` and the other `outputs`.
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
        own_key = self._ops.fold(key, self.numbers[op.label])
        keywords = (self._dataflow.training_calls if op.trainable else self._dataflow.calls)[op.label]
        parameters = source["parameters"][owner]
        with self._ops.named_scope(self.names[op.label]):
            outputs, after = self._ops.apply(model, parameters, before, inputs, op.trainable, own_key, **keywords)
        if op.trainable and after is not None:
            buffers[owner] = after
        return tuple(operation_outputs(op, outputs, training=op.trainable))

    def _seeds(
        self, losses: Sequence[tuple[LossTerm, LossResult]], scale: Any, loss_scale: Any, live: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the cotangents of the live values, from the losses, each times its factor and all times
        `loss_scale`.
        """
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
        """Return which models of a `train_step` state are flattened: none if there are several devices."""
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
        """Run one training step; return the new state and the mean losses.

        Args:
            batch_size: Rows of the step.
            n_microbatches: Number of micro-batches of equal size.
            state: Values that change: `parameters`, `slots`, `buffers`, and `loss_scale` if losses are scaled.
            rest: Values that do not change: `columns`, `orders`, `key`, and the parameters that are `constant` or
                `idle`.
            scalars: Scalars of this step: `start`, `draw`, `coefficients`.
            flattening: How the state is flattened, if it is.
        """
        flattening = ParameterFlattening(self._ops, {}) if flattening is None else flattening
        parameters = flattening.unflatten(state["parameters"])
        scale: dict[str, Any] = {}
        if n_microbatches > 1:
            gather, start = self._ops.gather_batch, scalars["start"]
            scale = self._dataflow.microbatch_scale(
                n_microbatches, rest["columns"], rest["orders"], lambda x, order: gather(x, order, start, batch_size)
            )
        rest = {**rest, "scale": scale, **({KEY: state[KEY][0]} if KEY in state else {})}
        microbatch = partial(self._microbatch, batch_size // n_microbatches, flattening, parameters, rest, scalars)
        if n_microbatches == 1:
            buffers, sums = microbatch(state["buffers"], 0)
        else:
            buffers, sums = self._ops.accumulate(microbatch, state["buffers"], n_microbatches)
        means = list(self._mean_losses(sums["losses"]))
        value = weighted_sum(means, self._segment.losses) if self._optimizer.needs_value else None
        averages = {
            owner: {
                name: gradient if n_microbatches == 1 else gradient / n_microbatches for name, gradient in of.items()
            }
            for owner, of in sums["gradients"].items()
        }
        finite = None
        if KEY in state:
            inverse = 1.0 / state[KEY][0]
            reached = [owner for owners in self.reached.values() for owner in owners]
            averages = {
                owner: {name: scaled(self._ops, gradient, inverse) for name, gradient in averages[owner].items()}
                for owner in reached
            }
            finite = self._optimizer.gradient_stats(averages)[1]
        parameters, slots = dict(state["parameters"]), dict(state["slots"])
        with self.tracing():
            for group, owners in self.reached.items():
                coefficients = self._optimizer.with_value(group, scalars["coefficients"], value)
                gradients = {owner: averages[owner] for owner in owners}
                for updated, kept_slots in self._updates(group, gradients, state, coefficients):
                    parameters.update(updated)
                    slots.update(kept_slots)
        after = {"parameters": parameters, "slots": slots, "buffers": buffers}
        if finite is not None and self._loss_scale is not None:
            kept = {name: kept_unless(self._ops, finite, after[name], state[name]) for name in ("parameters", "slots")}
            after = {**after, **kept, KEY: scale_after(self._ops, self._loss_scale, state[KEY], finite)}
        return after, self._ops.xp.stack(means)

    def _microbatch(
        self, size: int, flattening: ParameterFlattening, trained: Any, rest: Any, scalars: Any, buffers: Any, i: Any
    ) -> tuple[Any, Any]:
        """Return the buffers after the i-th micro-batch of a step, and its flattened gradients and losses."""
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

    def _updates(self, group: str, gradients: Any, state: Any, coefficients: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the new parameters and slots of a group, device by device, clipped by their common norm."""
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
        """Yield mean losses, and weights of those that weigh rows, in one dtype, on the device of the first."""
        first, dtype = self._segment.losses[0], losses[self._segment.losses[0].label][0].dtype
        for term in self._segment.losses:
            total, weight = losses[term.label]
            mean = total / divisor(self._ops, term, weight)
            yield cast(self._ops, self._moved(mean, term.device, first.device), dtype)
        for term in self._dataflow.weighted:
            weight = losses[term.label][1]
            yield cast(self._ops, self._moved(weight, term.device, first.device), dtype)

    def _moved(self, array: Any, home: Device, device: Device) -> Any:
        """Return an array on another device; `home` is its device, which a traced array does not know."""
        return array if home == device else self._ops.move(array, device)


class TrainStep:
    """`SegmentFunctions.train_step` for batches of one size: a `StepFunction`.

    Args:
        functions: Functions of a segment.
        batch_size: Rows of a step.
        n_microbatches: Number of micro-batches of a step.
    """

    def __init__(self, functions: SegmentFunctions, batch_size: int, n_microbatches: int) -> None:
        self.batch_size = batch_size
        self.__name__ = f"train_step_{functions.suffix}"
        self._functions, self._n_microbatches = functions, n_microbatches

    def __call__(self, state: Any, rest: Any, scalars: Any) -> tuple[Any, Any]:
        return self._functions.train_step(self.batch_size, self._n_microbatches, state, rest, scalars)

    def flatten(self, state: Any) -> tuple[Any, Function, Function]:
        flattening = self._functions.flattening(state)
        flat = {
            **state,
            "parameters": flattening.flatten(state["parameters"]),
            "slots": flattening.flatten(state["slots"]),
        }
        step = partial(self._functions.train_step, self.batch_size, self._n_microbatches, flattening=flattening)

        def unflatten(state: Any) -> Any:
            return {**state, **{name: flattening.unflatten(state[name]) for name in ("parameters", "slots")}}

        return flat, step, unflatten


# -- What follows from a segment alone: who owns which parameters, where values are, and where gradients flow ----------


class SegmentLayout:
    """The owner of each parameter in a segment, and the device of each value.

    Attributes:
        owner: By operation with a model, the operation under whose label its parameters are kept: the first trainable
            one of those that share the model.
        models: Models by owner.
        parameters: Parameters by owner and name.
        owner_device: Device by owner.
        trained: Labels of the operations that learn.
        groups: By parameter group, its owners, each once.
        home: Device of the computation by name of value.
        needs_cotangent: Names of the values whose cotangents matter.

    Raises:
        GraphError: two different models, one of which learns, share a parameter; or a complex parameter would learn.
    """

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        modelled = [op for op in segment.operations if op.model is not None]
        first: dict[int, str] = {}
        for op in sorted(modelled, key=lambda op: not op.trainable):
            first.setdefault(id(op.model), op.label)
        self.owner = {op.label: first[id(op.model)] for op in modelled}
        self.models: dict[str, Any] = {op.label: op.model for op in modelled if self.owner[op.label] == op.label}
        self.parameters = {label: dict(ops.parameters(model)) for label, model in self.models.items()}
        # The dtype of 64 bits that some parameter has; None where none has.
        arrays = (array for held in self.parameters.values() for array in held.values())
        self.weight_dtype = next((x.dtype for x in arrays if ops.kind(x) == "floating" and ops.itemsize(x) == 8), None)
        self.owner_device = {op.label: op.device for op in modelled if op.label in self.models}
        grouped = {node for group in segment.groups for node in group.nodes}
        self.trained = {
            op.label
            for op in modelled
            if op.trainable and op.label in grouped and self.parameters[self.owner[op.label]]
        }
        self.groups = {
            group.name: tuple(dict.fromkeys(self.owner[node] for node in group.nodes if node in self.trained))
            for group in segment.groups
        }
        self.home = {name: device for name, (_, device) in segment.inputs.items()}
        self.home.update((name, op.device) for op in segment.operations for name in op.outputs)
        self.needs_cotangent = set(segment.needs_pullback)
        for op in segment.operations:
            if op.label in self.trained or self.needs_cotangent.intersection(op.inputs):
                self.needs_cotangent.update(op.outputs)
        elsewhere = {label: model for label, model in segment.frozen.items() if label not in self.owner}
        frozen = {label: dict(ops.parameters(model)) for label, model in elsewhere.items()} if self.trained else {}
        trained = {self.owner[label] for label in self.trained}
        _refuse_shared_parameters({**self.parameters, **frozen}, trained)
        # Update rules are those of real numbers, and frameworks disagree on whether a complex gradient is
        # conjugated.
        for label in sorted(trained):
            for name, array in self.parameters[label].items():
                if ops.kind(array) == "complex":
                    raise GraphError(
                        f"the parameter {name!r} of node {label!r} is complex ({array.dtype}) and cannot be trained",
                        hint="store its real and imaginary parts as two real parameters, or freeze the node",
                    )

    def without_models(self) -> SegmentLayout:
        """Return the same layout without models and their arrays."""
        layout = copy.copy(self)
        layout.models, layout.parameters = {}, {}
        return layout


def _refuse_shared_parameters(parameters: Mapping[str, Mapping[str, Any]], trained: Set[str]) -> None:
    holders: dict[int, str] = {}
    for label, arrays in parameters.items():
        for name, array in arrays.items():
            holder = holders.setdefault(id(array), label)
            if holder != label and not trained.isdisjoint((holder, label)):
                frozen = {holder, label} - trained
                raise GraphError(
                    f"nodes {holder!r} and {label!r} have different models that share the parameter {name!r}"
                    + (f", and {', '.join(map(repr, frozen))} is frozen" if frozen else ""),
                    hint="freeze both nodes, or use separate parameters"
                    if frozen
                    else "use the same model object in both nodes, or separate parameters",
                )


def devices_of(segment: Segment) -> set[Device]:
    """Return every device of the values of a segment."""
    used = {op.device for op in segment.operations} | {term.device for term in segment.losses}
    return used | {device for _, device in segment.inputs.values()}


class GradientFlow:
    """Where gradients flow in a segment that is differentiated as a whole.

    Attributes:
        ends: Values with a cotangent, where gradients enter: losses or other segments take them.
        trained_owners: Owners of trained operations.
        constant_owners: Owners whose parameters some operation takes as constants.
    """

    def __init__(self, segment: Segment, layout: SegmentLayout) -> None:
        self._loss_ends = {term.label: layout.needs_cotangent.intersection(term.inputs) for term in segment.losses}
        candidates = dict.fromkeys([*segment.outputs, *(name for term in segment.losses for name in term.inputs)])
        self.ends = tuple(name for name in candidates if name in layout.needs_cotangent)
        self.trained_owners = {layout.owner[label] for label in layout.trained}
        self.constant_owners = {owner for label, owner in layout.owner.items() if label not in layout.trained}
        self._owner = {label: layout.owner[label] for label in layout.trained}
        # By operation, the ends that depend on it.
        ends = set(self.ends)
        by_operation: dict[str, set[str]] = {}
        by_value: dict[str, set[str]] = {}
        for op in reversed(segment.operations):
            by_operation[op.label] = (ends & set(op.outputs)).union(*(by_value.get(name, set()) for name in op.outputs))
            for name in op.inputs:
                by_value.setdefault(name, set()).update(by_operation[op.label])
        self._ends_of = by_operation

    def active_ends(self, outputs: Iterable[str], losses: Iterable[str] | None = None) -> frozenset[str]:
        """Return the ends that gradients come from, given cotangents for some outputs and some losses (default:
        all).
        """
        labels = self._loss_ends if losses is None else losses
        by_losses = (self._loss_ends[label] for label in labels)
        return frozenset().union(*by_losses, (name for name in outputs if name in self.ends))

    def reached_owners(self, active_ends: frozenset[str]) -> set[str]:
        """Return the owners whose parameters get gradients from these ends."""
        return {owner for label, owner in self._owner.items() if self._ends_of[label] & active_ends}


class SegmentDataflow:
    """The operations and losses of a segment, over the `StepValues` of one step.

    Attributes:
        segment: The segment.
        ops: The framework.
        layout: Where values and parameters are.
        weighted: The losses that weight rows or positions, with the names of their weight columns.
        calls, training_calls: By operation, the additional arguments of its call in evaluation and in training: its
            `layout` if it is not positional, its `precision` if it differs from the model's, and `remat` if set.

    Raises:
        SpecError: the framework lacks a loss.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: SegmentLayout | None = None) -> None:
        self.segment = segment
        self.ops = ops
        self.layout = SegmentLayout(segment, ops) if layout is None else layout
        self.calls = {op.label: _call_keywords(segment, op, training=False) for op in segment.operations}
        self.training_calls = {op.label: _call_keywords(segment, op, training=True) for op in segment.operations}
        self._losses = [(term, loss_function(ops, term)) for term in segment.losses]
        self.weighted = {term: names for term in segment.losses if (names := weight_inputs(term))}

    def run(self, inputs: Sequence[Any], call: Callable[[Operation, tuple[Any, ...]], Sequence[Any]]) -> StepValues:
        """Compute the values of a step.

        Args:
            inputs: Inputs in the order of `segment.inputs`; None for those that are missing in this step.
            call: Function that returns the outputs of an operation for its inputs, on its device. It is not called if
                an input is missing.
        """
        values = StepValues(self.ops, self.layout.home)
        values.put_all(self.segment.inputs, inputs)
        for op in self.segment.operations:
            if values.lacks(op.inputs):
                outputs: Sequence[Any] = (None,) * len(op.outputs)
            else:
                outputs = call(op, tuple(values.on(name, op.device) for name in op.inputs))
            values.put_all(op.outputs, outputs)
        return values

    def outputs(self, values: StepValues) -> tuple[Any, ...]:
        """Return the segment's outputs; None for those that are missing."""
        return tuple(values.at_home(name) for name in self.segment.outputs)

    def losses(self, values: StepValues) -> list[tuple[LossTerm, LossResult]]:
        """Return every loss that has all its inputs, on its device."""
        return [
            (term, loss([values.on(name, term.device) for name in term.inputs]))
            for term, loss in self._losses
            if not values.lacks(term.inputs)
        ]

    def loss_weights(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights of `summed_weights`, with 1 instead of 0."""
        return {term.label: divisor(self.ops, term, weight) for term, weight in self._summed_weights(columns)}

    def summed_weights(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights of the losses whose columns are available, by label, on their devices."""
        return {term.label: weight for term, weight in self._summed_weights(columns)}

    def microbatch_scale(
        self,
        n_microbatches: int,
        columns: Sequence[Any],
        orders: Sequence[Any],
        rows: Callable[[Any, Any], Any],
    ) -> dict[str, Any]:
        """Return factors of sums in each micro-batch, before gradients are averaged, of losses that weigh rows.

        Args:
            n_microbatches: Number of micro-batches of a step.
            columns, orders: Columns and orders of rows, in the order of `segment.inputs`.
            rows: Function that returns the rows of the whole step, from a column and its order.
        """
        needed = {name for names in self.weighted.values() for name in names}
        pairs = zip(self.segment.inputs, columns, orders, strict=True)
        weights = self.loss_weights({name: rows(column, order) for name, column, order in pairs if name in needed})
        return {term.label: n_microbatches * term.weight / weights[term.label] for term in self.weighted}

    def _summed_weights(self, columns: Mapping[str, Any]) -> Iterator[tuple[LossTerm, Any]]:
        for term, names in self.weighted.items():
            if all(columns.get(name) is not None for name in names):
                yield term, total_weight(self.ops, term, [columns[name] for name in names], self.layout.weight_dtype)


def _call_keywords(segment: Segment, op: Operation, *, training: bool) -> dict[str, Any]:
    layout = layout_of(op, training=training)
    keywords: dict[str, Any] = {} if layout is POSITIONAL else {"layout": layout}
    if segment.precision is None:
        return keywords
    precision, remat = segment.precision.of(op.label), segment.precision.remat(op.label)
    keywords |= {} if precision is None else {"precision": precision}
    return keywords | ({"remat": remat} if remat and training else {})


def loss_sums(results: Sequence[tuple[LossTerm, LossResult]]) -> dict[str, tuple[Any, Any]]:
    """Return losses as (sum, weight), by label."""
    return {term.label: (loss.sum, loss.weight) for term, loss in results}


class StepValues:
    """The values of one step by name; each is moved to another device at most once."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._values: dict[tuple[str, Device], Any] = {}

    def put_all(self, names: Iterable[str], values: Iterable[Any]) -> None:
        """Add values that are on their home devices; None for missing ones."""
        for name, value in zip(names, values, strict=True):
            self._values[name, self._home[name]] = value

    def on(self, name: str, device: Device) -> Any:
        """Return the value on a device."""
        if (name, device) not in self._values:
            value = self.at_home(name)
            edge = ("outputs of", name)
            self._values[name, device] = None if value is None else _crossed(self._ops, value, device, edge)
        return self._values[name, device]

    def lacks(self, names: Iterable[str]) -> bool:
        """Return whether one of some values is missing in this step."""
        return any(self.at_home(name) is None for name in names)

    def at_home(self, name: str) -> Any:
        """Return the value on the device where it was computed; None if it is missing."""
        return self._values[name, self._home[name]]


def _crossed(ops: ArrayOps, value: Any, device: Device, edge: tuple[str, str]) -> Any:
    """Return a value that crosses between nodes, on `device`; ledgers read `edge` from the stack."""
    return ops.move(value, device)


class CotangentSums:
    """Cotangents by name; those on one device are summed there before they are moved home."""

    def __init__(self, ops: ArrayOps, home: Mapping[str, Device]) -> None:
        self._ops = ops
        self._home = home
        self._sums: dict[str, dict[Device, Any]] = {}

    def add(self, name: str, device: Device, cotangent: Any) -> None:
        """Add a cotangent that is on `device`."""
        sums = self._sums.setdefault(name, {})
        sums[device] = sums[device] + cotangent if device in sums else cotangent

    def take(self, name: str) -> Any | None:
        """Remove and return the total on the value's home device; None if nothing flowed back."""
        total = None
        for cotangent in self._sums.pop(name, {}).values():
            moved = _crossed(self._ops, cotangent, self._home[name], ("gradients of", name))
            total = moved if total is None else total + moved
        return total
