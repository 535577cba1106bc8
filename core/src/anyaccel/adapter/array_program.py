"""ArrayProgram: a segment made ready to run by any framework that has `ArrayOps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel import rng
from anyaccel.adapter.array_ops import ArrayOps, LossResult, VjpResult, cast, factor_on_device, joined, scaled
from anyaccel.adapter.parameter_state import Learning
from anyaccel.adapter.segment_analysis import Cotangents, Values, Wired, pairs
from anyaccel.backend import MultiStepProgram
from anyaccel.segment import LossTerm, NodeState, Operation, Segment


class ArrayProgram(MultiStepProgram):
    """Forward, pullback and update of a segment, in functional style: every step makes new arrays.

    Each operation is done by itself, in Python: what a model prints or asks of its values, it does in each step.

    Frozen operations run in evaluation mode: nothing in them changes, and nothing is random. A parameter that no
    gradient has reached is not touched, and a node without any gradient does not count the step. The optimizer state
    of a shared model goes by the label of its first trainable node.

    Raises:
        SpecError: an optimizer or loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    supports_microbatching = True

    def __init__(self, segment: Segment, ops: ArrayOps) -> None:
        self.segment = segment
        self._ops = ops
        self._wired = Wired(segment, ops)
        self._layout = layout = self._wired.layout
        self._learning = Learning(segment, ops, layout)
        self._buffers: dict[str, Mapping[str, Any]] = {
            label: dict(ops.buffers(model)) for label, model in layout.models.items()
        }
        self._stream = 0
        self._draws = 0

    def seed(self, key: int) -> None:
        """Restart the random streams."""
        self._stream, self._draws = key, 0

    # -- forward and back ------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode."""
        values = self._wired.begin(inputs)
        for op in self.segment.operations:
            given = self._wired.given(op, values)
            if given is not None:
                self._wired.enter(op, self._called(op, given), values)
        return self._wired.outputs(values), pairs(self._wired.judge(values))

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode, and the pullback."""
        self._draws += 1
        values = self._wired.begin(inputs)
        tape = []
        for op in self.segment.operations:  # no comprehension: before 3.12 its frame keeps a batch in stored errors
            tape.append((op, self._recorded(op, values)))
        judged = self._wired.judge(values)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            flow = Cotangents(self._ops, self._layout.home)
            for name, cotangent in zip(self.segment.outputs, cotangents, strict=True):
                if cotangent is not None:
                    flow.add(name, self._layout.home[name], cotangent)
            for term, loss in judged:
                self._start(term, loss, (scale or {}).get(term.label), values, flow)
            for op, applied in reversed(tape):
                self._back(op, applied, flow)
            return tuple(self._cotangent(name, values, flow) for name in self.segment.needs_pullback)

        return self._wired.outputs(values), pairs(judged), pullback

    def _called(self, op: Operation, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if op.model is None:
            return joined(self._ops, op, given).outputs
        owner = self._layout.owner[op.label]
        return self._ops.call(op.model, self._learning.parameters[owner], self._buffers[owner], given)

    def _recorded(self, op: Operation, values: Values) -> VjpResult | None:
        """Run an operation and keep its way back; None where nothing will flow back through it, or it does not run."""
        given = self._wired.given(op, values)
        if given is None:
            return None
        wanted = not self._layout.wanted.isdisjoint(op.outputs)
        if not op.trainable and not wanted:
            self._wired.enter(op, self._called(op, given), values)
            return None
        applied = self._applied(op, given)
        self._wired.enter(op, applied.outputs, values)
        return applied if wanted else None

    def _applied(self, op: Operation, given: tuple[Any, ...]) -> VjpResult:
        if op.model is None:
            return joined(self._ops, op, given)
        owner, key = self._layout.owner[op.label], self._random(op)
        parameters, buffers = self._learning.parameters[owner], self._buffers[owner]
        applied = self._pulled_through(op, parameters, buffers, given, key)
        if op.trainable and applied.buffers is not None:
            self._buffers[owner] = applied.buffers
        return applied

    def _pulled_through(
        self, op: Operation, parameters: Any, buffers: Any, given: tuple[Any, ...], key: Any
    ) -> VjpResult:
        return self._ops.vjp(op.model, parameters, buffers, given, op.trainable, key)

    def _random(self, op: Operation) -> Any:
        """What decides what is random in an operation in this step, as `vjp` takes it."""
        return rng.key(self._stream, op.label, self._draws)

    def _start(self, term: LossTerm, loss: LossResult, scale: Any, values: Values, flow: Cotangents) -> None:
        if self._layout.wanted.isdisjoint(term.inputs):
            return
        factor = factor_on_device(self._ops, term.weight / loss.weight if scale is None else scale, term.device)
        for name, gradient in zip(term.inputs, loss.gradients(), strict=True):
            if gradient is not None and name in self._layout.wanted:
                flow.add(
                    name, term.device, cast(self._ops, scaled(self._ops, gradient, factor), values.home(name).dtype)
                )

    def _back(self, op: Operation, applied: VjpResult | None, flow: Cotangents) -> None:
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
            self._learning.add(self._layout.owner[op.label], gradients)
        for name, cotangent in zip(op.inputs, cotangents, strict=True):
            if cotangent is not None and name in self._layout.wanted:
                flow.add(name, op.device, cotangent)

    def _cotangent(self, name: str, values: Values, flow: Cotangents) -> Any:
        cotangent, value = flow.take(name), values.home(name)
        return self._ops.xp.zeros_like(value) if cotangent is None and value is not None else cotangent

    # -- gradients and updates -------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Squared norm and finiteness by group."""
        return self._learning.stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """The factor, on the device of the squares."""
        return self._learning.updates.factor(limit, squares)

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient."""
        self._learning.reduce(fn)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """One optimizer step; then forget the gradients."""
        self._learning.apply(scale or {})

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._learning.discard()

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """`count` training steps as a plain loop; mean losses [count, losses] on the device of the first loss."""
        pairs = list(zip(columns, orders, strict=True))
        means = []
        for first in range(start, start + n_steps * batch_size, batch_size):
            means.append(self._step(pairs, first, batch_size, n_microbatches))
        device = self.segment.losses[0].device
        table = [self._ops.move(self._ops.xp.stack(column), device) for column in zip(*means, strict=True)]
        return self._ops.xp.stack(table, axis=1)

    def _step(self, pairs: Sequence[tuple[Any, Any]], first: int, batch: int, parts: int) -> list[Any]:
        size, found = batch // parts, []
        for begin in range(first, first + batch, size):
            rows = [self._ops.gather_rows(column, begin, begin + size, order) for column, order in pairs]
            found.append(self._learned(rows))
        if parts > 1:
            self._learning.average(parts)
        self.optimizer_step(self._learning.clips())
        return [_mean([losses[term.label] for losses in found]) for term in self.segment.losses]

    def _learned(self, inputs: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
        _, losses, pullback = self.forward_pullback(inputs)
        pullback([None] * len(self.segment.outputs))
        return losses

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        """Parameters, buffers, optimizer state and random state, as they are now."""
        return self._learning.snapshot(), dict(self._buffers), self._stream, self._draws

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot; gradients are forgotten."""
        learning, buffers, self._stream, self._draws = snapshot
        self._learning.restore(learning)
        self._buffers = dict(buffers)

    def optimizer_states(self) -> dict[str, NodeState]:
        """The optimizer state by node: of the trained ones as it is now, of all others as it was given."""
        return self._learning.all_states()

    def sync_models(self) -> None:
        """Write parameters and buffers to the user's models."""
        for label, model in self._layout.models.items():
            self._ops.write(model, self._learning.parameters[label], self._buffers[label])

    def close(self) -> dict[str, NodeState]:
        """Publish, and hand out the optimizer state."""
        self.sync_models()
        return self.optimizer_states()


def _mean(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """The mean that (sum, weight) of all parts make."""
    total, weight = pairs[0]
    for one, more in pairs[1:]:
        total, weight = total + one, weight + more
    return total / weight
