"""JaxProgram: a TracedProgram whose errors are anyaccel's, also where steps are not compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel.adapter import TracedOps, TracedProgram
from anyaccel.segment import Segment
from anyaccel_jax.error_translation import translate_errors

Losses = dict[str, tuple[Any, Any]]


class JaxProgram(TracedProgram):
    """A segment of models that JAX computes.

    JAX computes later than it is called: a call that runs out of memory returns, and what it returned raises when it is
    waited for. `synchronize` waits.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        # on a CPU, the compiler ends the process where it cannot allocate memory, and every trial is compiled
        self.raises_out_of_memory = all(operation.device.kind != "cpu" for operation in segment.operations)

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        """As in `TracedProgram`."""
        with translate_errors(self._batch):
            return super().forward(inputs)

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """As in `TracedProgram`."""
        with translate_errors(self._batch):
            outputs, losses, pull_back = super().forward_pullback(inputs, scale)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with translate_errors(f"the backward pass of {self._batch}"):
                return pull_back(cotangents)

        return outputs, losses, pullback

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """As in `TracedProgram`."""
        with translate_errors(f"steps of {batch_size} rows in segment {self.segment.label!r}"):
            return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """As in `TracedProgram`."""
        with translate_errors(f"an update of segment {self.segment.label!r}"):
            super().optimizer_step(scale)

    @property
    def _batch(self) -> str:
        return f"a batch through segment {self.segment.label!r}"
