"""ArrayProgram: a segment that runs on any framework with `ArrayOps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter.array_ops import (
    ArrayOps,
    LossResult,
    VjpResult,
    concatenate_vjp,
    factor_on_device,
    is_differentiable,
    scaled,
)
from anyaccel.adapter.loss_scaling import ProgramLossScale, loss_scale_of
from anyaccel.adapter.losses import divisor
from anyaccel.adapter.model_outputs import operation_outputs
from anyaccel.adapter.optimizer_step import weighted_sum
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.segment_functions import CotangentSums, SegmentDataflow, StepValues, loss_sums
from anyaccel.backend import MultiStepProgram
from anyaccel.errors import StateError
from anyaccel.formulas import cast
from anyaccel.precision import LossScaleState, ScalesLosses
from anyaccel.segment import LossTerm, NodeState, Operation, Segment


class ArrayProgram(MultiStepProgram, ScalesLosses):
    """Run a segment operation by operation, in functional style: every step creates new arrays.

    Frozen operations run in evaluation mode: nothing in them changes, and nothing is random. A parameter that no
    gradient has reached does not change, and a node without any gradient does not count the step. The optimizer state
    of a shared model is kept under the label of its first trainable node.

    Raises:
        SpecError: the framework lacks an optimizer or loss.
        GraphError: two different models share a parameter, and one of them learns.
    """

    supports_microbatching = True

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        self.segment = segment
        self._ops = ops
        self._dataflow = SegmentDataflow(segment, ops)
        self._layout = layout = self._dataflow.layout
        self._state = ParameterState(segment, ops, layout)
        self._buffers: dict[str, Mapping[str, Any]] = {
            label: dict(ops.buffers(model)) for label, model in layout.models.items()
        }
        self._seed = 0
        self._draws = 0
        scale = loss_scale_of(segment)
        self._loss_scale = None if scale is None else ProgramLossScale(scale)

    def call_scope(self, subject: str) -> AbstractContextManager[None]:
        """Return the context that a call computes in, by default none; see `ScopedProgram`."""
        return nullcontext()

    def seed(self, key: int) -> None:
        self._seed, self._draws = key, 0

    def random_state(self) -> dict[str, np.ndarray]:
        """Return the number of draws; with the key it determines all random numbers."""
        return {"draws": np.array(self._draws, dtype=np.int64)}

    def load_random_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue after this number of draws.

        Raises:
            StateError: it belongs to another program.
        """
        if set(state) != {"draws"} or np.asarray(state["draws"]).shape != ():
            raise StateError("the random state belongs to another framework", available=", ".join(sorted(state)))
        self._draws = int(state["draws"])

    # -- forward and back ------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        values = self._dataflow.run(inputs, self._evaluate)
        return self._dataflow.outputs(values), loss_sums(self._dataflow.losses(values))

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        self._draws += 1
        tape: list[tuple[Operation, VjpResult]] = []
        values = self._dataflow.run(inputs, partial(self._apply_recorded, tape))
        losses = self._dataflow.losses(values)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            sums = CotangentSums(self._ops, self._layout.home)
            for name, cotangent in zip(self.segment.outputs, cotangents, strict=True):
                if cotangent is not None:
                    sums.add(name, self._layout.home[name], cotangent)
            for term, loss in losses:
                self._pull_loss(term, loss, (scale or {}).get(term.label), values, sums)
            for op, applied in reversed(tape):
                self._pull_operation(op, applied, sums)
            return tuple(self._input_cotangent(name, values, sums) for name in self.segment.needs_pullback)

        return self._dataflow.outputs(values), loss_sums(losses), pullback

    def _evaluate(self, op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if op.model is None:
            return concatenate_vjp(self._ops, op, inputs).outputs
        owner = self._layout.owner[op.label]
        parameters, buffers = self._state.parameters[owner], self._buffers[owner]
        outputs = self._ops.call(op.model, parameters, buffers, inputs, **self._dataflow.calls[op.label])
        return tuple(operation_outputs(op, outputs, training=False))

    def _apply_recorded(
        self, tape: list[tuple[Operation, VjpResult]], op: Operation, inputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Run an operation; its pullback goes to the tape if cotangents will reach it."""
        needs_pullback = not self._layout.needs_cotangent.isdisjoint(op.outputs)
        if not op.trainable and not needs_pullback:
            return self._evaluate(op, inputs)
        if op.model is None:
            applied = concatenate_vjp(self._ops, op, inputs)
        else:
            owner, key = self._layout.owner[op.label], self._random_key(op)
            applied = self._model_vjp(op, self._state.parameters[owner], self._buffers[owner], inputs, key)
            if op.trainable and applied.buffers is not None:
                self._buffers[owner] = applied.buffers
        operation_outputs(op, applied.outputs, training=op.trainable)
        if needs_pullback:
            tape.append((op, applied))
        return applied.outputs

    def _model_vjp(self, op: Operation, parameters: Any, buffers: Any, inputs: tuple[Any, ...], key: Any) -> VjpResult:
        keywords = (self._dataflow.training_calls if op.trainable else self._dataflow.calls)[op.label]
        return self._ops.vjp(op.model, parameters, buffers, inputs, op.trainable, key, **keywords)

    def _random_key(self, op: Operation) -> Any:
        """Return the key of an operation in this step, as `vjp` takes it."""
        return rng.key(self._seed, op.label, self._draws)

    def _pull_loss(self, term: LossTerm, loss: LossResult, scale: Any, values: StepValues, sums: CotangentSums) -> None:
        if self._layout.needs_cotangent.isdisjoint(term.inputs):
            return
        scale = term.weight / divisor(self._ops, term, loss.weight) if scale is None else scale
        scale = scale if self._loss_scale is None else scale * self.loss_scale_state().scale
        factor = factor_on_device(self._ops, scale, term.device)
        for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
            if gradient is None or name not in self._layout.needs_cotangent:
                continue
            value = values.at_home(name)
            if is_differentiable(self._ops, value):
                sums.add(name, term.device, cast(self._ops, scaled(self._ops, gradient, factor), value.dtype))

    def _pull_operation(self, op: Operation, applied: VjpResult, sums: CotangentSums) -> None:
        cotangents = [sums.take(name) for name in op.outputs]
        if all(cotangent is None for cotangent in cotangents):
            return
        zeros = self._ops.xp.zeros_like
        dense = tuple(
            zeros(output) if cotangent is None and output is not None else cotangent
            for output, cotangent in zip(applied.outputs, cotangents, strict=True)
        )
        gradients, input_cotangents = applied.pullback(dense)
        if op.label in self._layout.trained:
            self._state.add_gradients(self._layout.owner[op.label], gradients)
        for name, cotangent in zip(op.inputs, input_cotangents, strict=True):
            if cotangent is not None and name in self._layout.needs_cotangent:
                sums.add(name, op.device, cotangent)

    def _input_cotangent(self, name: str, values: StepValues, sums: CotangentSums) -> Any:
        cotangent, value = sums.take(name), values.at_home(name)
        return self._ops.xp.zeros_like(value) if cotangent is None and value is not None else cotangent

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        with self.call_scope(f"the weights of losses of segment {self.segment.label!r}"):
            return self._dataflow.loss_weights(dict(zip(self.segment.inputs, inputs, strict=True)))

    def summed_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the weights of `loss_weights`, but 0 if nothing counts, so that they can be added over processes."""
        with self.call_scope(f"the weights of losses of segment {self.segment.label!r}"):
            return self._dataflow.summed_weights(dict(zip(self.segment.inputs, inputs, strict=True)))

    # -- the loss scale --------------------------------------------------------------------------------------------

    def loss_scale_state(self) -> LossScaleState:
        self._settle_loss_scale()
        return LossScaleState(1.0) if self._loss_scale is None else self._loss_scale.state

    def load_loss_scale_state(self, state: LossScaleState) -> None:
        self._settle_loss_scale()
        if self._loss_scale is not None:
            self._loss_scale.state = state

    def update_loss_scale(self, *, finite: bool) -> None:
        self._settle_loss_scale()
        if self._loss_scale is not None:
            self._loss_scale.count(finite=finite)

    def _settle_loss_scale(self) -> None:
        """Read what steps have left of the loss scale; here they leave nothing."""

    def _step_unless_skipped(self, means: Sequence[Any]) -> None:
        """Run the optimizer step, unless losses are scaled and a gradient is not finite."""
        finite = True
        if self._loss_scale is not None:
            inverse = 1.0 / self.loss_scale_state().scale
            self._state.map_gradients(lambda gradient: gradient * inverse)
            finite = all(bool(is_finite) for _, is_finite in self._state.gradient_stats().values())
            self._loss_scale.count(finite=finite)
        if finite:
            value = None
            if self._state.optimizer.needs_value:  # the weighted sum of the losses, on the device of the first
                device = self.segment.losses[0].device
                value = weighted_sum([self._ops.move(mean, device) for mean in means], self.segment.losses)
            self._state.optimizer_step(self._state.clip_factors(), value)
        else:
            self._state.zero_grad()

    # -- gradients and updates -------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        with self.call_scope("gradient statistics"):
            return self._state.gradient_stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        with self.call_scope("the clipping factor of gradients"):
            return self._state.optimizer.clip_factor(limit, squares)

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        self._state.map_gradients(fn)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        with self.call_scope(f"an update of segment {self.segment.label!r}"):
            self._state.optimizer_step(scale or {})

    def zero_grad(self) -> None:
        self._state.zero_grad()

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """Run `n_steps` training steps as a plain loop; return mean losses [n_steps, losses] on the device of the first
        loss.
        """
        means = []
        for first in range(start, start + n_steps * batch_size, batch_size):  # a comprehension would keep arrays
            means.append(self._train_step(columns, orders, first, batch_size, n_microbatches))
        device = self.segment.losses[0].device
        table = [self._ops.move(self._ops.xp.stack(column), device) for column in zip(*means, strict=True)]
        table = [cast(self._ops, column, table[0].dtype) for column in table]
        return self._ops.xp.stack(table, axis=1)

    def _train_step(
        self, columns: Sequence[Any], orders: Sequence[Any], first: int, batch_size: int, n_microbatches: int
    ) -> list[Any]:
        size, losses, scale, gather = batch_size // n_microbatches, [], {}, self._ops.gather_rows
        if n_microbatches > 1:
            scale = self._dataflow.microbatch_scale(
                n_microbatches, columns, orders, lambda x, order: gather(x, first, first + batch_size, order)
            )
        for begin in range(first, first + batch_size, size):
            inputs = [gather(x, begin, begin + size, order) for x, order in zip(columns, orders, strict=True)]
            losses.append(self._backward(inputs, scale))
        if n_microbatches > 1:
            self._state.map_gradients(lambda gradient: gradient / n_microbatches)
        sums = dict(losses[0])  # of all micro-batches: sum and weight
        for more in losses[1:]:
            sums = {label: (total + more[label][0], weight + more[label][1]) for label, (total, weight) in sums.items()}
        means = [sums[term.label][0] / divisor(self._ops, term, sums[term.label][1]) for term in self.segment.losses]
        self._step_unless_skipped(means)
        return [*means, *(sums[term.label][1] for term in self._dataflow.weighted)]

    def _backward(self, inputs: Sequence[Any], scale: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return losses after adding the gradients. The tape is freed on return, before the optimizer step."""
        _, losses, pullback = self.forward_pullback(inputs, scale) if scale else self.forward_pullback(inputs)
        pullback([None] * len(self.segment.outputs))
        return losses

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        """Return the current parameters, buffers, optimizer state, random state and loss scale."""
        scale = None if self._loss_scale is None else self.loss_scale_state()
        snapshot = self._state.snapshot(), dict(self._buffers), self._seed, self._draws, scale
        self._unshare_state()
        return snapshot

    def restore(self, snapshot: Any) -> None:
        state, buffers, self._seed, self._draws, scale = snapshot
        if scale is not None:
            self.load_loss_scale_state(scale)
        self._state.restore(state)
        self._buffers = dict(buffers)
        self._unshare_state()

    def optimizer_states(self) -> dict[str, NodeState]:
        """Return the optimizer state by node: the current one of trained nodes, the given one of all others."""
        self._settle_loss_scale()
        states = self._state.all_states()
        self._unshare_state()
        return states

    def sync_models(self) -> None:
        """Write parameters and buffers to the user's models."""
        self._settle_loss_scale()
        values = self._state.parameters, self._buffers, self._state.states
        self._unshare_state()
        self._write_models(*values)

    def _write_models(
        self, parameters: Mapping[str, Any], buffers: Mapping[str, Any], states: Mapping[str, NodeState]
    ) -> None:
        for label, model in self._layout.models.items():
            self._ops.write(model, parameters[label], buffers[label])
            if label in states:
                self._ops.write_optimizer_state(model, states[label])

    def _unshare_state(self) -> None:
        """Mark the arrays of the state as shared by others; steps never change them here."""

    def close(self) -> dict[str, NodeState]:
        """Write to the user's models, and return the optimizer state."""
        with self.call_scope("the state of models"):
            self._settle_loss_scale()
            self._write_models(self._state.parameters, self._buffers, self._state.states)
            return self._state.all_states()
