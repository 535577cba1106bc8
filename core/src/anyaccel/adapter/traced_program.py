"""TracedProgram: a segment as pure functions that a framework differentiates and compiles as a whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anyaccel.adapter.acts import TracedActs, reason_of
from anyaccel.adapter.compile_estimate import CompileEstimator
from anyaccel.adapter.optimizer_step import by_node
from anyaccel.adapter.segment_analysis import devices_of
from anyaccel.adapter.step_cursor import DeviceScalars, StepCursor
from anyaccel.adapter.traced_ops import TracedOps
from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, OutOfMemoryError
from anyaccel.segment import NodeState, Segment

Shapes = tuple[int, ...]


class TracedProgram(TracedActs):
    """Whole steps in one compiled function, too; see `TracedActs`.

    Raises:
        SpecError: an optimizer or loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        self._shelf = DeviceScalars()
        self._estimator = CompileEstimator(type(ops), _size(segment, self._layout.parameters))
        self._asked: set[Shapes] = set()
        self._met: set[Shapes] = set()
        self._own()

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
        """`count` training steps in one call; mean losses [count or more, losses] on the device of the first loss.

        Compiled if it was asked for, or is never worse; then a batch of another size is done one by one until that has
        taken as long as to compile it.
        """
        plain = partial(super().train_steps, columns, orders, start, n_steps, batch_size, n_microbatches)
        if n_steps == 0 or not self._can:
            return plain()
        shapes = _shapes(columns, orders, batch_size, n_microbatches)
        self._met.add(shapes)
        asked = self._traced.eager_seconds is None or shapes in self._asked
        whole = partial(self._run, columns, orders, start, n_steps, batch_size, n_microbatches, quick=not asked)
        if asked:
            return self._tried("steps", whole, plain)
        if self._asked:
            return self._either(f"steps {shapes}", whole, plain)
        began = time.perf_counter()
        with self._plainly():
            found = plain()
        self._estimator.record_step((time.perf_counter() - began) / n_steps)
        return found

    @property
    def _can(self) -> bool:
        """Whether whole steps can be compiled, as far as is known."""
        return self._whole and bool(self.segment.losses) and not self._traced.eager

    def _run(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        count: int,
        batch: int,
        parts: int,
        *,
        quick: bool = False,
    ) -> Any:
        """`count` compiled steps; with a count of 0 they are only compiled."""
        learning, parameters = self._learning, self._learning.parameters
        learned = [(group, owner) for group, owners in self._compiled.functions.reached.items() for owner in owners]
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
        cursor = self._course(learned, orders, start, count, batch, parts)
        try:
            after, means = self._compiled.compile_steps(batch, parts, quick=quick)(state, rest, cursor, count)
        except BaseException:
            self._shelf.invalidate()
            raise
        if count or self._traced.donates:
            learning.take(after["parameters"], after["slots"], count)
            self._buffers, self._draws = after["buffers"], self._draws + count * parts
        return means

    def _course(
        self, learned: Sequence[tuple[str, str]], orders: Sequence[Any], start: int, count: int, batch: int, parts: int
    ) -> StepCursor:
        def table(later: int, count: int) -> dict[str, Any]:
            return {owner: self._learning.table(group, owner, later, count) for group, owner in learned}

        taken = {owner: self._learning.states[owner].step for _, owner in learned}
        left = max(count, (int(orders[0].shape[0]) - start) // batch)
        return StepCursor(
            start=start,
            draw=self._draws + 1,
            batch_size=batch,
            n_microbatches=parts,
            remaining=left,
            steps_taken=taken,
            table=table,
            device_scalars=self._shelf,
        )

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """What compiling takes and brings: no time where it is done at once, or was by an earlier program."""
        if not self._can:
            return None
        done = self._compiled.ready
        ready = not done.isdisjoint(self._met) if self._met else bool(done)
        return (
            CompileEstimate(0.0, 0.0)
            if self._traced.eager_seconds is None or ready
            else self._estimator.estimate(max_steps)
        )

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile whole steps.

        Raises:
            CompileError: the segment uses several devices, or it cannot be traced.
        """
        if not self._can:
            raise self._refused()
        began = time.perf_counter()
        try:
            self._run(columns, orders, 0, 0, batch_size, n_microbatches)
        except OutOfMemoryError:
            raise
        except Exception as error:
            raise CompileError(
                f"steps of segment {self.segment.label!r} cannot be compiled: {reason_of(error)}",
                hint="see the error above this one; with compile='off' it is not tried",
            ) from error
        shapes = _shapes(columns, orders, batch_size, n_microbatches)
        if shapes not in self._compiled.ready:
            self._estimator.record_compile(time.perf_counter() - began)
        self._asked.add(shapes)
        self._compiled.ready.add(shapes)
        self._compiled.proven.add("steps")

    def _refused(self) -> CompileError:
        asked = f"steps of segment {self.segment.label!r} cannot be compiled"
        if self.untraced:
            return CompileError(asked, available=self.untraced)
        if self._traced.eager:
            return CompileError(asked, available="the segment was built with compile='off'")
        if not self.segment.losses:
            return CompileError(asked, available="it has no loss")
        there = ", ".join(sorted(map(str, devices_of(self.segment))))
        return CompileError(asked, available=f"it uses {there}", hint="put its nodes on one device")

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
        self._shelf.invalidate()
        self._own()

    def optimizer_states(self) -> dict[str, NodeState]:
        """As of `ArrayProgram`."""
        found = super().optimizer_states()
        self._own()
        return found

    def sync_models(self) -> None:
        """As of `ArrayProgram`."""
        super().sync_models()
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
        return {name: self._traced.copy(array) for name, array in arrays.items()}

    def _state_copied(self, state: NodeState) -> NodeState:
        return NodeState(state.step, {name: self._copied(slots) for name, slots in state.slots.items()})


def _size(segment: Segment, parameters: Mapping[str, Mapping[str, Any]]) -> int:
    """How much there is to compile: operations, losses, and arrays that learn."""
    return len(segment.operations) + len(segment.losses) + sum(len(arrays) for arrays in parameters.values())


def _shapes(columns: Sequence[Any], orders: Sequence[Any], batch: int, parts: int) -> Shapes:
    """What a function of whole steps is compiled for."""
    return (batch, parts, *(int(one.shape[0]) for one in (*columns, *orders)))
