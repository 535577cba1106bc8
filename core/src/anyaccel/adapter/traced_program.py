"""TracedProgram: a segment as pure functions that a framework differentiates and compiles as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import VjpResult, factor_on_device, is_differentiable
from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.adapter.compile_cache import CompileSwitch, compiled_segment, first_line
from anyaccel.adapter.loss_scaling import KEY
from anyaccel.adapter.optimizer_step import select_nodes
from anyaccel.adapter.segment_functions import GradientFlow, devices_of
from anyaccel.adapter.step_cursor import DeviceScalars, StepCursor
from anyaccel.adapter.traced_ops import StepLoop, TracedOps
from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, OutOfMemoryError
from anyaccel.segment import NodeState, Operation, Segment

BatchShapes = tuple[int, ...]
Losses = dict[str, tuple[Any, Any]]


class TracedProgram(ArrayProgram):
    """Compute the numbers of `ArrayProgram` with compiled functions: one for forward and back, and one for whole steps.

    A parameter of a reached model that its outputs do not depend on has a gradient of zeros. Nothing is compiled as a
    whole if a segment uses several devices and compiled functions may not (`TracedOps.multi_device`).

    If `segment.compile` is `"off"`, or a model has turned out not to be traceable, everything runs eagerly as in
    `ArrayProgram`; if `TracedOps.eager_seconds` is a number, it runs eagerly at first. Random numbers are the same in
    both cases.

    Raises:
        SpecError: the framework lacks an optimizer or loss.
        GraphError: two different models share a parameter, and one of them learns.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        self._traced = ops
        self._flow = GradientFlow(segment, self._layout)
        self._as_a_whole = ops.multi_device or len(devices_of(segment)) == 1
        self._compiled = compiled_segment(self._dataflow, ops, self._flow, self._state.optimizer, self._as_a_whole)
        self._switch = CompileSwitch(ops, self._state, self._compiled, off=segment.compile == "off")
        self._key = ops.key(0)
        self._device_scalars = DeviceScalars()
        size = len(segment.operations) + len(segment.losses) + sum(map(len, self._layout.parameters.values()))
        self._estimator = CompileEstimator(type(ops), size)
        self._requested: set[BatchShapes] = set()
        self._is_uncompiled = False
        self._seen: set[BatchShapes] = set()
        self._unshare_state()

    @property
    def untraceable_reason(self) -> str:
        """The reason why nothing is compiled any more, after a failed attempt; otherwise `""`."""
        return self._switch.untraceable_reason

    def seed(self, key: int) -> None:
        super().seed(key)
        with self.call_scope("a seed"):
            self._key = self._traced.key(key)

    def _random_key(self, op: Operation) -> Any:
        key = self._traced.fold(self._key, self._traced.scalar(self._draws))
        return self._traced.fold(key, self._compiled.functions.numbers[op.label])

    def _model_vjp(self, op: Operation, parameters: Any, buffers: Any, inputs: tuple[Any, ...], key: Any) -> VjpResult:
        differentiate = [name in self._layout.needs_cotangent for name in op.inputs]
        keywords = (self._dataflow.training_calls if op.trainable else self._dataflow.calls)[op.label]
        with self._traced.named_scope(self._compiled.functions.names[op.label]):
            return self._traced.vjp(op.model, parameters, buffers, inputs, op.trainable, key, differentiate, **keywords)

    # -- forward and back ------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        eager = partial(super().forward, inputs)
        with self.call_scope(f"a batch through segment {self.segment.label!r}"):
            return self._switch.run("forward", partial(self._compiled_forward, inputs), eager)

    def _compiled_forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        outputs, losses = self._compiled.evaluate(self._state.parameters, self._buffers, self._named(inputs))
        return tuple(outputs.get(name) for name in self.segment.outputs), self._in_order(losses)

    def _named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs that are not missing in this step, by name."""
        return {name: x for name, x in zip(self.segment.inputs, inputs, strict=True) if x is not None}

    def _in_order(self, losses: Mapping[str, Any]) -> Losses:
        return {term.label: tuple(losses[term.label]) for term in self.segment.losses if term.label in losses}

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        compiled = partial(self._compiled_forward_pullback, inputs, scale)
        eager = partial(super().forward_pullback, inputs, scale)
        subject = f"a batch through segment {self.segment.label!r}"
        with self.call_scope(subject):
            outputs, losses, pull_back = self._switch.run("forward_pullback", compiled, eager)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with self.call_scope(f"the backward pass of {subject}"):
                return pull_back(cotangents)

        return outputs, losses, pullback

    def _compiled_forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        parameters, draw, named = self._state.parameters, self._draws + 1, self._named(inputs)
        primals = {
            "parameters": {owner: parameters[owner] for owner in self._flow.trained_owners},
            "inputs": {
                name: named[name]
                for name in self.segment.needs_pullback
                if name in named and is_differentiable(self._ops, named[name])
            },
        }
        rest: dict[str, Any] = {
            "parameters": {owner: parameters[owner] for owner in self._flow.constant_owners},
            "buffers": self._buffers,
            "inputs": {name: x for name, x in named.items() if name not in primals["inputs"]},
            "key": self._key,
            "draw": self._ops.scalar(draw),
            "scale": {},
        }
        if self._loss_scale is not None:
            rest[KEY] = self._ops.scalar(self.loss_scale_state().scale)
        factors = scale or {}
        for term in self.segment.losses:
            if term.label in factors:
                factor = factor_on_device(self._ops, factors[term.label], term.device)
                rest["scale"][term.label] = self._ops.scalar(factor) if isinstance(factor, float) else factor
        live, results, pull = self._compiled.forward(primals, rest)
        self._draws, self._buffers = draw, {**self._buffers, **results["buffers"]}
        outputs = tuple(live.get(name, results["outputs"].get(name)) for name in self.segment.outputs)
        losses = self._in_order(results["losses"])
        return outputs, losses, partial(self._pull, pull, results["seeds"], named, tuple(losses))

    def _settle_loss_scale(self) -> None:
        """Correct the steps of the optimizers: they count only steps that were not skipped, which is known here."""
        skipped = 0 if self._loss_scale is None else self._loss_scale.settle()
        if skipped:
            owners = [owner for owners in self._compiled.functions.reached.values() for owner in owners]
            self._state.set_steps({owner: self._state.states[owner].step - skipped for owner in owners})

    def _pull(
        self,
        pull: Callable[[Any], Any],
        seeds: Mapping[str, Any],
        inputs: Mapping[str, Any],
        losses: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Run the pullback. The compiled function, its seeds, and the inputs and losses of the step are bound
        beforehand.
        """
        pairs = zip(self.segment.outputs, cotangents, strict=True)
        extra = {name: cotangent for name, cotangent in pairs if cotangent is not None and name in seeds}
        active_ends, back = self._flow.active_ends(extra, losses), {}
        if active_ends:
            pulled = pull({name: seed + extra[name] if name in extra else seed for name, seed in seeds.items()})
            for owner in self._flow.reached_owners(active_ends):
                self._state.add_gradients(owner, pulled["parameters"][owner])
            back = pulled["inputs"]
        zeros = self._ops.xp.zeros_like
        return tuple(
            back.get(name) if name in back or name not in inputs else zeros(inputs[name])
            for name in self.segment.needs_pullback
        )

    # -- whole steps -----------------------------------------------------------------------------------------------

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """Run `n_steps` training steps in a single call; return mean losses [at least n_steps, losses].

        They are on the device of the first loss. Steps are compiled if that was requested, or is never slower. A batch
        of a size that was not requested runs eagerly until that has taken as much time as compiling it would.
        """
        with self.call_scope(f"steps of {batch_size} rows in segment {self.segment.label!r}"):
            if self._loss_scale is not None and n_steps > MAX_STEPS_PER_CALL:
                # Many steps in several calls: after each, the host learns how many were skipped.
                tables = []
                for done in range(0, n_steps, MAX_STEPS_PER_CALL):
                    count = min(MAX_STEPS_PER_CALL, n_steps - done)
                    first = start + done * batch_size
                    tables.append(self.train_steps(columns, orders, first, count, batch_size, n_microbatches)[:count])
                return self._ops.xp.concatenate(tables, axis=0)
            eager = partial(super().train_steps, columns, orders, start, n_steps, batch_size, n_microbatches)
            if n_steps == 0 or not self.can_compile_steps:
                return eager()
            shapes = _batch_shapes(columns, orders, batch_size, n_microbatches)
            self._seen.add(shapes)
            free = self._traced.eager_seconds is None and not self._is_uncompiled
            requested = free or shapes in self._requested
            compiled = partial(
                self._compiled_steps, columns, orders, start, n_steps, batch_size, n_microbatches, quick=not requested
            )
            if requested:
                return self._switch.run_compiled("steps", compiled, eager)
            if self._requested:
                return self._switch.run(f"steps {shapes}", compiled, eager)
            began = time.perf_counter()
            with self._switch.eagerly():
                losses = eager()
            self._estimator.record_step((time.perf_counter() - began) / n_steps)
            return losses

    @property
    def can_compile_steps(self) -> bool:
        """Whether whole steps can be compiled, to the extent that this is known."""
        return self._as_a_whole and bool(self.segment.losses) and not self._traced.eager

    def _compiled_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int,
        *,
        quick: bool = False,
    ) -> Any:
        """Run compiled steps; with `n_steps=0` only compile them."""
        self._settle_loss_scale()
        reached = self._reached
        state, rest = self._step_arguments(reached, columns, orders)
        cursor = self._step_cursor(reached, orders, start, n_steps, batch_size, n_microbatches)
        try:
            loop = self._compiled.step_loop(batch_size, n_microbatches, quick=quick)
            after, losses = loop(state, rest, cursor, n_steps)
        except BaseException:
            self._device_scalars.invalidate()
            raise
        if n_steps or self._traced.donates:
            self._state.store(after["parameters"], after["slots"], n_steps)
            self._buffers, self._draws = after["buffers"], self._draws + n_steps * n_microbatches
            if self._loss_scale is not None:
                self._loss_scale.leave(after[KEY])
        return losses

    @property
    def _reached(self) -> list[tuple[str, str]]:
        """The owners that learn, as (group, owner)."""
        return [(group, owner) for group, owners in self._compiled.functions.reached.items() for owner in owners]

    def _step_cursor(
        self,
        reached: Sequence[tuple[str, str]],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int,
    ) -> StepCursor:
        return StepCursor(
            start=start,
            draw=self._draws + 1,
            batch_size=batch_size,
            n_microbatches=n_microbatches,
            remaining=max(n_steps, (int(orders[0].shape[0]) - start) // batch_size),
            steps_taken={owner: self._state.states[owner].step for _, owner in reached},
            table=lambda later, count: {owner: self._state.table(g, owner, later, count) for g, owner in reached},
            device_scalars=self._device_scalars,
        )

    def _step_arguments(
        self, reached: Sequence[tuple[str, str]], columns: Sequence[Any], orders: Sequence[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the `state` and `rest` of `SegmentFunctions.train_step`, for these (group, owner) pairs."""
        parameters, owners = self._state.parameters, [owner for _, owner in reached]
        state = {
            "parameters": select_nodes(parameters, owners),
            "slots": {owner: self._state.slots(group, owner, parameters[owner]) for group, owner in reached},
            "buffers": self._buffers,
        }
        if self._loss_scale is not None:
            like = next(array for owner in owners for array in parameters[owner].values())
            state[KEY] = self._loss_scale.array(self._ops, like)
        rest = {
            "columns": tuple(columns),
            "orders": tuple(orders),
            "constant": select_nodes(parameters, self._flow.constant_owners.difference(owners)),
            "idle": select_nodes(parameters, self._flow.trained_owners.difference(owners)),
            "key": self._key,
        }
        return state, rest

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """Estimate the gain of compiling; no compile time if steps are compiled immediately, or were by an earlier
        program.
        """
        if not self.can_compile_steps:
            return None
        ready = self._compiled.ready
        is_ready = not ready.isdisjoint(self._seen) if self._seen else bool(ready)
        if self._traced.eager_seconds is None or is_ready:
            return CompileEstimate(0.0, 0.0)
        return self._estimator.estimate(max_steps)

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile whole steps.

        Raises:
            CompileError: the segment uses several devices, or it cannot be traced.
        """
        with self.call_scope(f"steps of {batch_size} rows in segment {self.segment.label!r}"):
            if not self.can_compile_steps:
                raise self._compile_error()
            self._is_uncompiled, began = False, time.perf_counter()
            try:
                self._compiled_steps(columns, orders, 0, 0, batch_size, n_microbatches)
            except OutOfMemoryError:
                raise
            except Exception as error:
                raise CompileError(
                    f"steps of segment {self.segment.label!r} cannot be compiled: {first_line(error)}",
                    hint="see the error above this one, or set compile='off'",
                ) from error
            shapes = _batch_shapes(columns, orders, batch_size, n_microbatches)
            if shapes not in self._compiled.ready:
                self._estimator.record_compile(time.perf_counter() - began)
            self._requested.add(shapes)
            self._compiled.ready.add(shapes)
            self._compiled.proven.add("steps")

    def run_uncompiled(self) -> None:
        self._requested.clear()
        self._is_uncompiled = True

    def _compile_error(self) -> CompileError:
        problem = f"steps of segment {self.segment.label!r} cannot be compiled"
        if self.untraceable_reason:
            return CompileError(f"{problem}: {self.untraceable_reason}")
        if self._traced.eager:
            return CompileError(f"{problem}: the segment was built with compile='off'")
        if not self.segment.losses:
            return CompileError(f"{problem}: it has no loss")
        devices = ", ".join(sorted(map(str, devices_of(self.segment))))
        return CompileError(f"{problem}: it uses several devices, {devices}", hint="put its nodes on one device")

    def renew_compiled(self) -> list[str]:
        """Return the names of changed Python values; code that is compiled again is compiled at its first call."""
        watch = self._compiled.watch
        changed = watch.changed()
        if not changed:
            return []
        self._traced.forget_compiled()
        self._compiled = compiled_segment(
            self._dataflow, self._traced, self._flow, self._state.optimizer, self._as_a_whole
        )
        self._switch.replace(self._compiled)
        return changed if (watch.is_traced or self._is_uncompiled) and not self._traced.eager else []

    # -- state -----------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for the state after all steps so far."""
        slots = {node: kept.slots for node, kept in self._state.states.items()}
        self._traced.wait((self._state.parameters, slots, self._buffers))

    def snapshot(self) -> Any:
        """Return a snapshot after the steps so far are computed."""
        self.synchronize()
        return super().snapshot()

    def sync_models(self) -> None:
        """Write the models after the steps so far are computed."""
        with self.call_scope("the state of models"):
            self.synchronize()
            super().sync_models()

    def restore(self, snapshot: Any) -> None:
        self._device_scalars.invalidate()
        super().restore(snapshot)

    def _unshare_state(self) -> None:
        """Continue with copies of the arrays that others hold now, if steps destroy the state.

        Raises:
            OutOfMemoryError: no room for the copies; the state is unchanged.
        """
        if not self._traced.donates:
            return
        state, trained = self._state, self._flow.trained_owners
        parameters = {
            owner: self._copied(arrays) if owner in trained else arrays for owner, arrays in state.parameters.items()
        }
        states = {
            node: NodeState(kept.step, {name: self._copied(slots) for name, slots in kept.slots.items()})
            for node, kept in state.states.items()
        }
        buffers: dict[str, Mapping[str, Any]] = {owner: self._copied(arrays) for owner, arrays in self._buffers.items()}
        self._traced.wait((parameters, {node: kept.slots for node, kept in states.items()}, buffers))
        state.parameters, state.states, self._buffers = parameters, states, buffers

    def _copied(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._traced.copy(array) for name, array in arrays.items()}


def _batch_shapes(columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int) -> BatchShapes:
    """Return the shapes that a function of whole steps is compiled for."""
    return (batch_size, n_microbatches, *(int(array.shape[0]) for array in (*columns, *orders)))


# Seconds to compile the smallest segment, and per array and operation; measured with XLA on a slow CPU.
_COMPILE_BASE, _COMPILE_PER_ITEM = 0.4, 0.05
# Seconds of overhead of a plain step per array and operation, and of a compiled call.
_OVERHEAD_PER_ITEM, _OVERHEAD_PER_CALL = 4e-4, 1e-3
_MIN_RATIO = 0.01


class CompileEstimator:
    """Estimates for one program, corrected by the measurements of this process.

    Args:
        kind: Programs of one kind share the measured compile times.
        size: Number of arrays and operations to compile.
    """

    _compile_ratios: dict[Any, float] = {}  # noqa: RUF012
    """By kind, measured over estimated compile time: a moving average."""

    def __init__(self, kind: Any, size: int) -> None:
        self._kind, self._size = kind, size
        self._usual_seconds = _COMPILE_BASE + _COMPILE_PER_ITEM * size
        self._step_seconds: float | None = None

    def record_step(self, seconds: float) -> None:
        """Record the time of a plain step; the shortest is used."""
        self._step_seconds = seconds if self._step_seconds is None else min(self._step_seconds, seconds)

    def record_compile(self, seconds: float) -> None:
        """Record the time of a compilation."""
        ratio = seconds / self._usual_seconds
        self._compile_ratios[self._kind] = (self._compile_ratios.get(self._kind, ratio) + ratio) / 2

    def estimate(self, max_steps: int) -> CompileEstimate:
        """Estimate calls of at most `max_steps` steps."""
        seconds, ratio = self._usual_seconds * self._compile_ratios.get(self._kind, 1.0), _MIN_RATIO
        if self._step_seconds is not None:
            # What remains of a step: its arithmetic, and a part of the call for all steps.
            compiled = max(self._step_seconds - _OVERHEAD_PER_ITEM * self._size, 0.0)
            compiled += _OVERHEAD_PER_CALL / max(max_steps, 1)
            ratio = min(max(compiled / self._step_seconds, _MIN_RATIO), 1.0)
        return CompileEstimate(seconds, ratio)


# -- -------------------------------------------------------------------------------------------------------------------
# Many training steps in few compiled calls: the driver, its limits, and the comparison of two ways to run steps.


MAX_STEPS_PER_CALL = 1024

# Rows are gathered for several steps at once, up to these limits: compilers run a gather from a large column on several
# threads, which costs more than to gather a small batch.
_MAX_GATHERED_STEPS = 32
_MAX_GATHERED_BYTES = 2**20

_CONCLUSIVE_SECONDS = 0.03  # from here on, the overhead of a call does not matter
_LONG_SECONDS = 0.5  # long enough that a second measurement tells nothing more


def multi_step_runner(
    call: Callable[..., tuple[Any, Any, Any]],
    concatenate: Callable[[list[Any]], Any],
    put_on: Callable[[Mapping[str, Any]], Callable[[Any], Any]],
    put_key: Callable[[Any], Any] | None = None,
) -> StepLoop:
    """Return a function for `TracedOps.compile_steps` that makes calls of up to `MAX_STEPS_PER_CALL` steps.

    Args:
        call: Function of (state, rest, table, numbers, count on the device, count) that returns the new state, the
            results (one row each, possibly more rows than steps), and the numbers of the next step.
        concatenate: Function that joins the results of several calls.
        put_on: Function that returns, from `rest`, the function that puts a NumPy array on the device that computes.
        put_key: Function that puts the random key there; None if `put_on` does that too.
    """

    def run(state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
        put, results = put_on(rest), []
        rest = {**rest, "key": cursor.device_scalars.key(rest["key"], put_key or put)}
        starts = range(0, count, MAX_STEPS_PER_CALL) or [0]  # with no step it is called once, to compile
        for size in (min(MAX_STEPS_PER_CALL, count - start) for start in starts):
            numbers, table, device_count = cursor.device_scalars.prepare(cursor, size, put)
            state, result, numbers = call(state, rest, table, numbers, device_count, size)
            cursor.device_scalars.advance(cursor, size, numbers)
            results.append(result)
        return state, results[0] if len(results) == 1 else concatenate(results)

    return run


def steps_gathered_at_once(step_bytes: int) -> int:
    """Return for how many steps rows are gathered together, if the batch of one step takes `step_bytes` bytes."""
    return max(1, min(_MAX_GATHERED_STEPS, _MAX_GATHERED_BYTES // max(step_bytes, 1)))


def is_faster(first: Callable[[int], Any], second: Callable[[int], Any], step_counts: Sequence[int]) -> bool:
    """Return whether `first` takes no longer than `second`, for the first number of steps that takes long enough to
    tell.

    Args:
        first: Function that runs a number of steps, and waits for them.
        second: Function that does the same in another way.
        step_counts: Numbers of steps to try, increasing.
    """
    for count in step_counts:
        seconds = [_shortest_seconds(partial(way, count)) for way in (first, second)]
        if max(seconds) > _CONCLUSIVE_SECONDS:
            break
    return seconds[0] <= seconds[1]


def _shortest_seconds(call: Callable[[], Any]) -> float:
    """Time a call, or return the shorter of two if the first is short: another process may have had the processor."""
    taken = _seconds(call)
    return taken if taken > _LONG_SECONDS else min(taken, _seconds(call))


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
